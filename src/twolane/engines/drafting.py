"""What engines log of their drafting, told apart by cell.

Rules of this file: logs are read at a cell's begin and end only, never while it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from twolane.analysis import speculation
from twolane.analysis.speculation import Line, Logged

PIECE: Final = 1 << 22
"""Bytes read at once. A log with every iteration has gigabytes after some hours."""


class DraftLogs:
    """The logs of a run's engines, by name; one that cannot be read tells nothing."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._read = {name: _Reader(path) for name, path in logs.items()}
        self._before: dict[str, int] = {}

    def begin(self) -> None:
        """A cell begins: what is in the logs by now is not of it. Blocking."""
        for name, reader in self._read.items():
            reader.new_lines()
            self._before[name] = reader.drafted

    def end(self) -> dict[str, Logged]:
        """A cell has ended: the lines since its begin. Blocking."""
        return {
            name: Logged(self._before.get(name, 0), tuple(reader.new_lines()))
            for name, reader in self._read.items()
        }


class _Reader:
    """One log, read on from where it was; `drafted` sums up all lines so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.drafted = 0

    def new_lines(self) -> list[Line]:
        found: list[Line] = []
        with contextlib.suppress(OSError), self._path.open("rb") as log:
            log.seek(self._at)
            while piece := _whole_lines(log.read(PIECE)):
                found += speculation.read(piece)
                self._at += len(piece)
                log.seek(self._at)
        self.drafted += sum(line.drafted for line in found)
        return found


def _whole_lines(piece: bytes) -> bytes:
    """Up to the end of its last line; all of it where a line is longer than it."""
    return piece if len(piece) == PIECE and b"\n" not in piece else piece[: piece.rfind(b"\n") + 1]
