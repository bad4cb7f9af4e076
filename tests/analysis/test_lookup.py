"""A name means one thing, or the refusal says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.report.synthetic import GRID, make

from twolane.analysis.lookup import _median_shot, find_run, find_target
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


def test_an_arm_of_several_blocks_is_its_first_unless_a_block_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "demo", blocks=3)
    for text, block in (("copies_256", 0), ("copies_256/2", 1), ("split/3", 2)):
        assert find_run(f"{folder}/{text}", tmp_path)[1].block == block
    with pytest.raises(QuestionError, match="no block 4") as error:
        find_run(f"{folder}/split/4", tmp_path)
    assert "1, 2, 3" in error.value.remedy


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


@pytest.mark.parametrize(("waits", "taken"), [((5, 3), 3), ((9, 2, 4), 4), ((None, 7), 7)])
def test_of_several_shots_it_is_the_median(
    folder: Path, waits: tuple[int | None, ...], taken: int
) -> None:
    run = load(folder).runs[0]
    shot = next(one for one in run.requests() if one.role == "aggressor")
    shots = [replace(shot, first_ns=None if w is None else shot.send_ns + w) for w in waits]
    assert _median_shot(shots).first_ns == shot.send_ns + taken
