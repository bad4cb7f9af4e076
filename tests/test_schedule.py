"""What a campaign will do, known before anything starts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from twolane import devices, plan, schedule
from twolane.clock import NS
from twolane.config import Campaign, load_campaign
from twolane.config.cells import parse_cell
from twolane.engines import installed
from twolane.errors import QuestionError
from twolane.pace import CPU, Pace, guess
from twolane.recorder import new_folder
from twolane.records import Appender, Event, InterferenceCell, RunMeta, write_json

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


def measured(folder: Path, model: str, host: dict[str, object], cell: str, seconds: float) -> None:
    """A campaign of one run of `model` on `host`, in whose `cell` it was so many seconds."""
    took(folder, "other", cell, seconds)
    meta = RunMeta(
        id="r", campaign=folder.name, arm="other", model=model, layout="l", context=1, block=0,
        order=0, seed=1, started_at="", boot="", config={"node": {"platform": "cpu"}},
        config_hash="", versions={}, host=host, cells=[], status="done",
    )  # fmt: skip
    (folder / "runs" / "r").mkdir()
    write_json(folder / "runs" / "r" / "run.json", meta)


def test_a_campaign_of_another_name_teaches_what_its_model_takes_here(
    demo: Campaign, tmp_path: Path
) -> None:
    """Its launches, the cells that are the same, and from the others how fast prompts are read."""
    first = schedule.prepare(demo, tmp_path)
    assert "nothing of this model" in first.basis
    measured(new_folder(tmp_path, "sweep"), "needle", devices.describe(), "needle 6000", 60.0)
    todo = schedule.prepare(demo, tmp_path)
    assert (todo.measured_in, todo.learnt_from) == (None, (tmp_path / "sweep",))
    assert str(tmp_path / "sweep") in todo.basis
    pace = todo.pace
    assert pace.expect_s("copies_256", "launch:") == 30.0
    fixed = guess(demo.cells[0], dataclasses.replace(CPU, prefill_tok_s=1e12)).expect
    work = pace.expect_s("copies_256", f"cell:{demo.cells[0].id}")
    assert work is not None
    asked = demo.cells[0]
    assert isinstance(asked, InterferenceCell)
    assert work - fixed == pytest.approx(asked.shots * asked.prompt / 300.0)
    assert todo.total_s > first.total_s


@pytest.mark.parametrize("strange", ["model", "host", "unreadable", "no run"])
def test_what_was_measured_elsewhere_teaches_nothing(
    demo: Campaign, tmp_path: Path, strange: str
) -> None:
    host = devices.describe() | ({"cpu": "another"} if strange == "host" else {})
    folder = new_folder(tmp_path, "sweep")
    measured(folder, "other" if strange == "model" else "needle", host, "needle 6000", 60.0)
    if strange == "unreadable":
        (folder / "runs/r/run.json").write_bytes(b"[" * 100_000)
    if strange == "no run":
        (folder / "runs/r/run.json").unlink()
    todo = schedule.prepare(demo, tmp_path)
    assert (todo.learnt_from, todo.measured_in) == ((), None)


def test_the_plan_says_between_what_it_should_last(demo: Campaign, tmp_path: Path) -> None:
    todo = schedule.prepare(demo, tmp_path)
    answer = json.loads(schedule.as_json(todo))
    assert answer["expect_from_s"] < answer["expect_s"] < answer["expect_to_s"]
    assert answer["expect_to_s"] < 3 * answer["expect_from_s"]
    assert " in all, between " in schedule.as_text(todo)


# What the runs of published campaigns took together, in minutes.
TOOK = {"budget_sweep": 17.0, "budget_sweep_8b": 33.0, "budget_sweep_h200": 35.0, "ramp_1m": 4.2}


@pytest.mark.parametrize("name", TOOK)
def test_first_guesses_hold_what_was_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "require", lambda *_: None)
    monkeypatch.setattr(installed, "require", lambda *_: None)
    todo = schedule.prepare(load_campaign(CONFIGS / f"{name}.yaml"), tmp_path)
    assert todo.lasts.low < 60 * TOOK[name] < todo.lasts.high
    assert todo.total_s == pytest.approx(60 * TOOK[name], rel=0.2)


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


def test_to_do_again_what_is_not_there_is_refused(demo: Campaign, tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="nothing to do again") as refused:
        schedule.prepare(demo, tmp_path, continued=True, redo=["BUSY"])
    assert "--out" in refused.value.remedy


def keep(campaign: Campaign, folder: Path) -> None:
    """Every run of `campaign`, finished."""
    for step in plan.runs(campaign):
        run = folder / "runs" / step.key
        run.mkdir(parents=True)
        write_json(
            run / "run.json",
            RunMeta(
                id=step.key, campaign=campaign.name, arm=step.arm.name, model="needle",
                layout="copies", context=campaign.context, block=step.block, order=step.order,
                seed=step.seed, started_at="", boot="", config_hash="", versions={}, host={},
                config=campaign.resolved() | {"key": step.key}, cells=list(campaign.cells),
                status="done",
            ),
        )  # fmt: skip


def test_fewer_blocks_than_were_measured_are_refused_with_their_number(
    demo: Campaign, tmp_path: Path
) -> None:
    keep(dataclasses.replace(demo, blocks=3), new_folder(tmp_path, "demo"))
    with pytest.raises(QuestionError) as refused:
        schedule.prepare(demo, tmp_path, continued=True)
    assert "of further blocks: 3 were measured, and this campaign has 1" in refused.value.what
    assert refused.value.remedy == "give --blocks 3, as many as there are here"


def test_a_changed_campaign_is_refused_with_what_was_changed(
    demo: Campaign, tmp_path: Path
) -> None:
    keep(demo, new_folder(tmp_path, "demo"))
    cells = (parse_cell("interference victims=2 prompt=7000"), *demo.cells[1:])
    changed = dataclasses.replace(demo, cells=cells, seed=demo.seed + 1)
    with pytest.raises(QuestionError) as refused:
        schedule.prepare(changed, tmp_path, continued=True)
    assert f"seed: {demo.seed} -> {demo.seed + 1}" in refused.value.what
    assert f"cells: {demo.cells[0].id} -> {cells[0].id}" in refused.value.what
    assert "without --resume" in refused.value.remedy


@pytest.mark.parametrize("damage", ["absurd", "negative", "shuffled", "no cell", "no launch"])
def test_damaged_events_teach_nothing(demo: Campaign, tmp_path: Path, damage: str) -> None:
    """What is left then is the run of another arm, whose events are whole."""
    cell = demo.cells[0].id
    folder = new_folder(tmp_path, "demo")
    keep(demo, folder)
    runs = plan.runs(demo)[:2]
    with Appender(folder / "events.jsonl") as events:
        for run, seconds in zip(runs, (100.0, 50.0), strict=True):
            for event in steps_of(demo, run.key, run.arm.name, seconds):
                events.append(event)
    path = folder / "events.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    half = len(whole) // 2
    told = schedule.prepare(demo, tmp_path).pace
    assert told.expect_s(runs[0].arm.name, f"cell:{cell}") == 100.0
    lines = [json.loads(line) for line in whole[:half]]
    if damage == "absurd":
        lines[-1]["t_ns"] = 10**18
    if damage == "negative":
        lines[3]["t_ns"] = -(10**18)
    if damage == "shuffled":
        lines[3], lines[4] = lines[4], lines[3]
    if damage == "no cell":
        del lines[-3]
    if damage == "no launch":
        del lines[0]
    path.write_bytes(
        b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b"".join(whole[half:])
    )
    pace = schedule.prepare(demo, tmp_path).pace
    assert pace.seen == 1
    assert pace.expect_s(runs[0].arm.name, f"cell:{cell}") == 50.0


def steps_of(campaign: Campaign, run: str, arm: str, seconds: float) -> list[Event]:
    """A whole run's steps, a minute each but for the first cell."""
    gates, (first, *cells) = campaign.gates, campaign.cells
    steps = [("launch", None, 60.0), *(("gate", gate.id, 60.0) for gate in gates)]
    steps += [("cell", first.id, seconds), *(("cell", cell.id, 60.0) for cell in cells)]
    at, events = 0.0, []
    for step, cell, lasts in [*steps, ("stop", None, 60.0), ("done", None, 0.0)]:
        events.append(Event(t_ns=round(at * NS), run=run, step=step, text="", arm=arm, cell=cell))
        at += lasts
    return events
