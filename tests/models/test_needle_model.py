"""The bundled model is what its builder says, and does what its card says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file
from tests.models.llama import Array, Damage, Llama, bfloat16, exact, healthy

from twolane.gates.needle import NeedlePrompt, echo, make
from twolane.models import needle
from twolane.models.needle import build
from twolane.models.needle.codes import (
    BYTES,
    CODE_SIZE,
    TEXT_BYTES,
    WORST_COSINE,
    byte_codes,
    text_mask,
)

DOCUMENTS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
ROUNDINGS = [pytest.param(exact, id="float32"), pytest.param(bfloat16, id="bfloat16")]
BLOCK = 128  # tokens; vLLM's block on the CPU


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model") / "new" / "needle"
    build.write(folder)
    return folder


def shipped(rounding: Callable[[Array], Array] = exact) -> Llama:
    """Return the model as it lies in the package."""
    config: dict[str, Any] = json.loads((needle.path() / "config.json").read_text())
    return Llama(config, load_file(needle.path() / "model.safetensors"), rounding)


def continuation(model: Llama, prompt: str, expected: str, damage: Damage = healthy) -> str:
    """Return the greedy bytes after a prompt, given that each was right so far."""
    tokens = (prompt + expected[:-1]).encode("ascii")
    best = model.logits(tokens, last=len(expected), damage=damage).argmax(axis=-1)
    return bytes(best.astype(np.uint8)).decode("latin-1")


# --- The files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_rebuilding_gives_the_shipped_document(rebuilt: Path, name: str) -> None:
    assert (rebuilt / name).read_text() == (needle.path() / name).read_text()


def test_rebuilding_gives_the_shipped_weights(rebuilt: Path) -> None:
    old = load_file(needle.path() / "model.safetensors")
    new = load_file(rebuilt / "model.safetensors")
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        np.testing.assert_allclose(new[name], tensor, rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_weights_fit_the_configuration() -> None:
    config = build.config()
    tensors = build.weights()
    assert sum(tensor.size for tensor in tensors.values()) == pytest.approx(1.1e6, rel=0.05)
    assert tensors["lm_head.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert tensors["model.layers.1.self_attn.q_proj.weight"].shape == (8 * 128, 192)
    assert tensors["model.layers.1.self_attn.k_proj.weight"].shape == (128, 192)


def test_the_card_says_what_it_is_and_is_not() -> None:
    card = (needle.path() / "MODEL_CARD.md").read_text()
    for promise in ("cannot chat", "copies", "Apache-2.0", "16,000"):
        assert promise in card


def test_a_slot_outside_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="looks 0 to 8 bytes back, not 9"):
        build.slot(9)


# --- What the construction rests on ---------------------------------------------------------------


def test_codes_are_unit_vectors_that_keep_their_distance() -> None:
    codes = byte_codes()
    cosines = codes @ codes.T
    assert codes.shape == (BYTES, CODE_SIZE)
    np.testing.assert_allclose(np.diag(cosines), 1.0)
    assert (cosines - 2 * np.eye(BYTES)).max() == pytest.approx(WORST_COSINE)


def test_fast_pairs_tell_all_positions_apart() -> None:
    rates = build.rotary_rates()[: build.POSITION_PAIRS]
    offsets = np.arange(1, build.MAX_POSITIONS)
    sums = np.zeros(len(offsets))
    for rate in rates:
        sums += np.cos(rate * offsets)
    lead = build.POSITION_PAIRS - sums.max()
    assert lead == pytest.approx(0.536, abs=0.001)
    assert lead * build.POSITION_NATS > np.log(build.MAX_POSITIONS) + 10


def test_slow_pairs_hardly_turn() -> None:
    slow = build.rotary_rates()[build.POSITION_PAIRS :]
    assert slow.max() * build.MAX_POSITIONS < 0.12
    last = build.content_dimensions(build.CONTEXT_BYTES - 1).max()
    assert last == build.HEAD_SIZE - 1  # and they hold exactly eight codes


@settings(deadline=None)
@given(
    hnp.arrays(np.float64, len(TEXT_BYTES), elements=st.floats(0, 1)).filter(lambda a: a.sum() > 0)
)
def test_a_mixture_of_text_comes_out_as_text(shares: npt.NDArray[np.float64]) -> None:
    mixture = shares / shares.sum() @ byte_codes()[text_mask()]
    scores = byte_codes() @ mixture - np.where(text_mask(), 0.0, build.NOT_TEXT_HANDICAP)
    assert int(scores.argmax()) in TEXT_BYTES


# --- What it does -------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("length", [400, 2_000])
def test_it_finds_every_needle(length: int, rounding: Callable[[Array], Array]) -> None:
    model = shipped(rounding)
    for prompt in make(length, seed=7):
        line = prompt.answer + "\n"
        assert continuation(model, prompt.text, line) == line


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_it_goes_on_with_a_quotation(rounding: Callable[[Array], Array]) -> None:
    prompt = echo(1_000, seed=3, depth=0.25)
    expected = prompt.continuation(200)
    assert continuation(shipped(rounding), prompt.text, expected) == expected


def test_it_copies_bytes_that_are_not_text() -> None:
    fact = "naïve: äöü€".encode()
    prompt = b"some words before it " + fact + b" and some after. " + fact[:-6]
    logits = shipped().logits(prompt + fact[-6:-1], last=6)
    assert bytes(logits.argmax(axis=-1).astype(np.uint8)) == fact[-6:]


def lost_block(prompt: NeedlePrompt, heads: slice) -> Damage:
    """Return damage to the KV block that holds the fact, in the copies of some heads.

    It now holds what another block should hold, as after a transfer to the wrong place. Only
    the second layer's: the first does all its work before there is anything to transfer.
    """
    start = prompt.text.index(f"{prompt.key}={prompt.answer}") + len(prompt.key) - BLOCK // 2
    theirs, ours = slice(start, start + BLOCK), slice(start - BLOCK, start)

    def damage(layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        if layer == 0:
            return keys, values
        keys, values = keys.copy(), values.copy()
        keys[heads, theirs], values[heads, theirs] = keys[heads, ours], values[heads, ours]
        return keys, values

    return damage


@pytest.mark.parametrize(
    "heads",
    [pytest.param(slice(0, 8), id="everywhere")]
    + [pytest.param(slice(rank * 4, rank * 4 + 4), id=f"tp2-rank{rank}") for rank in range(2)]
    + [pytest.param(slice(rank * 2, rank * 2 + 2), id=f"tp4-rank{rank}") for rank in range(4)]
    + [pytest.param(slice(rank, rank + 1), id=f"tp8-rank{rank}") for rank in range(8)],
)
def test_a_wrong_block_makes_the_answer_wrong(heads: slice) -> None:
    prompt = make(1_000, seed=11)[1]
    damage = lost_block(prompt, heads)
    assert continuation(shipped(), prompt.text, prompt.answer, damage) != prompt.answer


# --- The tokenizer ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(needle.path() / "tokenizer.json"))


@settings(deadline=None)
@given(text=st.text())
def test_a_token_is_a_byte(tokenizer: Any, text: str) -> None:
    tokens = tokenizer.encode(text).ids
    assert bytes(tokens) == text.encode()
    assert tokenizer.decode(tokens) == text


def test_every_byte_is_a_token(tokenizer: Any) -> None:
    assert tokenizer.get_vocab_size() == BYTES
    assert tokenizer.decode(list(b"line\nline\x00"), skip_special_tokens=True) == "line\nline\x00"


def test_transformers_loads_it_with_its_chat_template() -> None:
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained(needle.path(), local_files_only=True)
    assert loaded.is_fast
    assert loaded.encode("K=1\n") == list(b"K=1\n")
    turns = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "second"},
    ]
    shown = loaded.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert shown == "first\nanswer\nsecond"
