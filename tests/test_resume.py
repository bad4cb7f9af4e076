"""A campaign that was cut goes on where it was: nothing done twice, nothing lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from twolane import campaign, devices, plan
from twolane.config import Campaign, load_campaign
from twolane.errors import QuestionError
from twolane.plan import PlannedRun
from twolane.recorder import Status, Told, new_folder
from twolane.records import Event, RunMeta, read_json, write_json
from twolane.resume import CUT, finished_key, latest_folder, left_over

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def planned() -> tuple[PlannedRun, ...]:
    return plan.runs(load_campaign(CONFIGS / "demo.yaml"))


def leave(folder: Path, name: str, key: str, status: Status = "done") -> Path:
    """A run's folder as a campaign leaves it, with nothing in it but run.json."""
    run = folder / "runs" / name
    run.mkdir(parents=True)
    meta = RunMeta(
        id=name, campaign="demo", arm="copies", model="needle", layout="copies", context=8192,
        block=0, order=0, seed=1, started_at="2026-01-02T03:04:05Z", boot="boot",
        config={"key": key}, config_hash="5eed", versions={}, host={}, cells=[], status=status,
    )  # fmt: skip
    write_json(run / "run.json", meta)
    return run


def test_finished_runs_are_not_planned_again(
    tmp_path: Path, planned: tuple[PlannedRun, ...]
) -> None:
    folder = new_folder(tmp_path, "demo")
    leave(folder, "a", planned[0].key)
    assert left_over(planned, folder) == planned[1:]


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_a_run_that_was_cut_is_set_aside_whole_and_done_again(
    tmp_path: Path, planned: tuple[PlannedRun, ...], status: Status
) -> None:
    folder = new_folder(tmp_path, "demo")
    leave(folder, "a", planned[0].key, status)
    assert left_over(planned, folder) == planned
    assert not list((folder / "runs").iterdir())
    assert (folder / CUT / "a" / "run.json").exists()


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

    async def __call__(
        self, _: Campaign, step: PlannedRun, folder: Path, told: Told, *, total: int
    ) -> RunMeta:
        if len(self.keys) == self.cut:
            raise KeyboardInterrupt
        self.keys.append(step.key)
        run = leave(folder, f"run-{step.order}", step.key)
        return read_json(run / "run.json", RunMeta)


async def test_a_campaign_goes_on_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = load_campaign(CONFIGS / "demo.yaml")
    every = [step.key for step in plan.runs(demo)]
    monkeypatch.setattr(devices, "require", lambda *_: None)
    before, after = Played(cut=1), Played()
    events: list[Event] = []

    monkeypatch.setattr(campaign, "one", before)
    with pytest.raises(KeyboardInterrupt):
        await campaign.run(demo, tmp_path, events.append)
    monkeypatch.setattr(campaign, "one", after)
    outcome = await campaign.run(demo, tmp_path, events.append, continued=True)

    assert (before.keys, after.keys) == (every[:1], every[1:])
    assert outcome.folder == tmp_path / "demo"


async def test_one_block_alone_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo = dataclasses.replace(load_campaign(CONFIGS / "demo.yaml"), blocks=2)
    second = [step.key for step in plan.runs(demo) if step.block == 1]
    played = Played()
    monkeypatch.setattr(devices, "require", lambda *_: None)
    monkeypatch.setattr(campaign, "one", played)
    await campaign.run(demo, tmp_path, lambda _: None, continued=True, blocks=[1])
    assert played.keys == second
