"""A campaign that was cut goes on where it was: nothing done twice, nothing lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from twolane import campaign, devices, plan
from twolane.analysis import results as stored
from twolane.config import load_campaign, parse_cell
from twolane.errors import QuestionError
from twolane.journal import Journal
from twolane.pace import Pace
from twolane.plan import PlannedRun
from twolane.recorder import Recorder, Status, new_folder
from twolane.records import (
    AnyCell,
    Appender,
    CellSummary,
    Code,
    Event,
    Request,
    RunMeta,
    read_json,
    write_json,
)
from twolane.resume import CUT, finished_key, latest_folder, left_over

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def planned() -> tuple[PlannedRun, ...]:
    return plan.runs(load_campaign(CONFIGS / "demo.yaml"))


def leave(
    folder: Path, name: str, key: str, status: Status = "done", cells: Sequence[AnyCell] = ()
) -> Path:
    """A run's folder as a campaign leaves it, with nothing in it but run.json."""
    run = folder / "runs" / name
    run.mkdir(parents=True)
    meta = RunMeta(
        id=name, campaign="demo", arm="copies", model="needle", layout="copies", context=8192,
        block=0, order=0, seed=1, started_at="2026-01-02T03:04:05Z", boot="boot",
        config={"key": key}, config_hash="5eed", versions={}, host={},
        cells=list(cells), status=status,
    )  # fmt: skip
    write_json(run / "run.json", meta)
    return run


def test_finished_runs_are_not_planned_again(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    leave(folder, "a", planned[0].key)
    assert left_over(planned, folder).runs == planned[1:]


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_a_run_that_was_cut_is_set_aside_whole_and_done_again(
    tmp_path: Path, planned: tuple[PlannedRun, ...], status: Status
) -> None:
    folder = new_folder(tmp_path, "demo")
    run = leave(folder, "a", planned[0].key, status)
    left = left_over(planned, folder)
    assert (left.runs, left.carried) == (planned, {})
    assert run.exists(), "looking changes nothing"
    left.set_aside()
    assert not list((folder / "runs").iterdir())
    assert (folder / CUT / "a" / "run.json").exists()


def test_cut_runs_of_other_blocks_stay_for_their_own_turn(tmp_path: Path) -> None:
    demo = dataclasses.replace(load_campaign(CONFIGS / "demo.yaml"), blocks=2)
    planned = plan.runs(demo)
    folder = new_folder(tmp_path, "demo")
    first, last = (
        leave(folder, step.key, step.key, "failed") for step in (planned[0], planned[-1])
    )
    left_over(planned, folder).only([1]).set_aside()
    assert (first.exists(), last.exists()) == (True, False)


def test_a_run_with_a_code_is_done_again_where_that_is_asked(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    run = leave(folder, "a", planned[0].key)
    with Appender(run / "cells.jsonl") as cells:
        busy = [Code(code="BUSY", why="others")]
        cells.append(
            CellSummary(cell=parse_cell("needle 500"), started_ns=1, ended_ns=2, codes=busy)
        )
    assert left_over(planned, folder).runs == planned[1:]
    assert left_over(planned, folder, ["CACHE"]).runs == planned[1:]
    left = left_over(planned, folder, ["BUSY"])
    assert (left.runs, left.cut, left.carried) == (planned, {run: planned[0].key}, {})


def test_a_run_on_other_devices_is_the_same_work(tmp_path: Path) -> None:
    """A part that was measured elsewhere counts; one that was cut there is done again here."""
    demo = load_campaign(CONFIGS / "demo.yaml")
    planned = plan.runs(demo)
    groups = {"GROUP_A": (4,), "GROUP_B": (5,)}
    there = plan.on_groups(demo, groups)
    folder = new_folder(tmp_path, "demo")
    done, cut = leave(folder, "a", there[0].key), leave(folder, "b", there[1].key, "failed")
    for run in (done, cut):
        meta = read_json(run / "run.json", RunMeta)
        config = meta.config | {"node": {"platform": "cpu", "groups": groups}}
        write_json(run / "run.json", msgspec.structs.replace(meta, config=config))
    left = left_over(planned, folder, on=lambda groups: plan.on_groups(demo, groups))
    assert (left.runs, left.elsewhere) == (planned[1:], 1)
    assert left.cut == {cut: planned[1].key}
    with pytest.raises(QuestionError, match="another question"):
        left_over(planned, folder)


@pytest.mark.parametrize("groups", [None, {}, {"groups": 3}, {"groups": {"GROUP_A": "x"}}])
def test_groups_that_are_none_make_it_another_question(
    tmp_path: Path, planned: tuple[PlannedRun, ...], groups: Any
) -> None:
    folder = new_folder(tmp_path, "demo")
    run = leave(folder, "a", "another")
    meta = read_json(run / "run.json", RunMeta)
    config = meta.config | {"node": groups}
    write_json(run / "run.json", msgspec.structs.replace(meta, config=config))
    with pytest.raises(QuestionError, match="another question"):
        left_over(planned, folder, on=lambda _: planned)


def test_a_run_without_a_readable_account_counts_as_cut(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1, "id"')
    assert finished_key(tmp_path) is None


def test_runs_of_another_question_are_refused_and_left_where_they_are(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    leave(folder, "a", "another", "done")
    leave(folder, "b", planned[0].key, "running")
    with pytest.raises(QuestionError, match="another question, first a"):
        left_over(planned, folder)
    assert sorted(run.name for run in (folder / "runs").iterdir()) == ["a", "b"]


# ------------------------------------------------------------------------ a ramp that died

RAMP = parse_cell("ramp 24000 users=2 turns=4 after=12000")
BEFORE = parse_cell("c1 in64 out8 n4")


def turn(user: int, index: int, **more: Any) -> Request:
    return Request(
        id=f"t{user}-{index}", cell=RAMP.id, role="turn", user=user, index=index, send_ns=1,
        due_ns=1, first_ns=2, last_ns=9, output_tokens=3, gaps_ns=[3, 4], text="x",
        prompt_asked=6000 * (index + 1), **more,
    )  # fmt: skip


def died_in_a_ramp(folder: Path, key: str, turns: list[Request]) -> Path:
    """A run that finished its first cell, and was cut in the second."""
    run = leave(folder, "a", key, "failed", cells=[BEFORE, RAMP])
    with Appender(run / "cells.jsonl") as cells:
        cells.append(CellSummary(cell=BEFORE, started_ns=1, ended_ns=2))
    with Appender(run / "requests.jsonl") as requests:
        for request in (msgspec.structs.replace(turn(0, 0), id="g", cell=BEFORE.id), *turns):
            requests.append(request)
    return run


def test_a_run_that_died_in_a_ramp_goes_on_at_the_turn_that_was_not_answered(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    turns = [turn(0, 0), turn(0, 1), turn(1, 0), turn(0, 2, error="gone"), turn(1, 2)]
    died_in_a_ramp(folder, planned[0].key, turns)
    carried = left_over(planned, folder).carried[planned[0].key]
    assert carried.done == {BEFORE.id}
    assert [t.id for t in carried.turns] == ["t0-0", "t0-1", "t1-0"]
    assert [r.id for r in carried.requests(carried.run)] == ["g", "t0-0", "t0-1", "t1-0"]
    assert "2 of 4 turns of ramp 24000" in str(carried)


def test_without_an_answered_turn_nothing_is_carried_over(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    died_in_a_ramp(folder, planned[0].key, [turn(0, 0, error="gone")])
    assert left_over(planned, folder).carried == {}


def test_what_is_carried_over_stands_in_the_new_runs_folder(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    died_in_a_ramp(folder, planned[0].key, [turn(0, 0)])
    left = left_over(planned, folder)
    left.set_aside()
    demo = dataclasses.replace(load_campaign(CONFIGS / "demo.yaml"), cells=(BEFORE, RAMP))
    told: list[Event] = []
    carried = left.carried[planned[0].key]
    recorder = Recorder(demo, planned[0], folder, told.append, 1, carried=carried)
    assert recorder.cells_left == [RAMP]
    assert [t.id for t in recorder.answered(RAMP)] == ["t0-0"]
    recorder.finish("done", None)
    (run,) = stored.load(folder).runs
    assert run.meta.continues == "a"
    assert [r.id for r in run.requests()] == ["g", "t0-0"]
    assert [c.cell for c in run.cells] == [BEFORE]


def test_the_newest_folder_of_a_name_is_found(tmp_path: Path) -> None:
    assert latest_folder(tmp_path, "demo") is None
    new_folder(tmp_path, "demo")
    second = new_folder(tmp_path, "demo")
    new_folder(tmp_path, "demonstration")
    assert latest_folder(tmp_path, "demo") == second


class Played:
    """Stands for `campaign.one`: writes a finished run, and stops dead before its `cut`-th."""

    def __init__(self, cut: int = 99) -> None:
        self.cut = cut
        self.keys: list[str] = []

    async def __call__(self, recorder: Recorder) -> RunMeta:
        step = recorder.planned
        if len(self.keys) == self.cut:
            raise KeyboardInterrupt
        self.keys.append(step.key)
        recorder.finish("done", None)
        return recorder.meta


@pytest.fixture(autouse=True)
def any_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "require", lambda *_: None)


async def test_a_campaign_goes_on_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = load_campaign(CONFIGS / "demo.yaml")
    every = [step.key for step in plan.runs(demo)]
    before, after = Played(cut=1), Played()
    events: list[Event] = []

    monkeypatch.setattr(campaign, "one", before)
    with pytest.raises(KeyboardInterrupt):
        await campaign.run(demo, tmp_path, events.append)
    monkeypatch.setattr(campaign, "one", after)
    outcome = await campaign.run(demo, tmp_path, events.append, continued=True)

    assert (before.keys, after.keys) == (every[:1], every[1:])
    assert outcome.folder == tmp_path / "demo"
    ends = [(e.step, e.text) for e in events if e.step in ("begin", "end")]
    begin = ("begin", str(tmp_path / "demo"))
    assert ends == [begin, ("end", "interrupted"), begin, ("end", "done")]


async def test_one_block_alone_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = dataclasses.replace(load_campaign(CONFIGS / "demo.yaml"), blocks=2)
    second = [step.key for step in plan.runs(demo) if step.block == 1]
    played = Played()
    events: list[Event] = []
    monkeypatch.setattr(campaign, "one", played)
    await campaign.run(demo, tmp_path, events.append, continued=True, blocks=[1])
    assert played.keys == second
    assert any("nothing to resume" in e.text for e in events), "it says that it starts anew"


async def test_two_processes_never_write_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = load_campaign(CONFIGS / "demo.yaml")
    folder = new_folder(tmp_path, "demo")
    monkeypatch.setattr(campaign, "one", Played())
    refused = pytest.raises(QuestionError, match="another twolane writes this folder")
    with Journal(folder, Pace(demo.cells), lambda _: None), refused:
        await campaign.run(demo, tmp_path, lambda _: None, continued=True)
