"""What is lost is said: in the terminal and the answers; exit code 1 where nothing is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.report.synthetic import make

from twolane.analysis.confounds import confounds
from twolane.analysis.points import measure
from twolane.analysis.results import Results, load
from twolane.analysis.standing import answerable, caveats
from twolane.cli import cli
from twolane.records import write_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "demo")


def said(folder: Path) -> str:
    results = load(folder)
    return " ".join(caveats(results, measure(results)))


def spoil(results: Results) -> None:
    for run in results.runs:
        (run.folder / "requests.jsonl").write_text("")


def test_nothing_is_said_of_whole_results(folder: Path) -> None:
    assert said(folder) == ""


def test_damage_and_its_arm_are_named(folder: Path) -> None:
    (load(folder).runs[1].folder / "requests.jsonl").write_text("")
    assert "Damaged since they were written: 2 cells of copies_256 (DAMAGED)." in said(folder)
    told = CliRunner().invoke(cli, ["report", str(folder)])
    assert told.exit_code == 0
    assert "2 cells of copies_256 (DAMAGED)" in told.output


def test_a_lost_arm_is_named(folder: Path) -> None:
    for run in load(folder).runs:
        config = run.meta.config | {"arms": dict.fromkeys(load(folder).arms)}
        write_json(run.folder / "run.json", msgspec.structs.replace(run.meta, config=config))
    (load(folder).runs[2].folder / "run.json").write_text("{")
    assert "no run of split_1p1d can be read here" in said(folder)
    told = CliRunner().invoke(cli, ["report", str(folder), "--json"])
    assert "no run of split_1p1d" in msgspec.json.decode(told.output)["verdict"]


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "two", blocks=2)
    for run in load(folder).runs:
        planned = {"arms": dict.fromkeys(load(folder).arms), "blocks": 2}
        write_json(run.folder / "run.json", msgspec.structs.replace(run.meta, config=planned))
    assert said(folder) == ""
    shutil.rmtree(load(folder).of_arm("copies_256")[1].folder)
    assert said(folder) == "Missing: copies_256 in block 2 (5 of 6 runs done)."


def test_old_results_are_said_to_be_unsealed(tmp_path: Path) -> None:
    told = said(make(tmp_path / "old", sealed=False))
    assert "3 of 3 runs lack checksums, as an older twolane left them" in told


def test_no_answer_at_all_is_exit_code_one(folder: Path) -> None:
    results = load(folder)
    spoil(results)
    assert not answerable(measure(load(folder)))
    told = CliRunner().invoke(cli, ["report", str(folder)])
    assert told.exit_code == 1
    assert "This run cannot answer" in told.output
    for run in results.runs:
        (run.folder / "run.json").write_text("[]")
    told = CliRunner().invoke(cli, ["report", str(folder)])
    assert told.exit_code == 1
    assert "No run can be read here" in told.output


def cut(folder: Path) -> None:
    """The last run, as Ctrl-C leaves it while its engines start: nothing measured."""
    run = load(folder).runs[-1]
    engines = [msgspec.structs.replace(e, block_size=None) for e in run.meta.engines]
    meta = msgspec.structs.replace(run.meta, status="interrupted", engines=engines, seal={},
                                   seed=99)  # fmt: skip
    for name in ("needle.json", "cells.jsonl", "requests.jsonl", "metrics.jsonl"):
        (run.folder / name).unlink(missing_ok=True)
    for name in ("cells.jsonl", "requests.jsonl", "metrics.jsonl"):
        (run.folder / name).touch()
    write_json(run.folder / "run.json", meta)


def test_a_run_that_was_cut_is_not_finished_and_no_fault(tmp_path: Path) -> None:
    folder = make(tmp_path / "two", blocks=2)
    whole = {one.what for one in confounds(load(folder))}
    cut(folder)
    arm = load(folder).runs[-1].arm
    results = load(folder)
    assert results.runs[-1].needle is None
    told = CliRunner().invoke(cli, ["compare", str(folder)]).output
    assert f"Not finished: 1 of 6 runs ({arm} interrupted)." in told
    assert "fault" not in told
    assert len(results.faults) == 0
    assert {one.what for one in confounds(results)} - {
        "place in the order",
        "seed of the prompts",
    } <= whole


def test_a_finished_run_without_its_gate_is_a_fault(folder: Path) -> None:
    (load(folder).runs[0].folder / "needle.json").unlink()
    assert "fault" in said(folder)
