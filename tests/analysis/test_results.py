"""Results folders as they are found: whole, torn, foreign, edited by hand, empty."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.report.synthetic import make

from twolane.analysis.reading import without_gaps
from twolane.analysis.results import Results, load
from twolane.errors import QuestionError
from twolane.records import Request
from twolane.report import html


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "demo")


def first_run(folder: Path) -> Path:
    return sorted((folder / "runs").iterdir())[0]


def faults(results: Results) -> list[str]:
    """Reads everything, then names each fault as `file:line why`."""
    for run in results.runs:
        list(run.requests())
        list(run.samples())
        assert run.cells is not None
        assert run.needle is run.needle
    return [f"{Path(bad.path).name}:{bad.line} {bad.why}" for bad in results.faults]


def test_a_whole_folder_has_its_runs_in_the_order_they_ran(folder: Path) -> None:
    results = load(folder)
    assert results.campaign == "synthetic"
    assert results.arms == ("copies_2048", "copies_256", "split_1p1d")
    assert results.blocks == (0,)
    assert [run.meta.order for run in results.runs] == [0, 1, 2]
    assert faults(results) == []


def test_requests_are_chosen_by_role_and_cell(folder: Path) -> None:
    run = load(folder).runs[0]
    assert [r.role for r in run.requests("aggressor", "null")] == ["null", "aggressor"]
    assert len(list(run.requests("victim"))) == 4
    assert len(list(run.requests())) == 46
    assert len(list(run.requests(cell="c4 in512 out64 n40"))) == 40


def test_a_torn_last_line_is_named_and_the_rest_is_kept(folder: Path) -> None:
    path = first_run(folder) / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    results = load(folder)
    assert len(list(results.runs[0].requests())) == 45
    damaged, fault = faults(results)
    assert fault.startswith("requests.jsonl:46 torn last line")
    assert "has 39 lines of it, 40 were written" in damaged


def test_a_fault_is_counted_once_however_often_its_file_is_read(folder: Path) -> None:
    (first_run(folder) / "requests.jsonl").write_text("not json\n")
    results = load(folder)
    for _ in range(3):
        assert list(results.runs[0].requests()) == []
    assert [fault for fault in faults(results) if fault.startswith("requests.jsonl:1")]
    assert len(set(faults(results))) == len(results.faults) == 3


def test_a_run_of_another_schema_is_left_out_by_name(folder: Path) -> None:
    path = first_run(folder) / "run.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))
    results = load(folder)
    assert results.arms == ("copies_256", "split_1p1d")
    assert faults(results) == ["run.json:0 schema 9; this twolane reads schema 1"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 3}', "\x00\xff"])
def test_a_run_description_that_cannot_be_read_is_left_out_by_name(folder: Path, text: str) -> None:
    (first_run(folder) / "run.json").write_bytes(text.encode("latin-1"))
    results = load(folder)
    assert len(results.runs) == 2
    assert len(faults(results)) == 1


def test_missing_files_of_a_run_are_named(folder: Path) -> None:
    for name in ("requests.jsonl", "cells.jsonl", "needle.json", "metrics.jsonl"):
        (first_run(folder) / name).unlink()
    results = load(folder)
    assert not results.runs[0].cells
    assert results.runs[0].needle is None
    told = sorted(faults(results))
    lost = [fault for fault in told if "its line in cells.jsonl is gone" in fault]
    assert len(lost) == 2
    assert [fault for fault in told if fault not in lost] == [
        "cells.jsonl:0 file is missing",
        "metrics.jsonl:0 file is missing",
        "needle.json:0 file is missing",
        "requests.jsonl:0 file is missing",
    ]


def test_stray_files_and_folders_do_not_matter(folder: Path) -> None:
    (folder / "runs" / "notes.txt").write_text("mine")
    (folder / "runs" / "empty").mkdir()
    results = load(folder)
    assert len(results.runs) == 3
    assert faults(results) == ["run.json:0 file is missing"]


def test_no_folder_is_a_bad_question(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="there is no such folder") as error:
        load(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(error.value)


def test_a_folder_without_runs_is_a_bad_question(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="no folder `runs`"):
        load(tmp_path)


def test_events_are_read_where_there_are_any(folder: Path) -> None:
    assert [event.step for event in load(folder).events()] == ["note"]
    (folder / "events.jsonl").unlink()
    results = load(folder)
    assert results.events() == []
    assert list(results.faults) == []


def test_requests_come_without_their_gaps_where_nobody_asks_for_them(folder: Path) -> None:
    run = load(folder).runs[0]
    for brief, whole in zip(run.requests(gaps=False), run.requests(), strict=True):
        assert brief == msgspec.structs.replace(whole, gaps_ns=[])


def test_a_text_that_quotes_a_gap_is_kept() -> None:
    request = Request(
        id="a", cell="c", role="probe", index=0, send_ns=1, due_ns=1, text=',"gaps_ns":[1,2]',
        gaps_ns=[7, 8], tokens=[1, 2, 1],
    )  # fmt: skip
    line = without_gaps(msgspec.json.encode(request))
    assert msgspec.json.decode(line, type=Request) == msgspec.structs.replace(request, gaps_ns=[])
    bare = msgspec.json.encode(msgspec.structs.replace(request, gaps_ns=[]))
    assert without_gaps(bare) == bare


def test_every_nth_request_is_a_sample_of_the_chosen_ones(folder: Path) -> None:
    run = load(folder).runs[0]
    every = [r.id for r in run.requests("grid", cell="c4 in512 out64 n40")]
    assert [r.id for r in run.requests("grid", cell="c4 in512 out64 n40", every=7)] == every[::7]
    assert run.count("c4 in512 out64 n40") == 40
    assert run.count("no such cell") is None


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": [1] * 3},
        {"tokens": [7]},
        {"tokens": [1] * 5000},
        {"tokens": [1] * 3, "gaps_ns": []},
        {"gaps_ns": []},
    ],
    ids=["shorter", "single", "longer", "no gaps", "one event"],
)
def test_a_stream_whose_tokens_are_not_those_of_its_events_is_left_out(
    folder: Path, damage: dict[str, object]
) -> None:
    path = first_run(folder) / "requests.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    reader = next(line for line in lines if line["role"] == "victim")
    reader.update(damage)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    results = load(folder)
    assert "DAMAGED" in html(results)
    kept = {request.id for request in results.runs[0].requests()}
    assert (reader["id"] in kept) is ("tokens" not in damage)
    told = [bad.why for bad in results.faults if "counts of tokens" in bad.why]
    assert bool(told) is ("tokens" in damage)
