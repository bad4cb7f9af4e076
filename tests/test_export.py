"""Results for other tools: every row with its codes, and vLLM's fields by vLLM's definitions."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from pyarrow import parquet
from tests.report.synthetic import GRID, INTERFERENCE, make

from twolane import __version__, export
from twolane.analysis import foreign
from twolane.analysis.measures import VERSION, token_counts
from twolane.analysis.points import measure
from twolane.analysis.results import load
from twolane.analysis.units import unit_of
from twolane.cli import cli
from twolane.errors import QuestionError
from twolane.records import AnyCell, Code, Request

CODE = Code(code="INFLIGHT", why="3.1 of 4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "demo", codes={"copies_256": {GRID.id: [CODE]}})


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_a_cell_and_measure_and_a_row_a_request(folder: Path, tmp_path: Path) -> None:
    cells, requests = (table(p) for p in export.export(folder, "csv", tmp_path / "out"))
    measured = measure(load(folder))
    assert len(cells) == sum(len(one.values) for one in measured)
    assert len(requests) == sum(len(list(run.requests())) for run in load(folder).runs)
    (worst,) = [
        row for row in cells
        if (row["arm"], row["cell"], row["measure"])
        == ("split_1p1d", INTERFERENCE.id, "worst_gap_ms")
    ]  # fmt: skip
    assert float(worst["value"]) == pytest.approx(46.0)
    first = next(row for row in requests if row["role"] == "grid")
    request = next(load(folder).runs[0].requests("grid"))
    assert float(first["ttft_ms"]) == ((request.first_ns or 0) - request.send_ns) / 1e6
    assert (first["id"], first["prompt_tokens"]) == (request.id, "512")


def test_every_row_of_a_spoilt_point_says_so(folder: Path, tmp_path: Path) -> None:
    for path in export.export(folder, "csv", tmp_path / "out"):
        spoilt = {(row["arm"], row["cell"]) for row in table(path) if row["codes"] == "INFLIGHT"}
        assert spoilt == {("copies_256", GRID.id)}


def test_blocks_count_from_one_as_in_every_report(folder: Path, tmp_path: Path) -> None:
    for path in export.export(folder, "csv", tmp_path / "out"):
        assert {row["block"] for row in table(path)} == {"1"}
    for path in export.export(folder, "vllm-bench", tmp_path / "out"):
        assert json.loads(path.read_text())["twolane"]["block"] == 1


def test_json_holds_every_cell_with_units_codes_and_versions(folder: Path, tmp_path: Path) -> None:
    (path,) = export.export(folder, "json", tmp_path / "out")
    assert path.name == "cells.json"
    told: dict[str, Any] = json.loads(path.read_text())
    assert (told["schema"], told["twolane"], told["measures_version"]) == (1, __version__, VERSION)
    measured = measure(load(folder))
    assert len(told["cells"]) == len(measured)
    for one, cell in zip(measured, told["cells"], strict=True):
        assert {k: m["value"] for k, m in cell["measures"].items()} == one.values
        assert all(m["unit"] for m in cell["measures"].values())
        assert msgspec.convert(cell["asked"], AnyCell) == one.cell
        assert cell["codes"] == [msgspec.to_builtins(code) for code in one.codes]
        run = told["runs"][cell["run"]]
        assert (run["arm"], run["block"]) == (cell["arm"], cell["block"]) == (one.run.arm, 1)
        assert run["versions"] == one.run.meta.versions
    assert {c["arm"] for c in told["cells"] if c["codes"]} == {"copies_256"}


def test_what_never_ended_is_told_from_what_is_not_known(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = next(m for m in measure(load(folder)) if m.cell.id == GRID.id)
    values = {"ttft_p50_ms": float("inf"), "window_s": None, "users": 4.0}
    odd = dataclasses.replace(one, values=values)
    monkeypatch.setattr(export, "measure", lambda _: [odd])
    (path,) = export.export(folder, "json", tmp_path / "out")
    (cell,) = json.loads(path.read_text())["cells"]
    assert cell["measures"] == {
        "ttft_p50_ms": {"value": None, "unit": "ms", "never": True},
        "window_s": {"value": None, "unit": "s"},
        "users": {"value": 4.0, "unit": "users"},
    }


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("throughput_tok_s", "tokens/s"),
        ("window_s", "s"),
        ("mtp_accepted_share_pos2", "share"),
        ("u0_t01_needle_missed", "needles"),
        ("asked_rate", "requests/s"),
        ("a_stranger", ""),
    ],
)
def test_a_measures_unit_follows_from_its_name(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def test_vllms_fields_are_filled_by_vllms_definitions(folder: Path, tmp_path: Path) -> None:
    written = export.export(folder, "vllm-bench", tmp_path / "out")
    assert [path.name for path in written] == [
        f"{arm}-block1-c4_in512_out64_n40.json"
        for arm in ("copies_2048", "copies_256", "split_1p1d")
    ]
    told: dict[str, Any] = json.loads(written[0].read_text())
    requests = list(load(folder).runs[0].requests("grid"))
    ttfts = [((r.first_ns or 0) - r.send_ns) / 1e9 for r in requests]
    assert told["ttfts"] == pytest.approx(ttfts)
    assert told["median_ttft_ms"] == pytest.approx(float(np.median(ttfts)) * 1e3)
    assert told["p99_ttft_ms"] == pytest.approx(float(np.percentile(ttfts, 99)) * 1e3)
    assert (told["completed"], told["failed"], told["max_concurrency"]) == (40, 0, 4)
    assert told["total_output_tokens"] == 40 * 64
    assert told["output_throughput"] == pytest.approx(40 * 64 / told["duration"])
    assert len(told["itls"]) == len(told["start_times"]) == len(told["errors"]) == 40
    codes = json.loads(written[1].read_text())["twolane"]["codes"]
    assert codes == [{"code": "INFLIGHT", "why": "3.1 of 4"}]


def test_what_was_exported_for_vllm_is_read_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    written = export.export(folder, "vllm-bench", tmp_path / "out")
    mine = {one.run.arm: one for one in measure(load(folder)) if one.cell.id == GRID.id}
    for path in written:
        (back,) = foreign.load(path)
        own = mine[path.name.partition("-block")[0]]
        assert (back.users, back.requests, back.failed) == (4, 40, 0)
        for name in ("ttft_p50_ms", "tpot_p50_ms", "e2e_p50_ms", "worst_gap_p50_ms"):
            assert back.values[name] == pytest.approx(own.values[name])
        assert back.values["throughput_tok_s"] == pytest.approx(
            own.values["throughput_tok_s"], rel=1e-3
        )


def test_a_failed_request_is_zeros_and_its_error(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    path = load(folder).runs[0].folder / "requests.jsonl"
    lines = path.read_bytes().splitlines()
    lost = msgspec.structs.replace(msgspec.json.decode(lines[-1], type=Request), error="gone")
    path.write_bytes(b"\n".join([*lines[:-1], msgspec.json.encode(lost)]) + b"\n")
    written = export.export(folder, "vllm-bench", tmp_path / "out")
    told = json.loads(written[0].read_text())
    assert (told["failed"], told["errors"][-1]) == (1, "gone")
    assert (told["ttfts"][-1], told["output_lens"][-1], told["latencies"][-1]) == (0.0, 0, 0.0)
    assert told["twolane"]["codes"][0]["code"] == "DAMAGED"


def test_parquet_without_its_library_says_what_to_do(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(QuestionError, match="pyarrow") as error:
        export.export(folder, "parquet", tmp_path / "out")
    assert error.value.remedy.startswith(f"{sys.executable} -m pip install pyarrow")
    assert not (tmp_path / "out").exists()


def test_parquet_holds_what_csv_holds_with_its_types(folder: Path, tmp_path: Path) -> None:
    written = export.export(folder, "parquet", tmp_path / "out")
    assert [path.name for path in written] == ["cells.parquet", "requests.parquet"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in written
    )
    columns = (export.CELL_COLUMNS, export.REQUEST_COLUMNS)
    text = export.export(folder, "csv", tmp_path / "csv")
    for path, kinds, plain in zip(written, columns, map(table, text), strict=True):
        read = parquet.read_table(path)
        mine = {column.name: str(column.type) for column in read.schema}
        lists = {"gaps_ns", "tokens"} & mine.keys()
        assert {name: mine[name] for name in mine.keys() - lists} == {
            name: {"float64": "double"}.get(kind, kind) for name, kind in kinds.items()
        }
        rows = read.to_pylist()
        assert [
            {name: "" if row[name] is None else str(row[name]) for name in kinds} for row in rows
        ] == plain


def test_parquet_holds_every_gap_and_token(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is written in several pieces."""
    monkeypatch.setattr(export, "_BATCH", 50)
    _, requests = export.export(folder, "parquet", tmp_path / "out")
    assert parquet.ParquetFile(requests).num_row_groups > 1
    rows = {(row["run"], row["id"]): row for row in parquet.read_table(requests).to_pylist()}
    whole = {(run.id, one.id): one for run in load(folder).runs for one in run.requests()}
    assert rows.keys() == whole.keys()
    for which, request in whole.items():
        assert rows[which]["gaps_ns"] == request.gaps_ns
        assert rows[which]["tokens"] == token_counts(request)
        if request.gaps_ns:
            assert rows[which]["worst_gap_ms"] == max(request.gaps_ns) / 1e6


def test_every_row_of_a_spoilt_point_says_so_in_parquet(folder: Path, tmp_path: Path) -> None:
    for path in export.export(folder, "parquet", tmp_path / "out"):
        rows = parquet.read_table(path, filters=[("codes", "=", "INFLIGHT")]).to_pylist()
        assert {(row["arm"], row["cell"]) for row in rows} == {("copies_256", GRID.id)}


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_a_folder_of_no_run_is_no_file(tmp_path: Path, form: export.Format) -> None:
    (tmp_path / "runs").mkdir()
    assert export.export(tmp_path, form, tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_the_command_names_what_it_wrote(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", str(folder), "--json"])
    assert done.exit_code == 0
    written = msgspec.json.decode(done.output)["written"]
    assert written == [str(folder / "export" / name) for name in ("cells.csv", "requests.csv")]
    assert load(folder).arms == ("copies_2048", "copies_256", "split_1p1d")
    missing = CliRunner().invoke(cli, ["export", str(tmp_path / "nowhere")])
    assert missing.exit_code == 2
    (tmp_path / "file").write_text("")
    bad = CliRunner().invoke(cli, ["export", str(folder), "--out", str(tmp_path / "file")])
    assert bad.exit_code == 2
    assert "name a folder" in bad.output


def test_results_without_a_readable_run_are_no_empty_table(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    done = CliRunner().invoke(cli, ["export", str(tmp_path)])
    assert done.exit_code == 1
    assert "nothing was written" in done.output
    named = CliRunner().invoke(cli, ["explain", str(tmp_path)])
    assert named.exit_code == 2
    assert "no run can be read here" in named.output
