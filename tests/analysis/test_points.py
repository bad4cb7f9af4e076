"""Points: recomputed values, with the codes of the cell and of a failed gate."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.report.synthetic import GRID, INTERFERENCE, make

from twolane.analysis.points import measure
from twolane.analysis.results import load
from twolane.records import Code, NeedleResult, read_json, write_json


def test_values_are_recomputed_from_the_requests(tmp_path: Path) -> None:
    found = measure(load(make(tmp_path / "r")))
    assert [(one.run.arm, one.cell.id) for one in found][:2] == [
        ("copies_2048", INTERFERENCE.id),
        ("copies_2048", GRID.id),
    ]
    assert found[0].values["worst_gap_ms"] == pytest.approx(2206)
    assert found[0].codes == ()
    assert all(point.valid for point in found[0].points() if point.metric == "worst_gap_ms")


def test_a_cells_code_spoils_its_points_only(tmp_path: Path) -> None:
    code = Code(code="INFLIGHT", why="3.1 of 4")
    found = measure(load(make(tmp_path / "r", codes={"copies_256": {GRID.id: [code]}})))
    coded = [(one.run.arm, one.cell.id) for one in found if one.codes]
    assert coded == [("copies_256", GRID.id)]
    assert not any(p.valid for one in found if one.codes for p in one.points())


def test_wrong_greedy_text_spoils_the_whole_run(tmp_path: Path) -> None:
    found = measure(load(make(tmp_path / "r", spoil_greedy="split_1p1d")))
    assert {one.run.arm for one in found if one.codes} == {"split_1p1d"}
    assert all(one.codes for one in found if one.run.arm == "split_1p1d")


def test_a_missed_needle_spoils_the_whole_run(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    run = load(folder).runs[1]
    needle = read_json(run.folder / "needle.json", NeedleResult)
    first = msgspec.structs.replace(needle.answers[0], ok=False, reason="wrong value")
    answers = [first, *needle.answers[1:]]
    write_json(run.folder / "needle.json", msgspec.structs.replace(needle, answers=answers))
    coded = [one for one in measure(load(folder)) if one.codes]
    assert {one.run.id for one in coded} == {run.id}
    assert coded[0].codes[0].why == "1 of 3 needles missed, first: wrong value"
