"""Write the needle model: weights, configuration and tokenizer, all by construction.

    python -m twolane.models.needle.build --out DIR

The model is a plain two-layer Llama, so that any server that knows Llama loads it.

* A token is a byte. The residual stream of a position holds the code of its own byte, eight
  slots for the codes of the eight bytes before it, an output slot and a constant.
* Layer 1 fills the slots. Head m looks exactly m positions back, whatever stands there.
* Layer 2 compares the last eight bytes, ending at the current one, with the eight bytes before
  every earlier position, and copies the byte that stands at the place that agrees.
* The head compares the output slot with the code of every byte.

The MLPs are zero. Weight matrices have the shape (out, in), as in the file that is written.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from twolane.models import needle
from twolane.models.needle.codes import BYTES, CODE_SIZE, WORST_COSINE, byte_codes, text_mask

Array = npt.NDArray[np.float64]
Weights = dict[str, npt.NDArray[np.float32]]

# --- Sizes ------------------------------------------------------------------------------------

LAYERS: Final = 2
HEADS: Final = 8
KV_HEADS: Final = 1
HEAD_SIZE: Final = 128
HIDDEN: Final = 192
MLP: Final = 128  # all zero; wide enough to be split over eight devices
CONTEXT_BYTES: Final = HEADS  # one head of layer 1 for every byte looked back at
MAX_POSITIONS: Final = 1_100_000

# --- The residual stream: where things stand in its 192 numbers ---------------------------------

CURRENT: Final = slice(0, CODE_SIZE)
OUTPUT: Final = slice(CODE_SIZE * (1 + CONTEXT_BYTES), CODE_SIZE * (2 + CONTEXT_BYTES))
CONSTANT_AT: Final = CODE_SIZE * (2 + CONTEXT_BYTES)
CONSTANT: Final = math.sqrt(2.0)  # its square joins the norms below; its size is a free choice
RMS_EPSILON: Final = 1e-6

# --- Rotary embedding: pair i is the dimensions (i, i + 64) of a head ---------------------------
#
# Pair i turns by ROPE_THETA ** (-i / 64) radians a position. A base of 1e28 spreads the rates
# over 28 powers of ten. The first sixteen, from 1 down to 3e-7, tell any two of a million
# positions apart. From pair 16 on (1e-7 and slower) a vector turns by at most 0.11 radians
# over 1.1 million positions, so those pairs compare contents wherever they stand.

ROPE_THETA: Final = 1e28
PAIRS: Final = HEAD_SIZE // 2
POSITION_PAIRS: Final = 16
PAIRS_PER_CODE: Final = CODE_SIZE // 2

# --- Score scales, in nats -----------------------------------------------------------------------
#
# A softmax over a million keys picks one of them, to within e**-10, once its score leads every
# other by ln(1e6) + 10 = 23.8 nats.
#
# Layer 1: the cosines of the sixteen pairs sum to 16 at the wanted offset and to at most
# 16 - 0.536 at any other within a million positions. 60 nats a unit make that a lead of 32.
#
# Layer 2: the cosines of the eight bytes sum to 8 at a full match, and one byte that differs
# costs at least 1 - WORST_COSINE. 72 nats a unit make that a lead of 36.
#
# More would not be better: scores are products of rounded numbers, and in bfloat16 their error
# grows with their size.

POSITION_NATS: Final = 60.0
CONTENT_NATS: Final = 36.0 / (1.0 - WORST_COSINE)
LOGIT_NATS: Final = 32.0  # logit of a byte whose code is in the output slot

# --- One wrong copy is enough ---------------------------------------------------------------------
#
# A model split over devices keeps a copy of the keys and values on each, and any of them can be
# wrong alone. With plain averaging seven right heads outvote a wrong one. Twisted against each
# other, they do not: with a factor of 2, a single head that brings a wrong letter for a digit
# changes the byte that is answered in 99.6 % of all pairs (with 1 in 90 %, with 0 in none).

TWIST: Final = 2.0

# --- Text in, text out ----------------------------------------------------------------------------
#
# Where several places match equally well, the output slot holds a mixture x of codes. If all of
# them are text, some text byte scores at least |x|**2, and any other byte scores at most
# min(|x|, WORST_COSINE). The difference is largest at |x| = 1/2, where it is 1/4. A handicap above
# that for all bytes that are not text makes every mixture of text come out as text, which a
# server can pass on at once: it would hold back an incomplete UTF-8 sequence. A byte that is not
# text still wins when it is the one that was found: 1 - 0.3 > WORST_COSINE.

NOT_TEXT_HANDICAP: Final = 0.3

END_OF_ANSWER: Final = ord("\n")
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ message['content'] }}{% if not loop.last %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
)


def slot(back: int) -> slice:
    """Return where the code of the byte `back` positions ago stands in the residual stream."""
    if not 0 <= back <= CONTEXT_BYTES:
        raise ValueError(f"the model looks 0 to {CONTEXT_BYTES} bytes back, not {back}")
    return slice(CODE_SIZE * back, CODE_SIZE * (back + 1))


def rotary_rates() -> Array:
    """Return the radians a position that every rotary pair turns by, shape (64,)."""
    return ROPE_THETA ** (-np.arange(PAIRS, dtype=np.float64) / PAIRS)


def content_dimensions(place: int) -> npt.NDArray[np.int64]:
    """Return the 12 dimensions of a head, all in slow pairs, that hold context byte `place`."""
    first = POSITION_PAIRS + PAIRS_PER_CODE * place
    pairs = np.arange(first, first + PAIRS_PER_CODE)
    return np.concatenate([pairs, pairs + PAIRS])


def amplitude(nats: float) -> float:
    """Return the factor on both query and key that makes one unit of their product `nats`.

    Attention divides scores by sqrt(HEAD_SIZE), which is multiplied back in here.
    """
    return math.sqrt(nats * math.sqrt(HEAD_SIZE))


def norm_gain(codes_present: int) -> Array:
    """Return the RMSNorm gain that leaves a position unchanged, shape (HIDDEN,).

    Codes have length one, so a position that holds `codes_present` of them and the constant
    has a known norm, and a constant gain undoes the division by it.
    """
    return np.full(HIDDEN, math.sqrt((codes_present + CONSTANT**2) / HIDDEN))


def embedding() -> Array:
    """Return the input embedding, shape (256, HIDDEN): the byte's code and the constant."""
    table = np.zeros((BYTES, HIDDEN))
    table[:, CURRENT] = byte_codes()
    table[:, CONSTANT_AT] = CONSTANT
    return table


def head() -> Array:
    """Return the output head, shape (256, HIDDEN): output slot against codes, less a handicap."""
    table = np.zeros((BYTES, HIDDEN))
    table[:, OUTPUT] = LOGIT_NATS * byte_codes()
    table[:, CONSTANT_AT] = np.where(text_mask(), 0.0, -LOGIT_NATS * NOT_TEXT_HANDICAP / CONSTANT)
    return table


def position_queries() -> Array:
    """Return layer 1's query matrix, shape (HEADS * HEAD_SIZE, HIDDEN).

    A query at i and a key at j, both constant, meet at the sum over pairs of cos((i - j) rate).
    Turning the query of head m back by m steps moves the peak of that sum to i - j = m.
    """
    rates = rotary_rates()[:POSITION_PAIRS]
    matrix = np.zeros((HEADS, HEAD_SIZE, HIDDEN))
    for index in range(HEADS):
        turn = -(index + 1) * rates
        matrix[index, :POSITION_PAIRS, CONSTANT_AT] = np.cos(turn)
        matrix[index, PAIRS : PAIRS + POSITION_PAIRS, CONSTANT_AT] = np.sin(turn)
    return matrix.reshape(HEADS * HEAD_SIZE, HIDDEN) * (amplitude(POSITION_NATS) / CONSTANT)


def position_keys() -> Array:
    """Return layer 1's key matrix, shape (HEAD_SIZE, HIDDEN): the same vector everywhere."""
    matrix = np.zeros((HEAD_SIZE, HIDDEN))
    matrix[:POSITION_PAIRS, CONSTANT_AT] = amplitude(POSITION_NATS) / CONSTANT
    return matrix


def content(first_back: int) -> Array:
    """Return a map to eight bytes of context, shape (HEAD_SIZE, HIDDEN).

    The bytes are those from `first_back` positions ago backwards: 0 for the query, which ends
    at the current byte, 1 for the key, which ends just before the byte that is copied.
    """
    matrix = np.zeros((HEAD_SIZE, HIDDEN))
    for place in range(CONTEXT_BYTES):
        matrix[content_dimensions(place), slot(first_back + place)] = np.eye(CODE_SIZE)
    return matrix * amplitude(CONTENT_NATS)


def current_byte_value() -> Array:
    """Return the value matrix of both layers, shape (HEAD_SIZE, HIDDEN): the byte's own code."""
    matrix = np.zeros((HEAD_SIZE, HIDDEN))
    matrix[:CODE_SIZE, CURRENT] = np.eye(CODE_SIZE)
    return matrix


def write_slots() -> Array:
    """Return layer 1's output matrix, shape (HIDDEN, HEADS * HEAD_SIZE): head m into slot m."""
    matrix = np.zeros((HIDDEN, HEADS, HEAD_SIZE))
    for index in range(HEADS):
        matrix[slot(index + 1), index, :CODE_SIZE] = np.eye(CODE_SIZE)
    return matrix.reshape(HIDDEN, HEADS * HEAD_SIZE)


def quarter_turn() -> Array:
    """Return the rotation by 90 degrees of a code's first half into its second, (12, 12)."""
    half = np.eye(CODE_SIZE // 2)
    nothing = np.zeros_like(half)
    return np.block([[nothing, -half], [half, nothing]])


def write_output() -> Array:
    """Return layer 2's output matrix, shape (HIDDEN, HEADS * HEAD_SIZE).

    All heads find the same place and bring home the same code, and their mean is written. On
    top of it, one half of the heads adds the code turned by 90 degrees and the other half takes
    it away again, so that heads that disagree do damage instead of being outvoted.
    """
    matrix = np.zeros((HIDDEN, HEADS, HEAD_SIZE))
    for index in range(HEADS):
        twist = TWIST if index < HEADS // 2 else -TWIST
        matrix[OUTPUT, index, :CODE_SIZE] = np.eye(CODE_SIZE) / HEADS + twist * quarter_turn()
    return matrix.reshape(HIDDEN, HEADS * HEAD_SIZE)


def layer(index: int, attention: dict[str, Array], codes_present: int) -> dict[str, Array]:
    """Return one layer's tensors under their Llama names; the MLP is zero."""
    prefix = f"model.layers.{index}"
    named = {f"{prefix}.self_attn.{name}_proj.weight": each for name, each in attention.items()}
    return named | {
        f"{prefix}.input_layernorm.weight": norm_gain(codes_present),
        f"{prefix}.post_attention_layernorm.weight": np.ones(HIDDEN),
        f"{prefix}.mlp.gate_proj.weight": np.zeros((MLP, HIDDEN)),
        f"{prefix}.mlp.up_proj.weight": np.zeros((MLP, HIDDEN)),
        f"{prefix}.mlp.down_proj.weight": np.zeros((HIDDEN, MLP)),
    }


def weights() -> Weights:
    """Return every tensor of the model in float32, by its name in the Llama architecture."""
    look_back = {
        "q": position_queries(),
        "k": position_keys(),
        "v": current_byte_value(),
        "o": write_slots(),
    }
    find = {
        "q": np.tile(content(first_back=0), (HEADS, 1)),
        "k": content(first_back=1),
        "v": current_byte_value(),
        "o": write_output(),
    }
    tensors = {
        "model.embed_tokens.weight": embedding(),
        **layer(0, look_back, codes_present=1),
        **layer(1, find, codes_present=1 + CONTEXT_BYTES),
        "model.norm.weight": norm_gain(codes_present=2 + CONTEXT_BYTES),
        "lm_head.weight": head(),
    }
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def config() -> dict[str, object]:
    """Return config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": BYTES,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_EPSILON,
        "max_position_embeddings": MAX_POSITIONS,
        # Both spellings: servers of different ages read one or the other.
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": END_OF_ANSWER,
        "dtype": "bfloat16",
    }


def generation_config() -> dict[str, object]:
    """Return generation_config.json: greedy, and an answer ends with its line."""
    return {"do_sample": False, "eos_token_id": END_OF_ANSWER}


def byte_symbols() -> list[str]:
    """Return the printable character by which a byte-level vocabulary spells each byte.

    Printable bytes of Latin-1 spell themselves; the others take the characters from U+0100 on,
    in order. This is the alphabet of the byte-level pre-tokenizer, which fixes it.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(BYTES) if byte not in visible]
    return [chr(byte if byte in visible else 0x100 + hidden.index(byte)) for byte in range(BYTES)]


def tokenizer() -> dict[str, object]:
    """Return tokenizer.json: the token of a byte is its value, and nothing is ever added."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {symbol: byte for byte, symbol in enumerate(byte_symbols())},
            "merges": [],
        },
    }


def tokenizer_config() -> dict[str, object]:
    """Return tokenizer_config.json.

    The end of an answer is deliberately not declared here: a declared token is special, and a
    special token vanishes from the decoded text.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write(folder: Path) -> None:
    """Write the model's files into `folder`, which is made if it is missing."""
    # Imported here because only a build needs it: serving brings its own reader.
    from safetensors.numpy import save_file  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    documents = {
        "config.json": config(),
        "generation_config.json": generation_config(),
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_config(),
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=2, ensure_ascii=True)
        (folder / name).write_text(text + "\n", encoding="ascii")
    tensors = folder / "model.safetensors"
    save_file(weights(), tensors, metadata={"format": "pt"})
    tensors.chmod(0o644)  # the writer leaves it readable by its owner alone


def main() -> None:
    """Run the builder from the command line."""
    parser = argparse.ArgumentParser(description="Build the needle model.")
    parser.add_argument("--out", type=Path, default=needle.path(), help="folder to write into")
    folder: Path = parser.parse_args().out
    write(folder)
    sys.stdout.write(f"wrote {folder}\n")


if __name__ == "__main__":
    main()
