"""A campaign that goes on from files that were copied or changed meanwhile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.test_resume import BEFORE, CONFIGS, died_in_a_ramp, leave, turn

from twolane import plan
from twolane.config import load_campaign
from twolane.plan import PlannedRun
from twolane.recorder import new_folder
from twolane.records import CellSummary, RunMeta, read_json
from twolane.resume import left_over
from twolane.seal import RequestFile


@pytest.fixture
def planned() -> tuple[PlannedRun, ...]:
    return plan.runs(load_campaign(CONFIGS / "demo.yaml"))


def test_a_copy_of_a_finished_run_is_not_its_work(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    leave(folder, "a", planned[0].key).rename(folder / "runs" / "a copy")
    assert left_over(planned, folder).runs == planned


def test_nothing_is_carried_over_from_files_that_changed_since(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    run = died_in_a_ramp(folder, planned[0].key, [turn(0, 0)])
    meta, lines = read_json(run / "run.json", RunMeta), run / "requests.jsonl"
    with RequestFile(tmp_path / "before.jsonl") as file:
        file.append(msgspec.structs.replace(turn(0, 0), id="g", cell=BEFORE.id))
        summary = CellSummary(cell=BEFORE, started_ns=1, ended_ns=2)
        sealed = file.sealed(meta, summary, measures=1)
    (run / "cells.jsonl").write_bytes(msgspec.json.encode(sealed) + b"\n")
    assert left_over(planned, folder).carried
    lines.write_bytes(lines.read_bytes().replace(b'"id":"g"', b'"id":"h"'))
    assert not left_over(planned, folder).carried
