"""Logs of drafting, read while an engine writes them."""

from pathlib import Path

import pytest
from tests.analysis.test_speculation import written

from twolane.engines import drafting
from twolane.engines.drafting import DraftLogs

LINE = written([(3, 2), (3, 0)], 3)  # 6 tokens drafted


def append(log: Path, text: bytes) -> None:
    with log.open("ab") as file:
        file.write(text)


def test_a_cell_has_the_lines_written_since_its_begin(tmp_path: Path) -> None:
    log = tmp_path / "d.log"
    append(log, b"starting\n" + LINE)
    logs = DraftLogs({"d": log, "none": tmp_path / "none.log"})
    logs.begin()
    append(log, LINE + LINE[:-20])  # the last line is being written
    ended = logs.end()
    assert (ended["d"].before, len(ended["d"].lines)) == (6, 1)
    assert (ended["none"].before, ended["none"].lines) == (0, ())
    append(log, LINE[-20:] + LINE)
    logs.begin()
    again = logs.end()["d"]
    assert (again.before, again.lines) == (24, ())


def test_a_log_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "PIECE", len(LINE) + 5)
    log = tmp_path / "d.log"
    append(log, b"x" * 3 * len(LINE) + b"\n" + LINE * 4)
    logs = DraftLogs({"d": log})
    assert len(logs.end()["d"].lines) == 4
