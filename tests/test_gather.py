"""Parts of one campaign in one folder: nothing twice, nothing lost, nothing of another campaign."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from twolane import campaign, copies, devices, gather, journal, plan, schedule
from twolane.analysis import results as stored
from twolane.cli import cli
from twolane.config import Campaign, load_campaign
from twolane.engines import installed
from twolane.errors import AnswerError, QuestionError
from twolane.gather import STAGING
from twolane.journal import FILE, Journal
from twolane.pace import Pace
from twolane.recorder import Recorder
from twolane.records import CellSummary, Event, RunMeta
from twolane.resume import CUT, left_over

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture(scope="module", autouse=True)
def any_host() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "require", lambda *_: None)
        patch.setattr(installed, "require", lambda *_: None)
        patch.setattr(campaign, "one", played)
        patch.setattr(campaign, "calibrate", uncalibrated)
        yield


async def uncalibrated(*_: Any, **__: Any) -> None:
    return None


async def played(recorder: Recorder) -> RunMeta:
    """Stands for `campaign.one`: a finished run with sealed cells, without engines."""
    recorder.tell("launch", "starting")
    for cell in recorder.campaign.cells:
        recorder.keep_cell(CellSummary(cell=cell, started_ns=1, ended_ns=2, values={"a": 1.0}))
    recorder.finish("done", None)
    return recorder.meta


@pytest.fixture(scope="module")
def demo() -> Campaign:
    return dataclasses.replace(load_campaign(CONFIGS / "demo.yaml"), blocks=2, beside_others=True)


def elsewhere(demo: Campaign, *cores: int) -> Campaign:
    """The same campaign on other cores."""
    groups = {"GROUP_A": (cores[0],), "GROUP_B": (cores[1],)}
    places = {name: (name, held) for name, held in groups.items()}
    arms = tuple(dataclasses.replace(a, layout=a.layout.swapped(places)) for a in demo.arms)
    node = dataclasses.replace(demo.models.node, groups=groups)
    models = dataclasses.replace(demo.models, node=node)
    return dataclasses.replace(demo, arms=arms, models=models)


async def measured(demo: Campaign, out: Path, *blocks: int, resume: bool = False) -> Path:
    outcome = await campaign.run(demo, out, lambda _: None, blocks=blocks, continued=resume)
    return outcome.folder


@pytest.fixture(scope="module")
def master(demo: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Block 1 here, block 2 on other cores, each in a folder of its own."""
    folder = tmp_path_factory.mktemp("master")
    asyncio.run(measured(demo, folder / "here", 0))
    asyncio.run(measured(elsewhere(demo, 2, 3), folder / "there", 1))
    return folder


@pytest.fixture
def parts(master: Path, tmp_path: Path) -> list[Path]:
    """Copies that a test may spoil."""
    shutil.copytree(master, tmp_path, dirs_exist_ok=True)
    return [tmp_path / "here" / "demo", tmp_path / "there" / "demo"]


def runs(*folders: Path, sub: str = "runs") -> list[str]:
    return sorted(run.name for folder in folders for run in (folder / sub).iterdir())


def whole(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_parts_become_one_campaign(parts: list[Path], tmp_path: Path) -> None:
    before = [whole(part) for part in parts]
    out = tmp_path / "all" / "demo"
    found = gather.gather(parts, out)
    assert (sorted(found.copied), found.there, found.missing) == (runs(*parts), (), ())
    assert (found.campaign, len(found.done), found.notes) == ("demo", 6, ())
    assert [whole(part) for part in parts] == before, "the parts stay as they are"
    assert sorted(path.name for path in out.iterdir()) == [FILE, "runs"]
    results = stored.load(out)
    results.check()
    assert (list(results.faults), results.absent, results.blocks) == ([], (), (0, 1))
    assert all(run.checked.sealed and not run.checked.damage for run in results.runs)


async def test_it_goes_on_where_the_parts_stopped(demo: Campaign, tmp_path: Path) -> None:
    """Also on devices that the campaign does not name any more."""
    first = await measured(elsewhere(demo, 2, 3), tmp_path / "there", 1)
    shutil.rmtree(next((first / "runs").glob("*split*")))
    gathered = gather.gather([first], tmp_path / "demo")
    assert gathered.missing == (
        ("copies_2048", 0), ("copies_256", 0), ("split_1p1d", 0), ("split_1p1d", 1),
    )  # fmt: skip
    todo = schedule.prepare(demo, tmp_path, continued=True)
    assert [(run.arm.name, run.block) for run in todo.runs] == list(gathered.missing)
    assert "2 of the runs here were measured on other devices" in schedule.as_text(todo)
    await measured(demo, tmp_path, resume=True)
    assert stored.load(tmp_path / "demo").absent == ()


def test_doing_it_again_adds_only_what_is_new(parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    first = gather.gather(parts[:1], out)
    both = gather.gather(parts[1:], out)
    assert (first.copied, both.there) == (both.there, first.copied)
    kept = whole(out)
    again = gather.gather([out, *parts, parts[0]], out)
    assert (again.copied, sorted(again.there)) == ((), runs(*parts))
    assert whole(out) == kept


def edit(run: Path, change: Any) -> None:
    """Change run.json as plain JSON."""
    plain = json.loads((run / "run.json").read_bytes())
    change(plain)
    (run / "run.json").write_text(json.dumps(plain))


def unsealed(run: Path) -> None:
    """As an older twolane left it: believed, whatever has changed since."""
    edit(run, lambda meta: meta.update(seal={}))
    cells = run / "cells.jsonl"
    lines = [json.loads(line) | {"seal": None} for line in cells.read_text().splitlines()]
    cells.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(campaign="other"), 'name is "other"'),
        (lambda m: m["versions"].update(twolane="9"), 'twolane is "9"'),
        (lambda m: m["config"].update(seed=7), "seed is 7, in .* it is 1"),
        (lambda m: m["config"]["cells"].pop(), "cells is "),
        (lambda m: m["config"]["arms"].pop("copies_256"), "arms.copies_256 is not there, .* there"),
        (
            lambda m: m["config"]["arms"]["copies_256"]["engines"][0]["args"].append("--x"),
            r'arms.copies_256.engines.0.args is \["--x"\]',
        ),
        (lambda m: m["config"]["model"].update(content="sha256:1"), "model.content is"),
        (lambda m: m["config"]["node"]["groups"].pop("GROUP_B"), "groups.GROUP_B is not there"),
        (lambda m: m["config"].pop("key"), "not a run of a campaign"),
    ],
)
def test_another_campaign_is_refused_by_the_setting_that_differs(
    parts: list[Path], tmp_path: Path, change: Any, said: str
) -> None:
    run = next((parts[1] / "runs").iterdir())
    edit(run, change)
    with pytest.raises(QuestionError, match=said) as refused:
        gather.gather(parts, tmp_path / "demo")
    assert refused.value.place == str(run)
    assert refused.value.remedy
    assert not (tmp_path / "demo").exists(), "nothing is written"


async def test_what_changes_no_run_is_told_and_not_refused(demo: Campaign, tmp_path: Path) -> None:
    first = await measured(demo, tmp_path / "a", 0)
    more = dataclasses.replace(demo, blocks=3, margin=0.05)
    second = await measured(more, tmp_path / "b", 2)
    found = gather.gather([first, second], tmp_path / "demo")
    assert [note.partition(":")[0] for note in found.notes] == ["blocks", "margin"]
    assert [block for _, block in found.missing] == [1, 1, 1]


def test_two_unlike_runs_of_one_id_are_refused(parts: list[Path], tmp_path: Path) -> None:
    run = next((parts[0] / "runs").iterdir())
    other = parts[1] / "runs" / run.name
    shutil.copytree(run, other)
    gather.gather(parts, tmp_path / "alike")
    (other / "cells.jsonl").write_bytes(b"{}\n")
    with pytest.raises(QuestionError, match=r"two different runs have one id: cells\.jsonl") as no:
        gather.gather(parts, tmp_path / "demo")
    assert (no.value.place, str(run) in no.value.what) == (str(other), True)
    assert no.value.remedy.startswith(f"move {other} out of its part: it is not whole (")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"schema": 1, "id"', "its run.json cannot be read"),
        (b"[" * 200_000, "its run.json cannot be read"),
        (b'{"schema": 99}', "its run.json has schema 99, this twolane reads schema "),
    ],
    ids=["torn", "nested without end", "of another schema"],
)
def test_of_two_runs_of_one_id_the_unreadable_one_is_named(
    parts: list[Path], tmp_path: Path, text: bytes, why: str
) -> None:
    run = next((parts[0] / "runs").iterdir())
    other = parts[1] / "runs" / run.name
    shutil.copytree(run, other)
    (run / "run.json").write_bytes(text)
    with pytest.raises(QuestionError, match="two different runs have one id") as no:
        gather.gather(parts, tmp_path / "demo")
    assert no.value.remedy.startswith(f"move {run} out of its part: {why}")


async def test_work_that_was_done_twice_counts_once(demo: Campaign, tmp_path: Path) -> None:
    """On the same devices the first counts; on others a block would be of both."""
    first, again = [await measured(demo, tmp_path / name, 0) for name in "ab"]
    for number, run in enumerate(sorted((again / "runs").iterdir())):  # begun in another second
        name = f"z{number}"
        edit(run, lambda meta, name=name: meta.update(id=name))
        unsealed(run)
        run.rename(run.with_name(name))
    found = gather.gather([first, again], tmp_path / "demo")
    assert (len(found.copied), len(found.done), len(found.missing)) == (6, 3, 3)
    assert sum("measured twice" in note for note in found.notes) == 3
    other = await measured(elsewhere(demo, 2, 3), tmp_path / "c", 0)
    with pytest.raises(QuestionError, match="measured twice, on other devices"):
        gather.gather([first, other], tmp_path / "refused")


async def test_a_cut_run_that_another_part_did_again_is_set_aside(
    demo: Campaign, tmp_path: Path
) -> None:
    first, again = [await measured(demo, tmp_path / name, 0) for name in "ab"]
    cut = next((first / "runs").iterdir())
    edit(cut, lambda meta: meta.update(status="failed", id="cut_one"))
    cut.rename(cut.with_name("cut_one"))
    for run in sorted((first / "runs").glob("needle*")):
        shutil.rmtree(run)
    found = gather.gather([first, again], tmp_path / "demo")
    assert (found.aside, runs(tmp_path / "demo", sub=CUT)) == (("cut_one",), ["cut_one"])
    assert len(found.done) == 3
    into = gather.gather([again], first)
    assert (into.aside, runs(first, sub=CUT)) == (("cut_one",), ["cut_one"])
    assert gather.gather([first, again], tmp_path / "demo").copied == ()


def cut_short(run: Path) -> None:
    """What a full disk or a copy that was broken off leaves: run.json says done."""
    cells = run / "cells.jsonl"
    cells.write_bytes(cells.read_bytes()[:-60])


def test_a_finished_run_whose_files_are_cut_is_kept_and_told(
    demo: Campaign, parts: list[Path], tmp_path: Path
) -> None:
    run = next((parts[0] / "runs").iterdir())
    cut_short(run)
    found = gather.gather(parts, tmp_path / "demo")
    assert (found.damaged, len(found.done)) == ((run.name,), 6)
    (note,) = found.notes
    assert note.startswith(f"{run}: its run.json says done, and its files are not as they were")
    words = ["gather", *map(str, parts), "--out", str(tmp_path / "again" / "demo")]
    told = CliRunner().invoke(cli, words)
    assert "--resume --redo DAMAGED --out" in told.output
    planned, on = plan.runs(demo), partial(plan.on_groups, demo)
    assert not left_over(planned, tmp_path / "demo", (), on).runs
    again = left_over(planned, tmp_path / "demo", {"DAMAGED"}, on)
    assert [path.name for path in again.cut] == [run.name]


async def test_a_whole_run_counts_before_one_whose_files_are_cut(
    demo: Campaign, tmp_path: Path
) -> None:
    first, again = [await measured(demo, tmp_path / name, 0) for name in "ab"]
    for number, run in enumerate(sorted((again / "runs").iterdir())):
        edit(run, lambda meta, number=number: meta.update(id=f"z{number}"))
        unsealed(run)
        run.rename(run.with_name(f"z{number}"))
    run = min((first / "runs").iterdir())
    cut_short(run)
    found = gather.gather([first, again], tmp_path / "demo")
    assert (found.aside, found.damaged, len(found.done)) == ((run.name,), (), 3)
    assert runs(tmp_path / "demo", sub=CUT) == [run.name]


def test_another_versions_runs_are_named_with_what_helps(parts: list[Path], tmp_path: Path) -> None:
    run, *rest = sorted((parts[1] / "runs").iterdir())
    edit(run, lambda meta: meta.update(schema=99, config="of another shape"))
    (note,) = gather.gather(parts, tmp_path / "demo").notes
    assert note.startswith(f"{run}: its run.json has schema 99, this twolane reads schema ")
    for one in rest:
        edit(one, lambda meta: meta.update(schema=99))
    with pytest.raises(QuestionError, match="its runs have schema 99") as refused:
        gather.gather(parts, tmp_path / "all")
    assert "the twolane that wrote it" in refused.value.remedy


def test_what_a_part_set_aside_stays_aside(parts: list[Path], tmp_path: Path) -> None:
    """A run that was done again for a code is done, and yet counts no more."""
    run = next((parts[0] / "runs").iterdir())
    (parts[1] / CUT).mkdir()
    shutil.copytree(run, parts[1] / CUT / run.name)
    found = gather.gather(parts, tmp_path / "demo")
    assert (found.aside, len(found.done)) == ((run.name,), 5)
    assert runs(tmp_path / "demo", sub=CUT) == [run.name]


def test_half_written_runs_are_kept_and_told(parts: list[Path], tmp_path: Path) -> None:
    torn, empty = sorted((parts[0] / "runs").iterdir())[:2]
    (torn / "run.json").write_bytes((torn / "run.json").read_bytes()[:200])
    for path in empty.iterdir():
        path.unlink()
    found = gather.gather(parts, tmp_path / "demo")
    assert len(found.copied) == 6
    assert sum("run.json cannot be read" in note for note in found.notes) == 2
    assert len(stored.load(tmp_path / "demo").runs) == len(found.done) == 4


def nothing_readable(part: Path) -> None:
    for run in (part / "runs").iterdir():
        (run / "run.json").write_bytes(b"\xff")


def a_pipe(part: Path) -> None:
    os.mkfifo(next((part / "runs").iterdir()) / "pipe")


def no_runs(part: Path) -> None:
    shutil.rmtree(part / "runs")


def only_a_folder(part: Path) -> None:
    shutil.rmtree(part / "runs")
    (part / "runs").mkdir()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (nothing_readable, "no run here can be read"),
        (a_pipe, "neither a file nor a folder"),
        (no_runs, "it has no folder `runs`"),
    ],
)
def test_a_part_that_is_none_is_refused(
    parts: list[Path], tmp_path: Path, spoil: Any, said: str
) -> None:
    spoil(parts[1])
    with pytest.raises(QuestionError, match=said):
        gather.gather(parts, tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_where_it_cannot_go_is_refused(parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").touch()
    with pytest.raises(QuestionError, match="something else than a campaign"):
        gather.gather(parts, tmp_path / "home")
    with pytest.raises(QuestionError, match="lies inside of"):
        gather.gather(parts, parts[0] / "runs" / "all")
    with pytest.raises(QuestionError, match="lies inside of"):
        gather.gather(parts, parts[1] / "all")
    assert not (parts[1] / "all").exists()
    for part in parts:
        only_a_folder(part)
    with pytest.raises(QuestionError, match="no run is here"):
        gather.gather(parts, tmp_path / "demo")


def test_a_disk_that_is_too_small_is_told_before_it_is_full(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "_ROOM_BYTES", 1 << 60)
    with pytest.raises(QuestionError, match=r": [1-9][\d.]* kB are to be copied and .* are free"):
        gather.gather(parts, tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_a_disk_that_fills_up_all_the_same_is_told_with_its_folder(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, said = invoked(*parts, "--out", tmp_path / "demo")
    assert code == 1
    assert f"{tmp_path / 'demo'}: No space left on device" in said


def test_what_the_system_refuses_of_an_open_file_names_it(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"Input/output error: '.*/file'"),
        copies.naming(tmp_path / "file"),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(FileNotFoundError, match="'/nowhere'"), copies.naming(tmp_path):
        Path("/nowhere").read_bytes()


def test_a_folder_that_is_being_written_is_waited_for(parts: list[Path], tmp_path: Path) -> None:
    with Journal(parts[1], Pace(()), lambda _: None):
        with pytest.raises(QuestionError, match="a twolane writes it now") as refused:
            gather.gather(parts, tmp_path / "demo")
        assert refused.value.place == str(parts[1])
        with pytest.raises(QuestionError, match="a twolane writes it now"):
            gather.gather(parts[:1], parts[1])


def test_no_run_is_ever_seen_by_half(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut at any byte, it leaves whole runs alone, and the next time does the rest."""
    out = tmp_path / "demo"
    left = [0]

    class CutError(Exception):
        pass

    def told(name: str, read: int, total: int) -> None:
        assert 0 < read <= total
        left[0] -= 1
        if left[0] < 0:
            raise CutError

    cuts = 0
    while True:
        left[0] = 2 * (1 + cuts)
        try:
            found = gather.gather(parts, out, told)
        except CutError:
            cuts += 1
            kept = stored.load(out)
            kept.check()
            assert not list(kept.faults)
            assert all(run.finished for run in kept.runs)
            continue
        break
    assert cuts > 3
    assert (len(found.done), (out / STAGING).exists()) == (6, False)
    assert [whole(out / "runs" / name) for name in runs(*parts)] == [
        whole(run) for run in sorted((r for p in parts for r in (p / "runs").iterdir()), key=_name)
    ]


def _name(path: Path) -> str:
    return path.name


def test_a_file_that_grows_while_it_is_copied_is_no_copy(tmp_path: Path) -> None:
    source = tmp_path / "run"
    source.mkdir()
    (source / "requests.jsonl").write_bytes(b"1\n")

    def told(*_: Any) -> None:
        with (source / "requests.jsonl").open("ab") as file:
            file.write(b"2\n")

    reading = copies.Reading(2, told)
    with pytest.raises(AnswerError, match="it changed while it was copied"):
        copies.copy(source, tmp_path / "runs" / "run", tmp_path / STAGING, reading)
    assert not (tmp_path / "runs" / "run").exists()


# ---------------------------------------------------------------------------------------- events


def lines(folder: Path) -> list[Event]:
    decoded = map(msgspec.json.Decoder(Event).decode, (folder / FILE).read_bytes().splitlines())
    return list(decoded)


def test_events_of_parts_stand_behind_each_other_by_their_begin(
    demo: Campaign, parts: list[Path], tmp_path: Path
) -> None:
    """The second part began first, on a host that had been up for longer."""
    for run in (parts[1] / "runs").iterdir():
        edit(run, lambda meta: meta.update(started_at="2001-01-01T00:00:00+00:00"))
    later = [msgspec.structs.replace(e, t_ns=e.t_ns + 10**15) for e in lines(parts[1])]
    (parts[1] / FILE).write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in later))
    out = tmp_path / "demo"
    gather.gather(parts, out)
    assert lines(out) == later + lines(parts[0])
    pace = Pace(demo.cells, before=lines(out))
    assert pace.seen == 6
    assert pace.expect_s("copies_2048", "launch:") is not None


def test_a_stretch_is_kept_once_at_its_longest(parts: list[Path], tmp_path: Path) -> None:
    """A part that was carried over while it ran, and again when it had ended."""
    early = tmp_path / "early"
    shutil.copytree(parts[0], early)
    kept = (early / FILE).read_bytes().splitlines(keepends=True)
    (early / FILE).write_bytes(b"".join(kept[:4]) + b'{"t_ns": 1, "ru')
    found = gather.gather([early, *parts], tmp_path / "demo")
    assert [note for note in found.notes if "1 lines cannot be read" in note]
    assert lines(tmp_path / "demo") == lines(parts[0]) + lines(parts[1])


def test_events_before_any_begin_are_a_stretch_too(tmp_path: Path) -> None:
    old = Event(t_ns=5, run="r", step="launch", text="")
    (tmp_path / FILE).write_bytes(msgspec.json.encode(old))
    (found,), unread = journal.stretches(tmp_path)
    assert (found.runs, unread, found.lines[0][-1:]) == (frozenset("r"), 0, b"\n")
    assert journal.stretches(tmp_path / "nowhere") == ([], 0)


# -------------------------------------------------------------------------------------- command


def invoked(*words: str | Path) -> tuple[int, str]:
    told = CliRunner().invoke(cli, ["gather", *map(str, words)])
    return told.exit_code, told.output


def test_the_command_says_what_is_there_and_what_is_next(parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    code, said = invoked(parts[0], "--out", out)
    assert code == 0
    assert f"demo: 3 of 6 runs are in {out}; 3 were copied, 0 were there" in said
    assert "not measured: split_1p1d, block 2" in said
    assert f"twolane run CAMPAIGN --resume --out {tmp_path}" in said
    assert "rename it to demo" in invoked(parts[0], "--out", tmp_path / "other")[1]
    code, said = invoked(*parts, "--out", out, "--json")
    answer = json.loads(said)
    assert (code, answer["campaign"], answer["missing"]) == (0, "demo", [])
    assert (len(answer["copied"]), len(answer["there"])) == (3, 3)


def test_a_folder_that_is_not_there_is_a_bad_question(tmp_path: Path) -> None:
    code, said = invoked(tmp_path / "nowhere", "--out", tmp_path / "demo")
    assert code == 2
    assert "there is no such folder" in said
    assert "remedy" in said


def test_the_plan_on_other_devices_is_the_same_but_for_them(demo: Campaign) -> None:
    there = plan.on_groups(demo, {"GROUP_A": (2,), "GROUP_B": (3,)})
    here = plan.runs(demo)
    assert [(r.arm.name, r.block, r.seed) for r in there] == [
        (r.arm.name, r.block, r.seed) for r in here
    ]
    assert not {r.key for r in there} & {r.key for r in here}
    assert {d for r in there for e in r.layout.engines for d in e.devices} == {2, 3}
    assert [r.key for r in there] == [r.key for r in plan.runs(elsewhere(demo, 2, 3))]
