"""Verdicts: found where a difference was planted, withheld where none was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from tests.report.synthetic import make

from twolane.analysis.compare import Comparison, Point, compare, greedy_equality, interval
from twolane.analysis.results import load
from twolane.records import Code

CODE = Code(code="CACHE", why="12 points of cache")


def points(
    arm: str, values: Sequence[float | None], codes: dict[int, Code] | None = None
) -> list[Point]:
    return [
        Point(arm, block, f"{arm}-{block}", "c64", "ttft_ms", value,
              (codes[block],) if codes and block in codes else ())
        for block, value in enumerate(values)
    ]  # fmt: skip


def versus(a: Sequence[float | None], b: Sequence[float | None], **how: bool) -> Comparison:
    lower = how.get("lower_is_better", True)
    return compare(points("a", a) + points("b", b), "a", "b", lower_is_better=lower)


def test_a_clear_difference_is_a_verdict() -> None:
    found = versus([100, 101, 99], [200, 204, 199])
    assert found.verdict == "A better"
    assert found.ratio == pytest.approx(0.4975, abs=0.003)
    assert (found.low or 9) < (found.ratio or 9) < (found.high or 9) < 1
    assert found.more_blocks == 0


def test_the_direction_decides_who_is_better() -> None:
    assert versus([200, 204, 199], [100, 101, 99], lower_is_better=False).verdict == "A better"
    assert versus([200, 204, 199], [100, 101, 99]).verdict == "B better"


def test_arms_within_the_margin_are_equal() -> None:
    found = versus([100, 100.5, 99.8, 100.1, 100], [100.2, 100, 100, 100.3, 99.9])
    assert found.verdict == "equal within 3 %"


def test_a_wide_spread_says_how_many_more_blocks() -> None:
    found = versus([104, 112, 99], [100, 100, 100])
    assert found.verdict == f"cannot tell, {found.more_blocks} more blocks would do"
    assert 2 <= (found.more_blocks or 0) <= 30


def test_one_more_block_is_singular() -> None:
    one = Comparison("a", "b", "c", "m", 3, 0, "cannot tell", 0.03, more_blocks=1)
    assert one.verdict == "cannot tell, 1 more block would do"


def test_hopeless_spread_is_not_given_a_number() -> None:
    found = versus([10, 1000, 100], [100, 100, 100])
    assert found.verdict == "cannot tell, more than 100 further blocks would be needed"


def test_one_block_is_only_indicative() -> None:
    found = versus([50], [100])
    assert (found.verdict, found.low, found.high) == ("indicative", None, None)
    assert found.ratio == pytest.approx(0.5)


def test_no_block_at_all_cannot_tell() -> None:
    assert compare([], "a", "b", lower_is_better=True).verdict.startswith("cannot tell, no block")


def test_points_with_codes_enter_no_verdict() -> None:
    spoiled = points("a", [100, 1, 99, 100], {1: CODE})
    found = compare(spoiled + points("b", [200, 200, 200, 201]), "a", "b", lower_is_better=True)
    assert (found.blocks, found.left_out) == (3, 1)
    assert found.ratio == pytest.approx(0.4975, abs=0.003)


@pytest.mark.parametrize("value", [None, 0.0, -4.0])
def test_values_without_a_ratio_are_left_out(value: float | None) -> None:
    found = versus([value, 100, 99], [200, 200, 200])
    assert (found.blocks, found.left_out) == (2, 1)


def test_a_mirrored_block_counts_once_by_its_geometric_mean() -> None:
    twice = [*points("a", [100]), *points("a", [400]), *points("b", [100])]
    found = compare(twice, "a", "b", lower_is_better=True)
    assert found.blocks == 1
    assert found.ratio == pytest.approx(2.0)


def test_a_severe_difference_besides_silences_the_verdict() -> None:
    both = points("a", [100, 101, 99]) + points("b", [200, 204, 199])
    found = compare(both, "a", "b", lower_is_better=True, confounded=("versions",))
    assert found.verdict == "cannot tell, the arms also differ in versions"


def test_points_of_two_metrics_are_refused() -> None:
    other = Point("b", 0, "b-0", "c64", "tpot_ms", 1.0)
    with pytest.raises(ValueError, match="several cells or metrics"):
        compare([*points("a", [1.0]), other], "a", "b", lower_is_better=True)


def test_the_same_points_give_the_same_interval() -> None:
    values = list(np.random.default_rng(3).normal(0, 0.1, 7))
    assert interval(values) == interval(values)


def test_the_interval_is_never_narrower_than_students() -> None:
    """scipy's t interval of the same numbers is the oracle."""
    for n in (2, 3, 5, 12):
        values = np.random.default_rng(n).normal(0, 0.1, n)
        low, high = interval(list(values))
        reach = scipy.stats.t.ppf(0.975, n - 1) * scipy.stats.sem(values)
        mean = float(np.mean(values))
        assert low <= mean - reach + 1e-4
        assert high >= mean + reach - 1e-4
        assert low <= np.median(values) <= high


def trial(rng: np.random.Generator, blocks: int, effect: float, noise: float) -> Comparison:
    a = np.exp(rng.normal(math.log(100 * effect), noise, blocks))
    b = np.exp(rng.normal(math.log(100), noise, blocks))
    return versus([float(x) for x in a], [float(x) for x in b])


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_equal_arms_are_called_different_in_at_most_one_of_twenty(blocks: int) -> None:
    rng = np.random.default_rng(11)
    found = [trial(rng, blocks, 1.0, 0.06) for _ in range(200)]
    assert sum("better" in one.verdict for one in found) <= 10


def test_a_planted_tenth_is_found_in_nine_of_ten_with_five_blocks() -> None:
    rng = np.random.default_rng(12)
    found = [trial(rng, 5, 1.10, 0.025) for _ in range(100)]
    assert sum(one.verdict == "B better" for one in found) >= 90


# ----------------------------------------------------------------------------- greedy equality


def test_equal_texts_have_no_code(tmp_path: Path) -> None:
    found = greedy_equality(load(make(tmp_path / "r")))
    assert [(one.compared, one.code) for one in found] == [(20, None), (20, None)]
    assert all("copies_2048" in one.reference for one in found)


def test_a_differing_text_is_the_code_needle(tmp_path: Path) -> None:
    found = greedy_equality(load(make(tmp_path / "r", spoil_greedy="split_1p1d")))
    (bad,) = [one for one in found if one.code]
    assert "split_1p1d" in bad.run
    assert bad.code is not None
    assert bad.code.code == "NEEDLE"
    assert "8000-3" in bad.code.why


def test_the_reference_is_an_aggregated_run_of_the_same_block(tmp_path: Path) -> None:
    results = load(make(tmp_path / "r", blocks=2))
    found = greedy_equality(results)
    by_id = {run.id: run for run in results.runs}
    assert len(found) == 4
    for one in found:
        assert by_id[one.run].block == by_id[one.reference].block
        assert by_id[one.reference].meta.engines[0].role == "both"


NOISE = "cannot tell, within noise: equal arms were {} % apart"


@pytest.mark.parametrize(
    ("ratio", "floor", "verdict"),
    [
        (1.058, 1.0585, NOISE.format("5.8")),
        (1 / 1.057, 1.0585, NOISE.format("5.8")),
        (1.059, 1.0585, "B better, barely: equal arms were 5.8 % apart"),
        (1 / 1.061, 1.0585, "A better, barely: equal arms were 5.8 % apart"),
        (1.06, 1.02, "B better"),
        (1.01, 1.0585, "equal within 3 %"),
        (1.059, None, "B better"),
    ],
)
def test_a_verdict_says_where_it_stands_against_equal_arms(
    ratio: float, floor: float | None, verdict: str
) -> None:
    points = [
        Point(arm, block, f"{arm}{block}", "c", "m", value, ())
        for block in range(5)
        for arm, value in (("a", 100.0 * ratio * (1 + 0.001 * (block % 2))), ("b", 100.0))
    ]
    found = compare(points, "a", "b", lower_is_better=True, floor=floor)
    assert found.verdict == verdict
    assert found.within_noise == ("within noise" in verdict)


def test_no_number_of_blocks_is_promised_where_equal_arms_are_as_far_apart() -> None:
    values = [(0, 1.02), (1, 1.09), (2, 1.01), (3, 1.08)]
    points = [Point("a", b, f"a{b}", "c", "m", v, ()) for b, v in values]
    points += [Point("b", b, f"b{b}", "c", "m", 1.0, ()) for b, _ in values]
    open_ = compare(points, "a", "b", lower_is_better=True)
    assert open_.outcome == "cannot tell"
    assert open_.more_blocks
    floored = compare(points, "a", "b", lower_is_better=True, floor=1.06)
    assert floored.more_blocks is None
    assert not floored.within_noise, "its interval holds 1: it may be larger, or none"
    assert floored.verdict == (
        "cannot tell, and equal arms were 6 % apart, so that no more blocks would do at this ratio"
    )
