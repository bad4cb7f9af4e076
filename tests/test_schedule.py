"""What a campaign will do, known before anything starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from twolane import devices, plan, schedule
from twolane.clock import NS
from twolane.config import Campaign, load_campaign
from twolane.engines import installed
from twolane.errors import QuestionError
from twolane.pace import Pace
from twolane.recorder import new_folder
from twolane.records import Appender, Event

CONFIGS = Path(__file__).parents[1] / "configs"
CAMPAIGNS = [p for p in sorted(CONFIGS.glob("*.yaml")) if "\narms:" in p.read_text()]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Campaign:
    monkeypatch.setattr(devices, "require", lambda *_: None)
    monkeypatch.setattr(installed, "require", lambda *_: None)
    return load_campaign(CONFIGS / "demo.yaml")


def took(folder: Path, arm: str, cell: str, seconds: float) -> None:
    """A run of `arm` whose launch, `cell` and stop were told to have taken 30 s, this, and 2 s."""
    steps = [("launch", None, 0.0), ("cell", cell, 30.0), ("stop", None, 30 + seconds)]
    steps.append(("done", None, 32 + seconds))
    with Appender(folder / "events.jsonl") as events:
        for step, of, at in steps:
            event = Event(t_ns=round(at * NS), run="r", step=step, text="", arm=arm, cell=of)
            events.append(event)


def test_every_run_has_its_place_and_its_time(demo: Campaign, tmp_path: Path) -> None:
    todo = schedule.prepare(demo, tmp_path)
    answer = json.loads(schedule.as_json(todo))
    assert [run["arm"] for run in answer["runs"]] == [arm.name for arm in demo.arms]
    split = answer["runs"][2]
    assert [(e["role"], e["group"]) for e in split["engines"]] == [
        ("prefill", "GROUP_A"),
        ("decode", "GROUP_B"),
    ]
    expected = sum(run["expect_s"] for run in answer["runs"]) + schedule.CALIBRATION_S
    assert answer["expect_s"] == pytest.approx(expected, abs=len(answer["runs"]))
    assert "first guess" in answer["basis"]
    assert not list(tmp_path.iterdir()), "planning writes nothing"


def test_times_are_those_of_the_campaign_before(demo: Campaign, tmp_path: Path) -> None:
    cell = demo.cells[0].id
    folder = new_folder(tmp_path, "demo")
    took(folder, "copies_2048", cell, 100.0)
    took(folder, "split_1p1d", cell, 50.0)
    todo = schedule.prepare(demo, tmp_path)
    assert todo.measured_in == folder
    first, other, split = todo.runs
    assert todo.seconds(first) - todo.seconds(split) == pytest.approx(50.0)
    assert todo.seconds(other) == pytest.approx(todo.seconds(split)), "of another arm: the last"
    assert str(folder) in schedule.as_text(todo)


def test_what_is_done_is_not_planned(demo: Campaign, tmp_path: Path) -> None:
    two = dataclasses.replace(demo, blocks=2)
    text = schedule.as_text(schedule.prepare(two, tmp_path, blocks=[1]))
    assert text.startswith("demo: 3 of 6 runs to do")
    assert [line.split()[3] for line in text.splitlines()[1:4]] == ["2", "2", "2"]
    with pytest.raises(QuestionError, match="no block 3"):
        schedule.prepare(two, tmp_path, blocks=[2])


def test_arms_can_be_planned_alone(demo: Campaign, tmp_path: Path) -> None:
    two = dataclasses.replace(demo, blocks=2)
    todo = schedule.prepare(two, tmp_path, arms=["copies_256", "split_1p1d"], blocks=[0])
    assert [(run.block, run.arm.name) for run in todo.runs] == [
        (0, "copies_256"),
        (0, "split_1p1d"),
    ]
    with pytest.raises(QuestionError, match="no arm 'split'") as caught:
        schedule.prepare(two, tmp_path, arms=["split"])
    assert "split_1p1d" in caught.value.remedy


def test_a_host_that_cannot_run_it_can_plan_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    monkeypatch.setattr(installed, "require", lambda *_: None)
    todo = schedule.prepare(load_campaign(CONFIGS / "budget_sweep_h200.yaml"), tmp_path)
    assert todo.obstacle is not None
    assert "this host has none" in todo.obstacle.what
    assert len(todo.runs) == 10


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda p: p.stem)
def test_every_campaign_that_comes_along_says_how_long_it_takes(path: Path) -> None:
    campaign = load_campaign(path)
    pace = Pace((*campaign.gates, *campaign.cells))
    for run in plan.runs(campaign):
        assert pace.run_s(run.arm.name, campaign.gates, campaign.cells) > 60


def test_a_time_budget_ends_before_a_run_that_would_not(demo: Campaign, tmp_path: Path) -> None:
    todo = schedule.prepare(dataclasses.replace(demo, time_budget_s=1000.0), tmp_path)
    first, second, _ = todo.runs
    a_run = todo.seconds(second)
    assert not todo.exceeds(5000, first), "one run at least"
    assert not todo.exceeds(999 - a_run, second)
    assert todo.exceeds(1001 - a_run, second)
    assert not schedule.prepare(demo, tmp_path).exceeds(1e9, second)


def test_where_nothing_is_to_be_resumed_the_plan_says_so(demo: Campaign, tmp_path: Path) -> None:
    todo = schedule.prepare(demo, tmp_path, continued=True)
    said = f"note: nothing to resume under {tmp_path}: a new campaign"
    assert said in schedule.as_text(todo)
    assert json.loads(schedule.as_json(todo))["notes"] == [said.removeprefix("note: ")]
    assert schedule.prepare(demo, tmp_path).notes == ()


def test_a_code_that_is_none_is_refused(demo: Campaign, tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="no code 'NOPE'") as refused:
        schedule.prepare(demo, tmp_path, continued=True, redo=["BUSY", "NOPE"])
    assert "BUSY" in refused.value.remedy
