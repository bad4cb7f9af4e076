"""From where on a split pays, with costs, and whether a budget alone would do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.analysis.made import BUSY, arm, evidence, points, shot

from twolane.analysis.compare import Point
from twolane.analysis.crossover import alone, best_rival, costs, crossovers
from twolane.analysis.evidence import Evidence
from twolane.analysis.frontier import GAP, THROUGHPUT, TTFT
from twolane.records import AnyCell, GridCell, MixCell

ARMS = [arm("copies", 2048), arm("small", 256), arm("pd", 2048, "split")]
CELLS = [shot(1_000), shot(10_000), shot(100_000)]
GRID = GridCell(id="c4", users=4, prompt=512, output=64, requests=24)


def at_lengths(copies: Sequence[Sequence[float]], split: Sequence[Sequence[float]]) -> Evidence:
    """Pauses by length and block of `copies` and of the split."""
    some: list[list[Point]] = []
    for cell, mine, theirs in zip(CELLS, copies, split, strict=True):
        some += [points("copies", cell, GAP, mine), points("pd", cell, GAP, theirs)]
    return evidence(ARMS, *some)


def test_the_length_from_which_it_pays_is_bracketed() -> None:
    known = at_lengths(
        [[40, 41, 40], [400, 402, 399], [4000, 4100, 3900]],
        [[60, 61, 60], [50, 51, 50], [52, 51, 50]],
    )
    found, by_share = crossovers(known, CELLS)
    assert [mark.outcome for mark in found.marks] == ["does not pay", "pays", "pays"]
    assert (found.start, found.before, found.sure, found.missing) == (10_000, 1_000, True, "")
    assert by_share.marks == ()
    assert by_share.missing == "mix cells with several shares of long prompts"


def test_it_pays_from_nowhere_if_the_longest_does_not() -> None:
    known = at_lengths(
        [[400, 402, 399]] * 2 + [[300, 301, 299]], [[50, 51, 50]] * 2 + [[600, 601, 602]]
    )
    found, _ = crossovers(known, CELLS)
    assert (found.start, found.before, found.missing) == (None, 100_000, "a longer prompt")


def test_where_nobody_would_notice_the_rivals_pause_a_split_pays_nothing() -> None:
    known = at_lengths([[48] * 3, [400, 402, 399], [4000] * 3], [[20, 21, 20]] * 3)
    found, _ = crossovers(known, CELLS)
    assert [mark.outcome for mark in found.marks] == ["does not pay", "pays", "pays"]


def test_each_number_of_readers_has_its_own_answer() -> None:
    few, many = shot(6_000, victims=1), shot(6_000, victims=8)
    known = evidence(
        ARMS,
        points("copies", few, GAP, [40] * 3), points("pd", few, GAP, [20] * 3),
        points("copies", many, GAP, [900] * 3), points("pd", many, GAP, [20] * 3),
    )  # fmt: skip
    alone_, crowd, _ = crossovers(known, [few, many])
    assert [(one.readers, one.start) for one in (alone_, crowd)] == [(1, None), (8, 6_000)]


def test_one_block_only_indicates() -> None:
    found, _ = crossovers(at_lengths([[40], [400], [4000]], [[60], [50], [50]]), CELLS)
    assert (found.start, found.sure) == (10_000, False)


def test_blocks_that_disagree_cannot_tell_and_say_how_many_more() -> None:
    known = at_lengths([[400, 420]] * 3, [[300, 390]] * 3)
    found, _ = crossovers(known, CELLS)
    assert {mark.outcome for mark in found.marks} == {"cannot tell"}
    assert "more block" in found.missing


def test_a_coded_split_pays_nowhere() -> None:
    known = evidence(
        ARMS, points("copies", CELLS[0], GAP, [400]), points("pd", CELLS[0], GAP, [20], BUSY)
    )
    found, _ = crossovers(known, CELLS[:1])
    assert [mark.outcome for mark in found.marks] == ["cannot tell"]
    assert found.missing == "clean points of the split and of an aggregated arm"


def test_the_share_of_long_prompts_is_read_from_mixes() -> None:
    cells: list[AnyCell] = [
        MixCell(id=f"mix {share}", prompt=60_000, share=share, rate=20.0)
        for share in (0.0, 0.01, 0.05)
    ]
    some: list[list[Point]] = []
    for cell, copies in zip(cells, (30, 30, 900), strict=True):
        some += [
            points("copies", cell, GAP, [copies] * 3), points("pd", cell, GAP, [40, 41, 40])
        ]  # fmt: skip
    _, found = crossovers(evidence(ARMS, *some), cells)
    assert (found.start, found.before) == (0.05, 0.01)


def test_the_rival_is_the_best_on_as_many_devices() -> None:
    single = arm("single", 64, "one engine", devices=1)
    cell = CELLS[0]
    known = evidence(
        [*ARMS, single],
        points("copies", cell, GAP, [400]),
        points("small", cell, GAP, [100]),
        points("single", cell, GAP, [10]),
    )
    assert best_rival(known, cell, ARMS[2]) == (ARMS[1], True)
    lone = evidence([single, ARMS[2]], points("single", cell, GAP, [10]))
    assert best_rival(lone, cell, ARMS[2]) == (single, False)


def test_costs_are_told_against_the_best_rival() -> None:
    cell = CELLS[1]
    known = evidence(
        ARMS,
        points("small", cell, GAP, [100, 100]), points("pd", cell, GAP, [20, 20]),
        points("small", cell, TTFT, [1000, 1000]), points("pd", cell, TTFT, [1500, 1500]),
        points("small", GRID, THROUGHPUT, [500, 500]), points("pd", GRID, THROUGHPUT, [400, 400]),
    )  # fmt: skip
    (cost,) = costs(known, cell, GRID)
    assert (cost.arm.name, cost.rival.name) == ("pd", "small")
    assert cost.long_ttft is not None
    assert cost.long_ttft.ratio == pytest.approx(1.5)
    assert cost.throughput is not None
    assert cost.throughput.outcome == "B better"
    assert cost.short_ttft is None


def test_whether_a_budget_alone_would_do() -> None:
    cell = CELLS[1]
    gaps = {"copies": 900.0, "small": 160.0, "pd": 20.0}
    known = evidence(ARMS, *(points(name, cell, GAP, [gap]) for name, gap in gaps.items()))
    assert [alone(known, cell, limit).outcome for limit in (10.0, 100.0, 250.0)] == [
        "neither",
        "only the split",
        "a budget alone",
    ]
    found = alone(known, cell, 250.0)
    assert found.arm is not None
    assert found.arm.name == "small"
    nobody = evidence(ARMS, points("pd", cell, GAP, [20.0]))
    assert alone(nobody, cell, 100.0).missing == "a clean run of an aggregated arm"
    no_split = evidence(ARMS, points("copies", cell, GAP, [900.0]))
    assert alone(no_split, cell, 100.0).missing == "a clean run of a split"


def test_the_better_of_two_arms_that_run_alike_is_no_rival() -> None:
    cell, twin = CELLS[0], arm("again", 2048)
    known = evidence(
        [ARMS[0], twin, ARMS[2]],
        points("copies", cell, GAP, [400, 401]),
        points("again", cell, GAP, [300]),
        points("pd", cell, GAP, [350, 450]),
    )
    assert best_rival(known, cell, ARMS[2]) == (ARMS[0], True)
    spoilt = evidence(
        [ARMS[0], twin, ARMS[2]],
        points("copies", cell, GAP, [400], BUSY),
        points("again", cell, GAP, [300]),
    )
    assert best_rival(spoilt, cell, ARMS[2]) == (twin, True)
