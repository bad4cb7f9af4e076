"""Cells against a server whose tokens are not ours: exact lengths, and a known share cached."""

from __future__ import annotations

import dataclasses
from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden_engine import GoldenEngine, Pace, Vocabulary, serve
from tests.load.vocabularies import Pairs, Trained

from twolane.analysis.turns import cached_share, expected_share
from twolane.config.traces import BLOCK as BLOCK_OF_TRACES
from twolane.errors import QuestionError
from twolane.gates import conversation, needle
from twolane.gates.validity import judge
from twolane.load import exact, prompts
from twolane.load.driver import CellRun, Target, drive, form_of, words_of
from twolane.load.orders import Ask, Words
from twolane.load.words import COMMON
from twolane.records import (
    AnyCell,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    Request,
)

BLOCK = 16
RAMP = RampCell(id="ramp 1200", prompt=1200, users=2, turns=4, after=600, output=24)


@cache
def vocabulary(name: str) -> Vocabulary:
    return Pairs() if name == "pairs" else Trained([needle.filler(20_000, 1)])


KINDS = pytest.mark.parametrize("kind", ["pairs", "trained"])


def pace(kind: str, *, tells_ids: bool = True) -> Pace:
    return Pace(
        ttft_s=0.002, gap_s=0.002, cache_block=BLOCK, knows=True,
        vocabulary=vocabulary(kind), tells_ids=tells_ids,
    )  # fmt: skip


async def driven(
    cell: AnyCell, at: Pace, answered: list[Request] | None = None
) -> tuple[CellRun, list[Request], GoldenEngine]:
    seen: list[Request] = []
    async with serve(at) as (engine, port):
        target = Target("127.0.0.1", port, "golden", patience_s=5.0, context=100_000)
        target = dataclasses.replace(target, form=await form_of(target))
        assert target.form == "ids"
        run = await drive(
            cell, target, seed=1, record=seen.append, progress=lambda _: None,
            answered=answered or (),
        )  # fmt: skip
    return run, seen, engine


@KINDS
def test_tokens_merge_across_seams(kind: str) -> None:
    """Else the tests below prove nothing."""
    words = vocabulary(kind)
    text = needle.filler(200, 3)
    cuts = [words.encode(text[:at]) + words.encode(text[at:]) for at in range(1, 200)]
    assert sum(apart != words.encode(text) for apart in cuts) > 50
    assert all(words.decode(apart) == text for apart in cuts)
    assert len(words.encode(text)) < 0.8 * len(text)


# ------------------------------------------------------------------------------------------ ramp


@KINDS
async def test_a_ramps_turns_are_exact_and_their_cached_share_is_known(kind: str) -> None:
    run, seen, _ = await driven(RAMP, pace(kind))
    assert run.problem is None
    turns = [r for r in seen if r.role == "turn"]
    assert len(turns) == 8
    for turn in turns:
        assert turn.prompt_tokens == conversation.lengths(1200, 4)[turn.index]
        assert turn.needle == "ok"
        assert len(turn.answer_ids) == 24
        assert turn.history == (turn.prompt_tokens - 300 + 24 if turn.index else 0)
        assert cached_share(turn) == expected_share(turn, BLOCK)
    assert max(cached_share(turn) or 0 for turn in turns) > 0.7
    assert judge(RAMP, seen, run.window_ns, {}, {}, {}, block_size=BLOCK) == []


@KINDS
async def test_an_answer_goes_back_as_the_tokens_it_was_made_of(kind: str) -> None:
    """Its text alone would come back as others: the letters that it was made of would merge."""
    _, seen, engine = await driven(RAMP, pace(kind))
    first = next(r for r in seen if (r.user, r.index) == (0, 0))
    assert vocabulary(kind).encode(first.text or "") != first.answer_ids
    asked = [text for text in engine.cached if len(text) == 300 + 23]
    said = "".join(map(chr, first.answer_ids[:-1]))
    assert asked[0].endswith(said)
    assert any(text.startswith(asked[0]) for text in engine.cached if len(text) > 600)


async def test_where_no_ids_are_told_lengths_are_exact_all_the_same() -> None:
    run, seen, _ = await driven(RAMP, pace("pairs", tells_ids=False))
    assert run.problem is None
    for turn in (r for r in seen if r.role == "turn"):
        assert turn.answer_ids == []
        assert turn.prompt_tokens == conversation.lengths(1200, 4)[turn.index]
        # Of the answer nothing is certain, so only what was asked before must be cached.
        assert turn.history == (turn.history_prompt + 1 if turn.index else 0)


async def test_a_ramp_that_was_cut_goes_on_with_the_same_ids() -> None:
    _, whole, _ = await driven(RAMP, pace("pairs"))
    kept = sorted((r for r in whole if r.index < 2), key=lambda r: (r.user, r.index))
    run, rest, _ = await driven(RAMP, pace("pairs"), kept)
    assert run.problem is None

    def said(requests: list[Request]) -> dict[tuple[int, int], tuple[int | None, list[int], int]]:
        turns = [r for r in requests if r.role == "turn"]
        return {(r.user, r.index): (r.prompt_tokens, r.answer_ids, r.history) for r in turns}

    assert said(kept) | said(rest) == said(whole)
    assert judge(RAMP, rest, run.window_ns, {}, {}, {}, block_size=BLOCK) == []


# ----------------------------------------------------------------------------------- other cells

OTHERS: list[tuple[AnyCell, dict[str, int]]] = [
    (FreshCell(id="fresh", prompt=777, output=4, requests=2), {"fresh": 777}),
    (NeedleCell(id="needle 555", prompt=555), {"needle": 555}),
    (GridCell(id="grid", users=2, prompt=123, output=4, requests=4), {"grid": 123}),
    (
        MixCell(id="mix", prompt=901, share=0.3, rate=40, short=77, output=4, seconds=0.5),
        {"short": 77, "long": 901},
    ),
    (
        InterferenceCell(
            id="i", victims=2, prompt=888, victim_prompt=99, quiet_s=0.05, recovery_s=0.05,
            null_s=0.02,
        ),
        {"victim": 99, "aggressor": 888},
    ),
]  # fmt: skip


@KINDS
@pytest.mark.parametrize(("cell", "lengths"), OTHERS, ids=[cell.id for cell, _ in OTHERS])
async def test_prompts_of_every_cell_are_exact(
    kind: str, cell: AnyCell, lengths: dict[str, int]
) -> None:
    _, seen, _ = await driven(cell, pace(kind))
    found = {r.role: r.prompt_tokens for r in seen if r.role in lengths and r.status == 200}
    assert found == lengths
    assert all(r.prompt_tokens == lengths[r.role] for r in seen if r.role in lengths)


# ------------------------------------------------------------------------------------------ chat

TEMPLATE = "<system>\nbe brief\n<user>\n{}\n<answer>\n"


@cache
def worded() -> Vocabulary:
    """As large models have it: common words are a token, also at a line's begin."""
    lines = [" ".join(COMMON), *(f"\n{word}\n" for word in COMMON)] * 20
    return Trained([*lines, needle.filler(5_000, 1)], size=3000)


@pytest.mark.parametrize(("cell", "lengths"), OTHERS, ids=[cell.id for cell, _ in OTHERS])
@pytest.mark.parametrize("of", ["words", "letters"])
async def test_a_chats_prompts_are_exact_inside_its_template(
    of: str, cell: AnyCell, lengths: dict[str, int]
) -> None:
    words = worded() if of == "words" else None
    at = Pace(ttft_s=0.002, gap_s=0.002, template=TEMPLATE, vocabulary=words)
    seen: list[Request] = []
    async with serve(at) as (_, port):
        target = Target("127.0.0.1", port, "golden", endpoint="chat", patience_s=5.0)
        found = await words_of(target)
        assert found is not None
        assert (found.joint == " ") == (of == "words")
        target = dataclasses.replace(target, words=found, context=100_000)
        await drive(cell, target, seed=1, record=seen.append, progress=lambda _: None)
    measured = [r for r in seen if r.role in lengths]
    assert {r.role for r in measured} == set(lengths)
    assert all(r.prompt_tokens == lengths[r.role] for r in measured)


async def test_without_a_text_as_long_as_its_parts_nothing_is_claimed() -> None:
    async with serve(Pace(vocabulary=Pairs())) as (_, port):
        target = Target("127.0.0.1", port, "golden", endpoint="chat")
        assert await words_of(target) is None
    async with serve(Pace(vocabulary=worded())) as (_, port):
        target = Target("127.0.0.1", port, "golden", endpoint="completions")
        assert await words_of(target) is None


def test_prompts_of_words_are_their_own_and_share_only_their_blocks() -> None:
    words = Words(COMMON, " ", 7)
    own = [Ask(key=0, id="", cell="c", role="grid", index=i, prompt=60, output=1) for i in (1, 2)]
    first, second = (str(prompts.of(ask, 1, "text", words)).split(" ") for ask in own)
    assert len(first) == len(second) == 53
    assert first[:16] != second[:16]
    shared = [
        Ask(key=0, id="", cell="c", role="trace", index=i, prompt=600, output=1, blocks=(5,))
        for i in (1, 2)
    ]
    one, other = (str(prompts.of(ask, 1, "text", words)).split(" ") for ask in shared)
    assert one[:BLOCK_OF_TRACES] == other[:BLOCK_OF_TRACES]
    assert one[BLOCK_OF_TRACES:] != other[BLOCK_OF_TRACES:]
    short = msgspec.structs.replace(own[0], prompt=20)
    with pytest.raises(QuestionError, match="13 tokens"):
        prompts.of(short, 1, "text", words)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["pairs", "trained"]), st.integers(250, 900), st.integers(2, 5), st.integers()
)
def test_each_turn_holds_its_facts_and_its_question(
    kind: str, step: int, turns: int, seed: int
) -> None:
    """A turn as ids, whatever its tokens: what was planted and what is asked stays whole."""
    words = vocabulary(kind)
    for turn in conversation.make(step * turns, turns, 16, abs(seed)):
        ids = exact.fitted(turn.text, step, words.encode)
        text = words.decode(ids)
        assert len(ids) == step
        assert text.endswith(f"\n{turn.key}=")
        facts = [line for line in turn.text.split("\n") if line.startswith("Remember: ")]
        assert all(f"\n{fact}\n" in text for fact in facts)
