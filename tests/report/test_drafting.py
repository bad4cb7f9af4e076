"""Drafting (MTP) by counters and by logs: both told, and when they differ."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.report.synthetic import GRID, make

from twolane.analysis.results import load
from twolane.cli import cli
from twolane.records import CellSummary, read_jsonl
from twolane.report import html
from twolane.report.drafting import drafted, words

COUNTED: dict[str, float | None] = {
    "mtp_tokens_a_step": 2.43,
    "mtp_accepted_share_pos0": 0.8,
    "mtp_accepted_share_pos1": 0.63,
}
LOGGED: dict[str, float | None] = {
    "mtp_log_tokens_a_step": 2.44,
    "mtp_log_tokens_a_step_least": 2.4,
    "mtp_log_tokens_a_step_most": 2.5,
    "mtp_log_accepted_share_pos0": 0.81,
    "mtp_log_accepted_share_pos1": 0.63,
    "mtp_log_lines": 3.0,
    "mtp_log_covers_share": 0.75,
}


def test_both_accounts_are_told_side_by_side() -> None:
    told = drafted(COUNTED | LOGGED)
    assert told is not None
    assert told.differ is False
    assert words(told).splitlines()[1:] == [
        "  by the engines' counters: 2.43, accepted by position 80.0% 63.0%",
        "  by their logs: 2.44, accepted by position 81.0% 63.0%; 3 lines of 2.40 to 2.50, which "
        "hold 75% of the drafted",
    ]


def test_a_difference_is_told_with_what_may_explain_it() -> None:
    told = drafted(COUNTED | LOGGED | {"mtp_log_tokens_a_step": 2.6})
    assert words(told).endswith("differ by 0.17 tokens a step; the lines leave 25% of the cell out")
    whole = drafted(COUNTED | LOGGED | {"mtp_log_tokens_a_step": 2.6, "mtp_log_covers_share": 1.0})
    assert words(whole).endswith("they differ by 0.17 tokens a step")


def test_one_account_alone_is_told_as_such() -> None:
    assert "by their logs: no line of this cell alone" in words(drafted(COUNTED))
    assert "by the engines' counters: not counted" in words(drafted(LOGGED))
    assert "differ by" not in words(drafted(COUNTED)) + words(drafted(LOGGED))


def test_where_nothing_was_drafted_nothing_is_told(tmp_path: Path) -> None:
    assert drafted({}) is None
    assert words(None) == ""
    assert "drafting" not in html(load(make(tmp_path / "r"))).lower()


@pytest.mark.parametrize("logged", [2.44, 2.7])
def test_explain_and_the_page_show_both(tmp_path: Path, logged: float) -> None:
    folder = make(tmp_path / "r", sealed=False)
    run = load(folder).of_arm("split_1p1d")[0]
    lines = list(read_jsonl(run.folder / "cells.jsonl", CellSummary, []))
    added = COUNTED | LOGGED | {"mtp_log_tokens_a_step": logged}
    with (run.folder / "cells.jsonl").open("wb") as file:
        for line in lines:
            values = line.values | (added if line.cell.id == GRID.id else {})
            file.write(msgspec.json.encode(msgspec.structs.replace(line, values=values)) + b"\n")
    said = CliRunner().invoke(cli, ["explain", f"{folder}/split_1p1d", GRID.id]).output
    assert f"by their logs: {logged:.2f}" in said
    assert ("they differ by 0.27" in said) == (logged == 2.7)
    page = html(load(folder))
    assert page.count("What drafting brought") >= 1
    assert ("no, 0.27 apart; the lines leave 25% of the cell out" in page) == (logged == 2.7)
