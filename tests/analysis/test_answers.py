"""Answers over a whole results folder."""

from __future__ import annotations

from pathlib import Path

from tests.report.synthetic import ARMS, GRID, INTERFERENCE, make

from twolane.analysis.answers import Answers, answers, busiest
from twolane.analysis.confounds import confounds
from twolane.analysis.points import measure
from twolane.analysis.results import load
from twolane.records import Code, GridCell


def of(folder: Path) -> Answers:
    results = load(folder)
    return answers(results, measure(results), confounds(results))


def test_the_demos_questions_are_answered(tmp_path: Path) -> None:
    found = of(make(tmp_path / "r"))
    assert [(one.limit_ms, one.outcome) for one in found.limits] == [
        (100.0, "none measured"),
        (250.0, "none measured"),
    ]
    assert [one.outcome for one in found.alone] == ["only the split", "only the split"]
    (by_length, _) = found.crossovers
    assert (by_length.start, by_length.sure) == (6000, False)
    assert [cost.rival.name for cost in found.costs] == ["copies_256"]
    names = {one.slo.name for one in found.capacities}
    assert names == {"fluent", "patient", "no pause over 100 ms", "no pause over 250 ms"}
    assert {one.arm.name for one in found.capacities} == {arm.name for arm in ARMS}


def test_codes_reach_every_answer(tmp_path: Path) -> None:
    busy = [Code(code="BUSY", why="other programs used 31 % of CPU time")]
    codes = {arm.name: {INTERFERENCE.id: busy, GRID.id: busy} for arm in ARMS}
    found = of(make(tmp_path / "r", codes=codes))
    assert {one.outcome for one in found.limits} == {"cannot tell"}
    assert {one.outcome for one in found.alone} == {"cannot tell"}
    assert found.costs == ()
    assert {one.users for one in found.capacities} == {None}
    assert not any(place.efficient for one in found.frontiers for place in one.places)


def test_nothing_measured_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    found = of(tmp_path)
    assert found == Answers((), (), (), (), (), ())


def test_costs_are_told_of_the_closed_loop_with_most_users() -> None:
    few, many, later = (
        GridCell(id=f"c{n} {p}", users=n, prompt=p, output=8, requests=n)
        for n, p in ((1, 8), (64, 8), (64, 16))
    )
    assert busiest([few, many, later]) == many
    assert busiest([]) is None
