"""A name means one thing, or the refusal says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.synthetic import GRID, make

from twolane.analysis.lookup import find_run, find_target
from twolane.analysis.results import load
from twolane.errors import QuestionError
from twolane.records import CellSummary, Request


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "results" / "demo")


def test_a_run_by_folder_id_part_or_arm(folder: Path) -> None:
    run = load(folder).runs[2]
    for text in (str(run.folder), f"{folder}/{run.id}", f"{folder}/split", "split_1p1d", run.id):
        assert find_run(text, folder.parent)[1].id == run.id


def test_an_arms_name_wins_over_a_part_of_another(folder: Path) -> None:
    assert find_run(f"{folder}/copies_256", folder.parent)[1].arm == "copies_256"


@pytest.mark.parametrize("text", ["copies", ""])
def test_what_may_mean_several_names_them(folder: Path, text: str) -> None:
    with pytest.raises(QuestionError) as error:
        find_run(f"{folder}/{text}", folder.parent)
    assert "copies_2048, block 1" in error.value.remedy


def test_what_means_none_names_what_there_is(folder: Path) -> None:
    with pytest.raises(QuestionError) as error:
        find_run(f"{folder}/nope", folder.parent)
    assert "split_1p1d" in error.value.remedy
    with pytest.raises(QuestionError):
        find_run("nope", folder.parent / "empty")


def test_a_cell_or_a_request(folder: Path) -> None:
    run = load(folder).runs[0]
    assert isinstance(find_target(run, "c4"), CellSummary)
    found = find_target(run, "aggressor")
    assert isinstance(found, Request)
    assert found.role == "aggressor"
    for text in ("grid-", "nothing at all"):
        with pytest.raises(QuestionError) as error:
            find_target(run, text)
        assert error.value.remedy.startswith("name one of: ")
    assert GRID.id in error.value.remedy
