"""The frontier and c*(p), where the truth is a line: gap = 20 ms + budget x 0.1 ms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.made import BUSY, arm, evidence, points, shot

from twolane.analysis.arms import Arm
from twolane.analysis.evidence import Evidence
from twolane.analysis.frontier import GAP, TTFT, BudgetLimit, budget_limits, frontier, rule

CELL = shot(6000)


def line(budgets: list[int], floor: float = 20.0, slope: float = 0.1) -> Evidence:
    arms = [arm(f"b{budget}", budget) for budget in budgets]
    gaps = [points(a.name, CELL, GAP, [floor + slope * (a.budget or 0)]) for a in arms]
    return evidence(arms, *gaps)


def limit(known: Evidence, limit_ms: float) -> BudgetLimit:
    (found,) = budget_limits(known, [CELL], [limit_ms])
    return found


def test_the_largest_budget_that_keeps_the_limit_and_the_line_between() -> None:
    found = limit(line([256, 512, 2048, 8192]), 100.0)
    assert (found.outcome, found.held, found.exceeded) == ("bracketed", 512, 2048)
    assert found.estimate == pytest.approx(800)
    assert found.floor_ms == pytest.approx(20)


@given(
    st.floats(1, 80), st.floats(0.001, 1), st.floats(60, 400),
    st.lists(st.sampled_from([2**k for k in range(5, 16)]), min_size=2, unique=True),
)  # fmt: skip
def test_no_budget_that_is_called_held_is_over_the_limit(
    floor: float, slope: float, asked: float, budgets: list[int]
) -> None:
    found = limit(line(budgets, floor, slope), asked)
    keeping = [b for b in budgets if floor + slope * b <= asked]
    assert found.held == max(keeping, default=None)
    if found.estimate is not None and found.held and found.exceeded:
        assert found.held <= found.estimate <= found.exceeded
        assert floor + slope * found.estimate == pytest.approx(asked)


def test_where_every_measured_budget_keeps_it_a_larger_one_is_missing() -> None:
    found = limit(line([256, 512]), 250.0)
    assert (found.outcome, found.held) == ("held", 512)
    assert found.missing == "an arm with a budget above 512"


def test_where_the_smallest_does_not_keep_it_a_smaller_one_may() -> None:
    found = limit(line([1024, 2048]), 100.0)
    assert found.outcome == "none measured"
    assert found.missing == "an arm with a budget below 1,024"


def test_no_static_budget_would_where_the_floor_is_over_the_limit() -> None:
    assert limit(line([256, 2048], floor=150.0), 100.0).outcome == "none would"


def test_no_static_budget_would_where_the_pause_does_not_depend_on_it() -> None:
    """As at a million tokens on two H200s: 407 ms at 2,048 and 381 ms at 8,192."""
    arms = [arm("small", 2048), arm("large", 8192)]
    known = evidence(arms, points("small", CELL, GAP, [407.0]), points("large", CELL, GAP, [381.0]))
    found = limit(known, 100.0)
    assert (found.outcome, found.floor_ms) == ("none would", 381.0)


def test_one_budget_cannot_show_that_none_would() -> None:
    assert limit(line([2048], floor=300.0), 100.0).outcome == "none measured"


def test_one_bad_block_breaks_a_budget() -> None:
    arms = [arm("b256", 256), arm("b512", 512)]
    known = evidence(
        arms, points("b256", CELL, GAP, [50, 60]), points("b512", CELL, GAP, [60, 60, 140])
    )
    found = limit(known, 100.0)
    assert (found.held, found.exceeded, found.runs) == (256, 512, 2)


def test_a_budget_that_holds_above_one_that_does_not_is_luck() -> None:
    arms = [arm("b256", 256), arm("b512", 512), arm("b1024", 1024)]
    gaps = {"b256": 50.0, "b512": 140.0, "b1024": 90.0}
    known = evidence(arms, *(points(name, CELL, GAP, [gap]) for name, gap in gaps.items()))
    assert limit(known, 100.0).held == 256


def test_coded_points_decide_nothing_and_are_named() -> None:
    arms = [arm("b256", 256), arm("b512", 512)]
    known = evidence(arms, points("b256", CELL, GAP, [50], BUSY), points("b512", CELL, GAP, [60]))
    found = limit(known, 100.0)
    assert (found.held, found.coded, found.gaps_ms) == (512, (256,), ((512, 60.0),))
    nothing = evidence(arms, points("b256", CELL, GAP, [50], BUSY))
    assert limit(nothing, 100.0).outcome == "cannot tell"


def test_arms_that_differ_in_more_than_the_budget_are_no_series() -> None:
    eager = Arm("eager", "copies", "copies", 8192, 2, 2, others=("--enforce-eager",))
    known = evidence(
        [arm("b256", 256), eager],
        points("b256", CELL, GAP, [50]),
        points("eager", CELL, GAP, [90]),
    )
    assert [one.held for one in budget_limits(known, [CELL], [100.0])] == [256, 8192]


def test_the_frontier_marks_who_is_beaten_in_both() -> None:
    arms = [arm("small", 256), arm("large", 2048), arm("bad", 512), arm("pd", 2048, "split")]
    figures = {"small": (100, 2000), "large": (900, 1800), "bad": (500, 2100), "pd": (20, 2200)}
    known = evidence(
        arms,
        *(points(name, CELL, GAP, [gap]) for name, (gap, _) in figures.items()),
        *(points(name, CELL, TTFT, [ttft]) for name, (_, ttft) in figures.items()),
    )
    places = frontier(known, CELL, None)
    assert [place.arm.name for place in places] == ["small", "bad", "large", "pd"]
    assert [place.efficient for place in places] == [True, False, True, True]


def test_a_coded_arm_stands_on_the_frontier_and_beats_nobody() -> None:
    arms = [arm("small", 256), arm("pd", 2048, "split")]
    known = evidence(
        arms,
        points("small", CELL, GAP, [100]),
        points("small", CELL, TTFT, [2000]),
        points("pd", CELL, GAP, [20], BUSY),
        points("pd", CELL, TTFT, [1000], BUSY),
    )
    small, split = frontier(known, CELL, None)
    assert (small.efficient, split.efficient, split.gap.middle) == (True, False, 20)
    assert split.gap.codes == ("BUSY",)


def test_a_smaller_budget_that_fails_where_a_larger_one_holds_tells_nothing() -> None:
    """As on the needle model at 524,288 tokens: 288 ms at 1,024 and 204 at most above."""
    ruled = rule([(1024, 288.0), (2048, 189.0), (8192, 171.0), (32768, 204.0)], 250.0)
    assert (ruled.outcome, ruled.held) == ("cannot tell", None)
    assert rule([(1024, 288.0), (2048, 289.0)], 250.0).outcome in ("none measured", "none would")
    assert rule([(1024, 99.0), (2048, 120.0), (8192, 98.0)], 100.0).held == 1024
