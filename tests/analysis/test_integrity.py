"""What happens to results by accident: named, coded, counted, and never a figure changed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.report.synthetic import GRID, INTERFERENCE, make

from twolane.analysis.points import Measured, measure
from twolane.analysis.results import Results, load
from twolane.records import (
    AnyCell,
    CellSummary,
    NeedleResult,
    Request,
    RunMeta,
    read_json,
    write_json,
)
from twolane.seal import RequestFile, close_run

Lines = list[bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "demo", blocks=2)


def first(folder: Path) -> Path:
    return load(folder).runs[0].folder


def change(path: Path, edit: Callable[[Lines], Lines]) -> None:
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))


def by_place(folder: Path) -> dict[tuple[str, str], Measured]:
    return {(one.run.id, one.cell.id): one for one in measure(load(folder))}


def damaged(folder: Path) -> dict[str, str]:
    """Cells of the first run with the code, and why."""
    run = first(folder).name
    codes = {place: one.codes for place, one in by_place(folder).items() if one.codes}
    assert all(place[0] == run for place in codes)
    return {cell: code.why for (_, cell), found in codes.items() for code in found
            if code.code == "DAMAGED"}  # fmt: skip


def told(results: Results) -> str:
    measure(results)
    return "\n".join(f"{bad.path}:{bad.line}: {bad.why}" for bad in results.faults)


def test_a_whole_folder_is_believed_and_nothing_is_recomputed(folder: Path) -> None:
    results = load(folder)
    written = measure(results)
    assert not [one for one in written if one.codes]
    assert told(results) == ""
    assert results.unsealed == ()


def test_what_a_cell_wrote_down_is_what_its_requests_give(folder: Path) -> None:
    results = load(folder)
    assert [one.values for one in measure(results)] == [
        one.values for one in measure(results, recompute=True)
    ]


NTH = 2  # a line of the first cell, which is the interference cell
LAST = -1  # a line of the second, the grid


@pytest.mark.parametrize(
    ("edit", "hurt", "why"),
    [
        (lambda ls: [*ls[:NTH], ls[NTH], *ls[NTH:]], INTERFERENCE.id, "7 lines of it, 6 were"),
        (lambda ls: [*ls[:NTH], *ls[NTH + 1 :]], INTERFERENCE.id, "5 lines of it, 6 were"),
        (lambda ls: [ls[1], ls[0], *ls[2:]], INTERFERENCE.id, "are not those that were written"),
        (lambda ls: [*ls, ls[NTH]], INTERFERENCE.id, "7 lines of it, 6 were"),
        (lambda ls: [*ls, ls[LAST]], GRID.id, "41 lines of it, 40 were"),
        (lambda ls: ls[:-4], GRID.id, "36 lines of it, 40 were"),
        (lambda ls: [*ls[:-1], ls[-1][:-30]], GRID.id, "39 lines of it, 40 were"),
        (lambda ls: [*ls[:-1], ls[-1][:30] + b"\x00" * 99 + b"\n"], GRID.id, "39 lines of it"),
        (lambda ls: [*ls[:-1], ls[-1].replace(b'"send_ns":1', b'"send_ns":9')], GRID.id, "are not"),
    ],
    ids=["doubled", "lost", "out of order", "repeated later", "appended", "cut", "torn", "zeroed",
         "edited"],
)  # fmt: skip
def test_changed_requests_code_their_cell_alone(
    folder: Path, edit: Callable[[Lines], Lines], hurt: str, why: str
) -> None:
    before = by_place(folder)
    change(first(folder) / "requests.jsonl", edit)
    found = damaged(folder)
    assert list(found) == [hurt]
    assert why in found[hurt]
    after = by_place(folder)
    assert {place: one.values for place, one in after.items()} == {
        place: one.values for place, one in before.items()
    }
    assert "its points enter no verdict" in told(load(folder))


def test_blank_lines_between_are_nothing(folder: Path) -> None:
    change(first(folder) / "requests.jsonl", lambda ls: [*ls[:NTH], b"\n", *ls[NTH:]])
    assert damaged(folder) == {}


@pytest.mark.parametrize("seed", range(6))
def test_no_change_of_a_byte_goes_unseen(folder: Path, seed: int) -> None:
    """Any byte of any line, whatever becomes of the line by it."""
    path = first(folder) / "requests.jsonl"
    data = bytearray(path.read_bytes())
    at = random.Random(seed).randrange(len(data))
    data[at] = ord("7") if data[at] != ord("7") else ord("3")
    path.write_bytes(data)
    assert damaged(folder)


def test_an_emptied_and_a_missing_file_code_every_cell_of_the_run(folder: Path) -> None:
    path = first(folder) / "requests.jsonl"
    path.write_bytes(b"")
    assert set(damaged(folder)) == {INTERFERENCE.id, GRID.id}
    path.unlink()
    assert set(damaged(folder)) == {INTERFERENCE.id, GRID.id}


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: msgspec.structs.replace(s, values=s.values | {"throughput_tok_s": 1e9}),
        lambda s: msgspec.structs.replace(s, window_ns=(0, 1)),
        lambda s: msgspec.structs.replace(s, codes=[*s.codes, *s.codes, {"code": "A", "why": ""}]),
    ],
    ids=["a value", "the window", "a code"],
)
def test_an_edited_cell_is_coded_and_its_values_are_taken_from_the_requests(
    folder: Path, edit: Callable[[CellSummary], CellSummary]
) -> None:
    place = (first(folder).name, GRID.id)
    ttft = by_place(folder)[place].values["ttft_p50_ms"]

    def rewrite(lines: Lines) -> Lines:
        summary = edit(msgspec.json.decode(lines[1], type=CellSummary))
        return [lines[0], msgspec.json.encode(summary) + b"\n"]

    change(first(folder) / "cells.jsonl", rewrite)
    assert damaged(folder) == {GRID.id: "its line in cells.jsonl is not what the run wrote"}
    edited = by_place(folder)[place].values
    assert edited["ttft_p50_ms"] == ttft
    assert edited["throughput_tok_s"] != 1e9


def test_a_cell_that_lost_its_seal_is_damage(folder: Path) -> None:
    def bare(lines: Lines) -> Lines:
        summary = msgspec.json.decode(lines[1], type=CellSummary)
        return [lines[0], msgspec.json.encode(msgspec.structs.replace(summary, seal=None)) + b"\n"]

    change(first(folder) / "cells.jsonl", bare)
    assert damaged(folder) == {GRID.id: "its line in cells.jsonl has no seal, unlike the run"}


def test_a_doubled_cell_counts_once_and_is_named(folder: Path) -> None:
    change(first(folder) / "cells.jsonl", lambda ls: [*ls, ls[1]])
    assert damaged(folder) == {}
    assert len(by_place(folder)) == len(measure(load(folder)))
    assert "the same line again, skipped" in told(load(folder))


def test_two_unlike_lines_of_a_cell_are_damage(folder: Path) -> None:
    change(
        first(folder) / "cells.jsonl",
        lambda ls: [*ls, ls[1].replace(b'"ended_ns":', b'"ended_ns":1')],
    )
    assert damaged(folder) == {GRID.id: "cells.jsonl has unlike lines of it"}


def test_a_lost_cell_of_a_finished_run_is_missed(folder: Path) -> None:
    change(first(folder) / "cells.jsonl", lambda ls: ls[:1])
    assert damaged(folder) == {GRID.id: "its line in cells.jsonl is gone"}


def test_a_cell_of_another_run_is_damage(folder: Path) -> None:
    one, other = (run.folder for run in load(folder).runs[:2])
    for name in ("cells.jsonl", "requests.jsonl"):
        shutil.copy(other / name, one / name)
    assert set(damaged(folder)) == {INTERFERENCE.id, GRID.id}


def test_a_changed_arm_or_block_is_damage(folder: Path) -> None:
    path = first(folder) / "run.json"
    write_json(path, msgspec.structs.replace(read_json(path, RunMeta), block=1))
    assert set(damaged(folder)) == {INTERFERENCE.id, GRID.id}


# --------------------------------------------------------------------------- the run's own seal


@pytest.fixture
def closed(folder: Path) -> Path:
    """The first run, sealed as a run's end does it."""
    run = first(folder)
    write_json(run / "run.json", close_run(run, read_json(run / "run.json", RunMeta)))
    assert damaged(folder) == {}
    return run


def test_a_run_that_was_only_formatted_anew_is_whole(folder: Path, closed: Path) -> None:
    path = closed / "run.json"
    path.write_bytes(msgspec.json.format(path.read_bytes(), indent=7))
    assert damaged(folder) == {}


def test_an_edited_run_spoils_its_cells(folder: Path, closed: Path) -> None:
    path = closed / "run.json"
    path.write_text(path.read_text().replace('"kv_tokens": 65536', '"kv_tokens": 99999'))
    whys = set(damaged(folder).values())
    assert whys == {"run.json changed since the run ended"}


@pytest.mark.parametrize("gone", [False, True])
def test_a_gate_that_was_edited_or_removed_spoils_its_cells(
    folder: Path, closed: Path, gone: bool
) -> None:
    path = closed / "needle.json"
    if gone:
        path.unlink()
    else:
        needle = read_json(path, NeedleResult)
        write_json(path, msgspec.structs.replace(needle, greedy={}))
    assert set(damaged(folder)) == {INTERFERENCE.id, GRID.id}


def test_changed_metrics_are_named(folder: Path, closed: Path) -> None:
    (closed / "metrics.jsonl").write_bytes(b"")
    assert damaged(folder) == {}
    assert "metrics.jsonl:0: changed since the run ended" in told(load(folder))


# -------------------------------------------------------------------------------- whole folders


def test_a_copied_run_folder_is_named_and_left_out(folder: Path) -> None:
    run = first(folder)
    shutil.copytree(run, run.with_name(f"{run.name}-copy"))
    results = load(folder)
    assert len(results.runs) == 6
    assert f"it holds the run {run.name}: a copy, or renamed; left out" in told(results)


def test_of_two_runs_of_the_same_work_the_first_counts(folder: Path) -> None:
    """A copy whose id was changed with its name."""
    run = first(folder)
    meta = read_json(run / "run.json", RunMeta)
    keyed = msgspec.structs.replace(meta, config=meta.config | {"key": "k"})
    write_json(run / "run.json", keyed)
    copy = run.with_name(f"{run.name}-copy")
    shutil.copytree(run, copy)
    write_json(copy / "run.json", msgspec.structs.replace(keyed, id=copy.name))
    results = load(folder)
    assert len(results.runs) == 6
    assert f"the same work as {run.name}, already there; left out" in told(results)


def test_an_arm_that_was_planned_and_is_gone_is_named(folder: Path) -> None:
    for run in load(folder).runs:
        path = run.folder / "run.json"
        config = run.meta.config | {"arms": dict.fromkeys(("copies_2048", "split_1p1d"))}
        write_json(path, msgspec.structs.replace(run.meta, config=config))
    for run in load(folder).of_arm("split_1p1d"):
        (run.folder / "run.json").write_text("{")
    assert load(folder).lost == ("split_1p1d",)


def test_results_without_seals_are_believed_and_said_to_have_none(tmp_path: Path) -> None:
    results = load(make(tmp_path / "old", sealed=False))
    found = measure(results)
    assert not [one for one in found if one.codes]
    assert found[0].values["worst_gap_ms"] == pytest.approx(2206)
    assert len(results.unsealed) == 3
    assert told(results) == ""


def test_other_definitions_are_not_taken_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twolane.analysis.measures.VERSION", 0)
    calls: list[str] = []

    def summarise(cell: AnyCell, *_: object) -> dict[str, float]:
        calls.append(cell.id)
        return {"x": 1.0}

    monkeypatch.setattr("twolane.analysis.points.stats.summarise", summarise)
    assert {one.values["x"] for one in measure(load(folder))} == {1.0}
    assert len(calls) == 12


def test_an_infinite_value_comes_back_from_the_disk(folder: Path, tmp_path: Path) -> None:
    meta = load(folder).runs[0].meta
    summary = CellSummary(
        cell=GRID, started_ns=0, ended_ns=1, values={"ttft_p50_ms": float("inf"), "n": 3}
    )
    with RequestFile(tmp_path / "requests.jsonl") as file:
        file.append(Request(id="a", cell=GRID.id, role="grid", index=0, send_ns=0, due_ns=0))
        sealed = file.sealed(meta, summary, measures=1)
    back = msgspec.json.decode(msgspec.json.encode(sealed), type=CellSummary)
    assert back == sealed
    assert (back.values, back.never) == ({"ttft_p50_ms": None, "n": 3.0}, ["ttft_p50_ms"])
