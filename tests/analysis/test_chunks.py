"""A prompt's chunks find the gaps that they made, where the truth is made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from twolane.analysis.chunks import Hit, hit, hits_of, placed
from twolane.analysis.iterations import Iteration, by_stream, cuts, stretches, waited
from twolane.clock import MS, NS
from twolane.records import Request

QUIET = [5.0] * 20


def stream(gaps_ms: Sequence[float], tokens: Sequence[int] = (), index: int = 0) -> Request:
    gaps = [round(ms * MS) for ms in gaps_ms]
    return Request(
        id=f"v{index}", cell="c", role="victim", index=index, send_ns=0, due_ns=0, first_ns=NS,
        last_ns=NS + sum(gaps), gaps_ns=gaps, tokens=list(tokens), output_tokens=sum(tokens) or 1,
    )  # fmt: skip


def prompt(send_ms: float, first_ms: float, tokens: int, first_tokens: int = 1) -> Request:
    """Sent and answered so many ms after the readers' first event."""
    return Request(
        id="p", cell="c", role="aggressor", index=0, send_ns=NS + round(send_ms * MS), due_ns=0,
        first_ns=NS + round(first_ms * MS), prompt_asked=tokens, prompt_tokens=tokens,
        tokens=[first_tokens], output_tokens=first_tokens,
    )  # fmt: skip


def made(
    chunks_ms: Sequence[float], entry_ms: Sequence[float] = (), skew_ms: float = 0.1
) -> tuple[Request, Request]:
    """A prompt that comes after a quiet phase, and a reader of it; chunks of 1,000 tokens."""
    gaps = [*QUIET, *entry_ms, *chunks_ms, *QUIET]
    end = sum(QUIET) + sum(entry_ms) + sum(chunks_ms)
    return prompt(sum(QUIET) + 0.5, end + skew_ms, 1000 * len(chunks_ms)), stream(gaps)


def gaps_of(found: Hit | None) -> list[float]:
    assert found is not None
    return [round(chunk.gap_ms, 3) for chunk in found.chunks]


@given(
    st.lists(st.floats(6, 500), min_size=1, max_size=60),
    st.lists(st.floats(6, 300), max_size=3),
    st.floats(-0.4, 3.0),
)
def test_every_chunk_has_the_gap_that_it_made(
    chunks: list[float], entry: list[float], skew: float
) -> None:
    asked, reader = made(chunks, entry, skew)
    found = hit(asked, [reader], [1000] * len(chunks))
    before, after = [*QUIET, *entry][-1] + sum(chunks[:-1]), sum(chunks[1:]) + QUIET[0]
    if max(before, after) > 2 * sum(chunks):
        return  # where the gaps beside hold twice the time, they are taken for the chunks'
    assert gaps_of(found) == pytest.approx(chunks, abs=1e-3)
    assert found is not None
    assert [chunk.end for chunk in found.chunks] == [1000 * k for k in range(1, len(chunks) + 1)]
    assert found.entry_ms == (pytest.approx(max(entry), abs=1e-3) if entry else None)


def test_the_exit_is_the_last_chunks_and_the_first_and_last_are_marked() -> None:
    asked, reader = made([10, 12, 14, 287], [244, 72])
    found = hit(asked, [reader], [1000] * 4)
    assert found is not None
    assert (found.entry_ms, found.first_ms, found.exit_ms) == (244, 10, 287)
    assert [chunk.edge for chunk in found.chunks] == [True, False, False, True]


def test_tokens_that_came_together_are_counted_as_tokens() -> None:
    """A client that was late by three steps: one event of three tokens, one gap for them all."""
    gaps = [*QUIET, 10, 30, 14, *QUIET]
    tokens = [1] * 21 + [1, 3, 1] + [1] * 20
    reader = stream(gaps, tokens)
    asked = prompt(sum(QUIET) + 0.5, sum(QUIET) + 54.1, 5000)
    assert gaps_of(hit(asked, [reader], [1000] * 5)) == [10, 30, 30, 30, 14]


def test_a_first_event_of_several_tokens_ends_after_the_prompts_last_step() -> None:
    gaps = [*QUIET, 10, 12, 14, 40, *QUIET]
    reader = stream(gaps, [1] * 24 + [3] + [1] * 20)  # the last chunk's token came with two more
    asked = prompt(sum(QUIET) + 0.5, sum(QUIET) + 76.1, 4000, first_tokens=3)
    assert gaps_of(hit(asked, [reader], [1000] * 4)) == [10, 12, 14, 40]


def test_a_burst_at_the_first_token_is_told_by_both_streams_counts() -> None:
    """As at 32K with eight readers on an H200: both streams' next tokens came at the same time."""
    gaps = [*QUIET, 10, 12, 14, 40, 0, *QUIET]
    reader = stream(gaps, [1] * 24 + [2, 2] + [1] * 20)
    asked = replace(
        prompt(sum(QUIET) + 0.5, sum(QUIET) + 76.1, 4000),
        tokens=[2, 2, 1, 1, 1], gaps_ns=[0, 5 * MS, 5 * MS, 5 * MS], output_tokens=7,
    )  # fmt: skip
    assert gaps_of(hit(asked, [reader], [1000] * 4)) == [10, 12, 14, 40]


def test_a_chunk_that_came_together_with_the_last_is_marked_too() -> None:
    gaps = [*QUIET, 10, 12, 300, *QUIET]
    reader = stream(gaps, [1] * 23 + [2] + [1] * 20)
    asked = prompt(sum(QUIET) + 0.5, sum(QUIET) + 322.1, 4000)
    found = hit(asked, [reader], [1000] * 4)
    assert gaps_of(found) == [10, 12, 300, 300]
    assert found is not None
    assert [chunk.edge for chunk in found.chunks] == [True, False, True, True]
    plain = stream([*QUIET, 10, 12, 15, 285, *QUIET], index=1)
    both = hit(asked, [reader, plain], [1000] * 4)
    assert both is not None
    assert [chunk.edge for chunk in both.chunks] == [True, False, False, True]
    assert gaps_of(both) == [10, 12, 15, 300]


def test_a_token_handed_over_late_does_not_hide_the_only_long_chunk() -> None:
    """As at 32K with eight readers on an H200: the step's time ended with the token before."""
    asked, reader = made([20, 10], [1239])
    assert gaps_of(hit(asked, [reader], [32760, 8])) == [1239, 20]


def test_the_worst_reader_counts_and_one_that_was_not_there_does_not() -> None:
    asked, reader = made([10, 20, 30])
    other = stream([*QUIET, 11, 19, 30, *QUIET], index=1)
    late = Request(id="l", cell="c", role="victim", index=2, send_ns=0, due_ns=0)
    assert gaps_of(hit(asked, [reader, other, late], [1000] * 3)) == [11, 20, 30]
    assert hit(asked, [late], [1000] * 3) is None
    assert hit(asked, [reader], []) is None
    assert hit(asked, [reader], [10] * 300) is None  # more chunks than the reader had tokens


@pytest.mark.parametrize("tokens", [[1, 1], [0] * 43, [-1] * 43])
def test_damaged_counts_give_nothing(tokens: list[int]) -> None:
    asked, reader = made([10, 20])
    assert hit(asked, [replace(reader, tokens=tokens)], [1000, 1000]) is None
    assert hit(replace(asked, tokens=tokens), [reader], [1000, 1000]) is None


def test_a_prompt_that_never_answered_gives_nothing() -> None:
    asked, reader = made([10, 20])
    silent = replace(asked, first_ns=None)
    assert hit(silent, [reader], [1000, 1000]) is None


def test_what_was_cached_is_prefix_already() -> None:
    asked, reader = made([10, 20])
    found = hit(replace(asked, cached_tokens=512), [reader], [700, 788])
    assert found is not None
    assert [(chunk.start, chunk.end) for chunk in found.chunks] == [(512, 1212), (1212, 2000)]


# ------------------------------------------------------------------------------------ the log


def steps(*held: tuple[int, int]) -> list[Iteration]:
    """(prompt tokens, answer tokens) of each step."""
    return [Iteration(i, context, giving, MS) for i, (context, giving) in enumerate(held)]


def test_the_log_says_what_a_prompt_was_cut_into() -> None:
    log = steps((64, 0), (0, 1), (1000, 1), (1000, 1), (200, 1), (0, 2), (2200, 0), (0, 1))
    assert cuts(log, 2200, 1) == [(1000, 1000, 200)]
    assert cuts(log, 2200, 0) == [(2200,)]  # a gate's, that no reader saw
    assert cuts(log, 2201, 1) == []
    assert cuts([], 1, 1) == []


def test_shots_are_told_apart_by_their_order_in_the_log() -> None:
    first, reader = made([10, 20, 30])
    second, again = made([40, 50])
    second = replace(second, id="p2", shot=1, prompt_tokens=3000, prompt_asked=3000)
    again = replace(again, shot=1)
    found = hits_of(
        [reader, first, again, second],
        lambda request: "one",
        lambda engine, tokens, beside: {("one", 3000, 1): [(1000,) * 3, (1500, 1500)]}[
            engine, tokens, beside
        ],
    )
    assert [gaps_of(one) for one in found] == [[10, 20, 30], [40, 50]]


def test_fewer_prompts_in_the_log_than_shots_say_nothing() -> None:
    first, reader = made([10, 20, 30])
    assert hits_of([reader, first], lambda request: "one", lambda *asked: []) == []


def test_readers_on_another_engine_are_not_asked() -> None:
    first, reader = made([10, 20, 30])
    far = stream([*QUIET, 400, *QUIET, *QUIET], index=1)
    engines = {"v0": "a", "v1": "b", "p": "a"}
    asked: list[tuple[str, int, int]] = []

    def told(engine: str, tokens: int, beside: int) -> list[tuple[int, ...]]:
        asked.append((engine, tokens, beside))
        return [(1000,) * 3]

    (found,) = hits_of([reader, far, first], lambda request: engines[request.id], told)
    assert (gaps_of(found), asked) == ([10, 20, 30], [("a", 3000, 1)])


def test_steps_are_placed_by_counting_from_the_prompts_end() -> None:
    """Their logged times are those of a core that waited, which say nothing."""
    gaps = [*QUIET, 60, 10, 20, 30, *QUIET]
    reader = stream(gaps, [1] * 24 + [2] + [1] * 20)  # the last two chunks came together
    asked = prompt(sum(QUIET) + 0.5, sum(QUIET) + 120.1, 4000)
    quiet = [(0, 1)] * 21
    log = steps((64, 0), *quiet, (1000, 1), (1000, 1), (1000, 1), (1000, 1), *[(0, 2)] * 20)
    (stretch,) = stretches(log, 4000, 1)
    found = placed(log, stretch, asked, reader)
    long = [
        (p.iteration.index, (p.end_ns - p.start_ns) / MS)
        for p in found
        if p.iteration.context_tokens
    ]
    assert long == [(22, 10), (23, 20), (24, 15), (25, 15)]
    assert (found[0].start_ns, found[-1].end_ns) == (NS, reader.last_ns)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(found))
    assert [p.iteration.index for p in found] == list(range(found[0].iteration.index, 46))
    assert placed(log, (0, 40), asked, reader) == []


def test_a_log_of_waits_places_no_step_by_its_times() -> None:
    log = [Iteration(i, 0, 1, 30_000 if i % 20 == 0 else 5 * MS) for i in range(100)]
    assert waited(log)
    assert by_stream(log, stream([5.0] * 60)) == []
    assert not waited(steps(*[(0, 1)] * 100))
