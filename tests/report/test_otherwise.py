"""Campaigns that ask something else than what one long prompt does begin with what they found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.report.synthetic import make

from twolane.analysis.results import load
from twolane.config import parse_cell
from twolane.records import Appender, CellSummary, Code, Request, RunMeta, read_json, write_json
from twolane.report import html
from twolane.report.facts import Facts
from twolane.report.otherwise import question
from twolane.report.text import verdict

RAMP = "ramp 8000 users=2 turns=2"


def ramp(folder: Path, needle: str = "ok", codes: list[Code] | None = None) -> Path:
    """Synthetic results whose runs hold two users' conversations of two turns each, and no more."""
    cell = parse_cell(RAMP)
    for run in (make(folder, blocks=2) / "runs").iterdir():
        for name in ("requests.jsonl", "cells.jsonl"):
            (run / name).unlink()
        meta = read_json(run / "run.json", RunMeta)
        write_json(run / "run.json", msgspec.structs.replace(meta, cells=[cell]))
        took = 1_000_000 * (3 + meta.block)
        with Appender(run / "requests.jsonl") as requests:
            for user in range(2):
                for turn in (1, 2):
                    requests.append(
                        Request(id=f"r{user}{turn}", cell=cell.id, role="turn", index=turn,
                                user=user, send_ns=0, due_ns=0, first_ns=took,
                                last_ns=took + 6_000_000, gaps_ns=[6_000_000], output_tokens=2,
                                prompt_tokens=4000 * turn, cached_tokens=4000 * (turn - 1),
                                needle=needle)
                    )  # fmt: skip
        with Appender(run / "cells.jsonl") as cells:
            cells.append(CellSummary(cell=cell, started_ns=0, ended_ns=1, codes=codes or []))
    return folder


def first_sentence(folder: Path) -> str:
    told = str(verdict(Facts(load(folder))))
    return told.replace("\N{NARROW NO-BREAK SPACE}", " ")


def test_a_ramp_alone_has_an_answer(tmp_path: Path) -> None:
    told = first_sentence(ramp(tmp_path / "r"))
    assert told.startswith("Two conversations growing to 8,000 tokens in 2 turns: ")
    assert "no answer" not in told
    assert "Cached: as expected in every turn" in told
    assert "First token of the longest turn: 3.50 ms with copies_2048" in told
    assert "Over 2 blocks" in told


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ([Code(code="CACHE", why="x")], "Cached: not as expected"),
        ([Code(code="BUSY", why="x")], "Every arm\u2019s figure is excluded"),
    ],
)
def test_codes_are_told_with_it(tmp_path: Path, codes: list[Code], words: str) -> None:
    assert words in first_sentence(ramp(tmp_path / "r", codes=codes))


def test_the_question_over_the_page_is_its_own(tmp_path: Path) -> None:
    folder = ramp(tmp_path / "r")
    page = html(load(folder))
    assert "What becomes of conversations that grow?" in page
    assert "Which token budget" not in page  # nobody asked
    assert question(Facts(load(make(tmp_path / "s")))).startswith("What does one long prompt do")


def test_results_without_a_cell_have_no_answer_yet(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    for run in (folder / "runs").iterdir():
        (run / "cells.jsonl").unlink()
        (run / "requests.jsonl").unlink()
    assert "there is no answer yet" in first_sentence(folder)
