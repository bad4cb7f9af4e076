"""c*(p) inside a prompt, where the truth is made: gap = 4 ms + c * (a + b * p)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.analysis.made import arm

from twolane.analysis.chunks import Chunk, Hit
from twolane.analysis.prefixes import Peak, Prefixes, Shots, bands, curve, peaks, prefixes

A, B = 0.01, 1e-7  # ms a token, and ms a token and token of prefix
N = 131_072


def gap(budget: int, prefix: float) -> float:
    return 4 + budget * (A + B * prefix)


def whole(budget: int, n: int = N, entry: float = 40.0, leave: float = 300.0) -> Hit:
    """A prompt of `n` cut by `budget`; its first and last gap hold the entry and the exit too."""
    ends = [*range(budget, n, budget), n]
    starts = [0, *ends[:-1]]
    last = len(ends) - 1
    extra = {0: entry, last: leave}
    chunks = [
        Chunk(a, b, gap(b - a, (a + b) / 2) + extra.get(k, 0.0), edge=k in (0, last))
        for k, (a, b) in enumerate(zip(starts, ends, strict=True))
    ]
    return Hit(tuple(chunks), entry)


def shots(budget: int, *hits: Hit, codes: Sequence[str] = (), dummy: bool = False) -> Shots:
    return Shots(f"b{budget}", 0, 1, N, hits or (whole(budget),), tuple(codes), dummy)


def found(*some: Shots, limits: Sequence[float] = (100.0, 250.0)) -> Prefixes:
    arms = {f"b{b}": arm(f"b{b}", b) for b in (1024, 2048, 8192, 32768)}
    (one,) = prefixes(some, arms, limits)
    return one


# ------------------------------------------------------------------------------------- bands


@example(32_768)
@given(st.integers(1, 3_000_000))
def test_bands_are_powers_of_two_up_to_the_prompt(n: int) -> None:
    tops = bands(n)
    assert tops[-1] == n
    assert list(tops) == sorted(set(tops))
    assert all(top & (top - 1) == 0 for top in tops[:-1])
    assert n <= 8192 * 4 or tops[0] == 8192
    assert len(tops) >= min(4, n.bit_length())


def test_bands_of_the_usual_lengths() -> None:
    assert bands(131_072) == (8192, 16384, 32768, 65536, 131_072)
    assert bands(1_000_000)[-2:] == (524_288, 1_000_000)
    assert bands(6000) == (1024, 2048, 4096, 6000)


@given(st.sampled_from([256, 1000, 1024, 8191, 32768, 200_000]), st.integers(300, 300_000))
def test_every_band_of_a_prompt_has_a_peak(budget: int, n: int) -> None:
    one = whole(budget, n)
    some = peaks([one], bands(n))
    assert tuple(some) == bands(n)
    every = [chunk.gap_ms for chunk in one.chunks]
    assert all(peak.gap_ms in every for peak in some.values())
    assert max(every) >= max(peak.gap_ms for peak in some.values())


def test_the_first_and_the_last_chunk_speak_only_where_no_other_does() -> None:
    small, large = peaks([whole(1024)], bands(N)), peaks([whole(32768)], bands(N))
    assert small[N] == Peak(gap(1024, N - 1.5 * 1024), edge=False)
    assert small[8192].gap_ms == pytest.approx(gap(1024, 8192 - 512))
    assert large[8192] == large[16384] == large[32768]  # one chunk covers the three
    assert (large[32768].edge, large[65536].edge) == (True, False)
    assert large[32768].gap_ms == pytest.approx(gap(32768, 16384) + 40)


def test_a_prompt_in_one_chunk_is_its_own_gap_everywhere() -> None:
    some = peaks([whole(200_000)], bands(N))
    assert {peak.gap_ms for peak in some.values()} == {whole(200_000).exit_ms}
    assert all(peak.edge for peak in some.values())


def test_a_curve_has_the_worst_chunk_of_each_part_of_an_octave() -> None:
    points = curve([whole(1024), whole(1024)])
    assert len(points) < 40
    assert all(y == pytest.approx(gap(1024, x - 512)) for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


# -------------------------------------------------------------------------------------- grid


def truth(limit: float, top: int, budgets: Sequence[int]) -> int | None:
    keeping = [b for b in budgets if peaks([whole(b)], bands(N))[top].gap_ms <= limit]
    return max(keeping, default=None)


@given(
    st.lists(st.sampled_from([1024, 2048, 8192, 32768]), min_size=1, unique=True),
    st.floats(5, 2000),
)
def test_the_largest_budget_that_holds_is_found_in_every_band(
    budgets: list[int], limit: float
) -> None:
    one = found(*map(shots, budgets), limits=[limit])
    for held in one.grid:
        assert held.held == truth(limit, held.prefix, budgets)
        assert held.gap_ms == dict(held.gaps_ms)[held.held or min(budgets)]
        if held.held is None:
            assert held.outcome in ("none measured", "none would")
            assert held.smallest == min(budgets)


def test_where_the_smallest_does_not_hold_the_line_says_which_would() -> None:
    """Gaps lie on lines through 4 ms: the budget that would give the limit is known."""
    one = found(shots(8192), shots(32768), limits=[50.0])
    (held,) = [held for held in one.grid if held.prefix == N]
    assert held.outcome == "none measured"
    assert held.estimate is not None
    assert 0 < held.estimate < 8192


def test_no_static_budget_where_the_gap_does_not_depend_on_it() -> None:
    flat = [Hit(tuple(Chunk(k * c, (k + 1) * c, 400.0) for k in range(N // c)), 1.0)
            for c in (1024, 8192)]  # fmt: skip
    one = found(shots(1024, flat[0]), shots(8192, flat[1]))
    assert {held.outcome for held in one.grid} == {"none would"}


def test_one_bad_shot_in_any_block_breaks_a_budget() -> None:
    bad = whole(2048)
    broken = Hit((*bad.chunks[:20], Chunk(40_960, 43_008, 251.0), *bad.chunks[21:]), 1.0)
    one = found(shots(1024), shots(2048, whole(2048), broken))
    told = {(h.prefix, h.limit_ms): h.held for h in one.grid}
    assert told[32768, 250.0] == 2048
    assert told[65536, 250.0] == 1024
    assert told[N, 250.0] == 2048


def test_coded_points_decide_nothing_and_are_named() -> None:
    one = found(shots(1024), shots(2048, codes=["BUSY"]))
    assert {held.held for held in one.grid} == {1024}
    assert one.why == ("b2048: coded BUSY",)
    (nothing,) = {h.outcome for h in found(shots(1024, codes=["BUSY"])).grid}
    assert nothing == "cannot tell"


def test_made_up_weights_give_figures_and_no_verdict() -> None:
    one = found(*(shots(b, codes=["NEEDLE"], dummy=True) for b in (1024, 2048)))
    assert not one.verdict
    assert one.grid[0].held == 2048
    busy = found(shots(1024, codes=["NEEDLE", "BUSY"], dummy=True))
    assert (busy.verdict, busy.lines) == (True, ())
    true = found(shots(1024, codes=["NEEDLE"]))  # a real model whose needles were missed
    assert true.lines == ()


def test_a_log_that_tells_nothing_is_the_reason() -> None:
    silent = Shots("b1024", 0, 1, N, why="its engines tell no iterations")
    one = found(silent)
    assert {held.why for held in one.grid} == {"b1024: its engines tell no iterations"}


def test_splits_have_no_chunk_beside_their_readers() -> None:
    arms = {"pd": arm("pd", 2048, "split")}
    assert prefixes([Shots("pd", 0, 1, N, (whole(2048),))], arms) == []


def test_each_number_of_readers_is_told_apart_and_prompts_together() -> None:
    arms = {"b1024": arm("b1024", 1024)}
    some = [
        Shots("b1024", 0, victims, n, (whole(1024, n),)) for victims in (1, 8) for n in (32768, N)
    ]
    one, eight = prefixes(some, arms)
    assert (one.victims, eight.victims, one.prompts) == (1, 8, (32768, N))
    assert [(e.prompt, e.exit_ms > 300, e.entry_ms) for e in one.edges] == [
        (32768, True, 40), (N, True, 40)
    ]  # fmt: skip
    assert one.lines[0].runs == 1
