"""An engine's steps find their place on the run's clock by what they gave, or have none."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from twolane.analysis.iterations import STRETCH, Iteration, by_prefill, by_stream, read
from twolane.clock import MS, NS
from twolane.records import Request

LINE = (
    "(APIServer pid=1) INFO 11-29 18:25:57 [loggers.py:199] Engine 000: Iteration({i}): "
    "1 context requests, {c} context tokens, 1 generation requests, {g} generation tokens, "
    "iteration elapsed time: {ms:.2f} ms, CPU KV cache usage: 0.1%\n"
)


def stream(first_ns: int, gaps_ms: list[float]) -> Request:
    gaps = [round(ms * MS) for ms in gaps_ms]
    return Request(
        id="r", cell="c", role="victim", index=0, send_ns=0, due_ns=0, first_ns=first_ns,
        last_ns=first_ns + sum(gaps), gaps_ns=gaps, output_tokens=len(gaps) + 1,
    )  # fmt: skip


def steps(lengths_ms: list[float], context: dict[int, int] | None = None) -> list[Iteration]:
    held = context or {}
    return [Iteration(i, held.get(i, 0), 1, round(ms * MS)) for i, ms in enumerate(lengths_ms)]


def test_a_log_tells_its_iterations_among_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "e.log"
    log.write_text(
        "INFO started\n" + LINE.format(i=7, c=2048, g=2, ms=951.25) + "INFO:  GET /metrics\n"
    )
    assert read(log) == (Iteration(7, 2048, 2, round(951.25 * MS)),)
    assert read(tmp_path / "absent.log") == ()
    log.write_text("nothing\n")
    assert read(log) == ()


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(0, 40), st.integers(0, 40))
def test_a_stream_finds_its_steps_with_a_stall_among_them(
    seed: int, before: int, after: int
) -> None:
    rng = random.Random(seed)
    lengths = [rng.uniform(5, 7) for _ in range(before + 200 + after)]
    stall = before + 60 + seed % 60
    lengths[stall], lengths[stall - 1] = 951.0, 255.0
    mine = lengths[before : before + 200]
    gaps = [ms + rng.uniform(0.1, 0.6) for ms in mine]
    placed = by_stream(steps(lengths, {stall: 2048}), stream(NS, gaps))
    assert len(placed) == 200
    assert [p.iteration.index for p in placed] == list(range(before, before + 200))
    (long,) = [p for p in placed if p.iteration.context_tokens]
    ends = NS + sum(round(ms * MS) for ms in gaps[: stall - before + 1])
    assert long.end_ns == ends
    assert all(a.end_ns <= b.end_ns for a, b in pairwise(placed))


def test_a_step_that_gave_the_stream_nothing_ends_where_the_next_began() -> None:
    made = steps([5.0] * 20 + [400.0] + [5.0] * 20)
    made[20:20] = [Iteration(99, 2048, 0, 300 * MS)]
    gaps = [5.2] * 20 + [700.0] + [5.2] * 19
    placed = by_stream(made, stream(0, gaps))
    index = next(i for i, p in enumerate(placed) if p.iteration.index == 99)
    assert placed[index].end_ns == placed[index + 1].start_ns


def test_a_long_log_is_searched_a_stretch_at_a_time() -> None:
    rng = random.Random(5)
    lengths = [rng.uniform(5, 7) for _ in range(2 * STRETCH + 500)]
    before = STRETCH - 40  # the place lies across two stretches
    placed = by_stream(steps(lengths), stream(0, lengths[before : before + 150]))
    assert placed[0].iteration.index == before


def test_a_log_of_something_else_gives_no_place() -> None:
    assert by_stream(steps([5.0] * 100), stream(0, [50.0] * 40)) == []
    assert by_stream([], stream(0, [5.0] * 40)) == []
    assert by_stream(steps([5.0] * 10), stream(0, [5.0] * 40)) == []


def test_a_prefills_steps_are_those_with_its_tokens_that_took_its_time() -> None:
    made = [
        Iteration(0, 6000, 0, 9000 * MS),  # the same length, but another time
        Iteration(1, 512, 1, 100 * MS),
        Iteration(2, 2048, 0, 500 * MS),
        Iteration(3, 2048, 0, 700 * MS),
        Iteration(4, 1904, 0, 800 * MS),
        Iteration(5, 0, 1, 6 * MS),
    ]
    placed = by_prefill(made, 6000, 2003 * MS, 5 * NS)
    assert [p.iteration.index for p in placed] == [2, 3, 4]
    assert placed[-1].end_ns == 5 * NS
    assert placed[0].start_ns == 5 * NS - 2000 * MS
    assert by_prefill(made, 6001, 2003 * MS, 5 * NS) == []
