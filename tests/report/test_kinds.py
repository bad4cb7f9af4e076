"""Every kind of cell has its rows, in the page and in the terminal."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from tests.report.synthetic import make

from twolane import report
from twolane.analysis.results import load
from twolane.config import parse_cell
from twolane.records import Appender, CellSummary, Request, Role, RunMeta, read_json, write_json
from twolane.report.facts import shown, workload


def only(folder: Path, text: str, role: Role) -> Path:
    """Synthetic results whose runs hold nothing but two requests of one cell."""
    cell = parse_cell(text)
    for run in (make(folder) / "runs").iterdir():
        for name in ("requests.jsonl", "cells.jsonl"):
            (run / name).unlink()
        meta = read_json(run / "run.json", RunMeta)
        write_json(run / "run.json", msgspec.structs.replace(meta, cells=[cell]))
        with Appender(run / "requests.jsonl") as requests:
            for i in range(2):
                requests.append(
                    Request(id=f"r{i}", cell=cell.id, role=role, index=i, send_ns=0, due_ns=0,
                            first_ns=3_000_000, last_ns=9_000_000, gaps_ns=[6_000_000],
                            output_tokens=2, prompt_tokens=64, needle="ok")
                )  # fmt: skip
        with Appender(run / "cells.jsonl") as cells:
            cells.append(CellSummary(cell=cell, started_ns=0, ended_ns=1, window_ns=(0, 10**7)))
    return folder


@pytest.mark.parametrize(
    ("text", "role", "row"),
    [
        ("fresh 128k", "fresh", "First token of a new long prompt"),
        ("ramp 24000 users=2", "turn", "First token of the longest turn"),
        ("mix long=60k share=0.02 rate=20", "short", "Worst pause of a short request"),
        ("needle 64k", "needle", "Needles missed"),
    ],
)
def test_a_campaign_of_one_kind_is_reported(
    tmp_path: Path, text: str, role: Role, row: str
) -> None:
    folder = only(tmp_path / "r", text, role)
    page = report.write(folder).read_text()
    assert row in page
    assert "interference cell" in page  # it says that its question was not asked
    console = Console(file=io.StringIO(), width=120)
    console.print(report.table(load(folder)))
    assert row in console.file.getvalue()  # type: ignore[attr-defined]


def test_every_kind_has_words_and_rows() -> None:
    for text in ("c4 in8 out8", "fresh 1k", "ramp 8k", "mix rate=2", "needle 1k",
                 "interference victims=1 prompt=1k"):  # fmt: skip
        cell = parse_cell(text)
        assert shown(cell)
        assert workload(cell)
