"""A run whose engines die: the finding stands in its folder, its events and its account."""

from __future__ import annotations

import dataclasses
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from twolane import campaign, plan, recorder
from twolane.config import load_campaign
from twolane.engines.fleet import Running
from twolane.engines.launch import launches
from twolane.errors import EngineError
from twolane.records import Event, Findings, RunMeta, read_json
from twolane.resume import CUT

ROOT = Path(__file__).parents[1]
LOG = Path(__file__).parent / "diagnosis/logs/23_worker_killed_9.log"


class DyingFleet:
    """Stands for a Fleet whose first engine dies while it starts."""

    front = None

    pids: tuple[int, ...] = ()

    def __init__(self, folder: Path, _: Any = ()) -> None:
        self.folder = folder
        self.engines: list[Running] = []

    async def start(self, model: Any, layout: Any, platform: Any, **_: Any) -> None:
        for launch in launches(model, layout, platform):
            log = self.folder / f"{launch.engine.name}.log"
            shutil.copy(LOG, log)
            self.engines.append(Running(launch, _Gone(log)))  # type: ignore[arg-type]
        raise EngineError("engine died", place="log", remedy="read", log_tail=("raw",))

    async def stop(self) -> None:
        pass


class _Gone:
    pid, code = 1, 1

    def __init__(self, log: Path) -> None:
        self.log = log


async def test_a_dead_engine_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "Fleet", DyingFleet)
    planned = load_campaign(ROOT / "configs/demo.yaml")
    told: list[Event] = []
    step = plan.runs(planned)[0]
    await campaign.one(recorder.Recorder(planned, step, tmp_path, told.append, 1))
    (run,) = (tmp_path / "runs").iterdir()
    meta = read_json(run / "run.json", RunMeta)
    found = read_json(run / "findings.json", Findings)
    assert meta.status == "failed"
    cause = found.postmortems[0].findings[0]
    assert (cause.rule, found.postmortems[0].cause) == ("RUN08", "RUN08")
    assert meta.error is not None
    assert "engine died: RUN08: worker killed" in meta.error
    assert cause.fix in meta.error
    assert any(e.step == "note" and "RUN08" in e.text for e in told)
    assert told[-1].step == "failed"


def test_runs_that_begin_in_one_second_have_unlike_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In other folders too: parts of a campaign are put together later."""
    monkeypatch.setattr(recorder, "wall", lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    demo = dataclasses.replace(load_campaign(ROOT / "configs/demo.yaml"), blocks=2)
    steps = plan.runs(demo)
    names = [recorder.new_run_folder(tmp_path / step.key, demo, step).name for step in steps]
    assert len(set(names)) == len(steps)
    assert all("__16k__vllm__0102-030405-" in name for name in names)
    again = recorder.new_run_folder(tmp_path / steps[0].key, demo, steps[0]).name
    assert again == f"{names[0]}b"
    for name in (names[0], again):  # cut, set aside and begun anew in this second
        aside = tmp_path / steps[0].key / CUT
        aside.mkdir(exist_ok=True)
        (tmp_path / steps[0].key / "runs" / name).rename(aside / name)
    anew = recorder.new_run_folder(tmp_path / steps[0].key, demo, steps[0]).name
    assert anew == f"{names[0]}c"
    monkeypatch.setattr(recorder, "boot_id", lambda: "another host")
    assert recorder.new_run_folder(tmp_path / "there", demo, steps[0]).name not in names


def test_two_campaigns_that_begin_at_once_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the folder after it was found free."""
    make = Path.mkdir

    def late(path: Path, *args: Any, **kwargs: Any) -> None:
        if path == tmp_path / "demo" / "runs" and not path.exists():
            make(path, parents=True)
        make(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", late)
    assert recorder.new_folder(tmp_path, "demo") == tmp_path / "demo-2"
