"""events.jsonl: everything that happens in a campaign, as it happens, for whoever watches.

Rules of this file: one process at a time writes a campaign's folder. It holds the file's lock, so
that another terminal can tell a campaign that is running from one that was cut. What one process
wrote is a stretch: it has one clock, and in it a step ends with the next line of its run. So
stretches may be put one behind the other, in the order in which they began, but never into each
other, not even those of processes that ran at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from twolane import lock
from twolane.clock import now_ns
from twolane.errors import QuestionError
from twolane.pace import Pace
from twolane.records import UNREADABLE, Appender, Event

FILE = "events.jsonl"


class Journal:
    """A campaign's events: written, annotated by `pace`, and told. Use as a context manager.

    `begin` tells how many runs are done of how many, and how long the others should take.
    Raises QuestionError where another process writes this folder.
    """

    def __init__(
        self,
        folder: Path,
        pace: Pace,
        told: Callable[[Event], None],
        *,
        done: int = 0,
        total: int | None = None,
        expect_s: float | None = None,
    ) -> None:
        self._pace = pace
        self._told = told
        self._begin = Event(
            t_ns=now_ns(), run="", step="begin", text=str(folder), done=done, total=total,
            expect_s=expect_s,
        )  # fmt: skip
        self._file = Appender(folder / FILE)
        if not lock.take(self._file.fileno()):
            self._file.close()
            raise QuestionError(
                "another twolane writes this folder",
                place=str(folder),
                remedy=f"wait for it (twolane live {folder}), or run without --resume",
            )

    def __enter__(self) -> Journal:
        self.tell(self._begin)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self._say("end", "done" if error is None else _why(error))
        finally:
            self._file.close()

    def tell(self, event: Event) -> None:
        event = self._pace.annotate(event)
        self._file.append(event)
        self._told(event)

    def note(self, text: str) -> None:
        """Something that belongs to no run."""
        self._say("note", text)

    def _say(self, step: str, text: str) -> None:
        self.tell(Event(t_ns=now_ns(), run="", step=step, text=text))


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted"
    return f"ended early: {error or type(error).__name__}"


def is_written(folder: Path) -> bool:
    """Whether some process writes the campaign in `folder` now."""
    return lock.is_taken(folder / FILE)


# ------------------------------------------------------------------------------------ stretches


@dataclass(frozen=True)
class Stretch:
    """What one process wrote: its lines, as they are, and the runs that they tell of."""

    lines: tuple[bytes, ...]
    runs: frozenset[str]


def stretches(folder: Path) -> tuple[list[Stretch], int]:
    """What is in a campaign's events.jsonl, and how many of its lines cannot be read."""
    found: list[tuple[list[bytes], set[str]]] = []
    unread = 0
    path = folder / FILE
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            event = _event(line)
        except UNREADABLE:
            unread += bool(line.strip())
            continue
        if event.step == "begin" or not found:
            found.append(([], set()))
        found[-1][0].append(line.rstrip(b"\n") + b"\n")
        found[-1][1].update({event.run} - {""})
    return [Stretch(tuple(lines), frozenset(runs)) for lines, runs in found], unread


def joined(files: Sequence[Sequence[Stretch]], began: Mapping[str, str]) -> list[bytes]:
    """The lines of several files as one: each stretch once, at its longest, in the order in which
    they began. `began` are the runs' starts, in UTC; a stretch without a run stays behind the one
    before it."""
    longest: dict[bytes, Stretch] = {}
    for stretch in (one for file in files for one in file):
        known = longest.setdefault(stretch.lines[0], stretch)
        if len(stretch.lines) > len(known.lines):
            longest[stretch.lines[0]] = stretch
    when: dict[bytes, str] = {}
    for file in files:
        last = ""
        for stretch in file:
            last = min((began[run] for run in stretch.runs if run in began), default=last)
            when[stretch.lines[0]] = max(last, when.get(stretch.lines[0], ""))
    order = sorted(longest, key=lambda first: when[first])
    return [line for first in order for line in longest[first].lines]


_event = msgspec.json.Decoder(Event).decode
