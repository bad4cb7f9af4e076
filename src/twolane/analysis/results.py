"""A results folder, opened for reading: the campaign's runs and what each wrote down.

Rules of this file: it reads and never writes, and nothing that is wrong on disk raises. A file
that is half-written, torn, of another schema or not ours is named in `Results.faults`, skipped and
counted, so that a reader of the report sees what is not in it. Only a folder that holds no
results at all is an error, since then the question was bad.

Requests are read when they are asked for, role by role: a campaign may hold a million of them,
and most questions need only the victims.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from twolane.errors import QuestionError
from twolane.records import (
    SCHEMA,
    BadLine,
    CellSummary,
    Event,
    Findings,
    NeedleResult,
    Request,
    Role,
    RunMeta,
    Sample,
    read_json,
)


class _Schema(msgspec.Struct, frozen=True):
    schema: int = 1  # the first did not always write it


class _Selector(msgspec.Struct, frozen=True):
    """The two fields a selection looks at; decoding only these skips the long ones cheaply."""

    role: str
    cell: str


T = TypeVar("T", bound=msgspec.Struct)


class Faults:
    """What could not be read, each fault once, however often its file is read."""

    def __init__(self) -> None:
        self._seen: dict[BadLine, None] = {}

    def note(self, path: Path, why: str, line: int = 0) -> None:
        self._seen[BadLine(str(path), line, why)] = None

    def __iter__(self) -> Iterator[BadLine]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)


@dataclass(frozen=True)
class Run:
    """One run on disk. `faults` are those of the `Results` it belongs to."""

    folder: Path
    meta: RunMeta
    faults: Faults = field(repr=False, compare=False)

    @property
    def id(self) -> str:
        return self.meta.id

    @property
    def arm(self) -> str:
        return self.meta.arm

    @property
    def block(self) -> int:
        return self.meta.block

    @property
    def finished(self) -> bool:
        return self.meta.status == "done"

    def requests(self, *roles: Role, cell: str | None = None) -> Iterator[Request]:
        """Requests of these roles (all, if none is named), in the order they were written.

        Read from disk at each call and never held.
        """
        decoder = msgspec.json.Decoder(Request)
        path = self.folder / "requests.jsonl"
        for number, line in _lines(path, self.faults):
            chosen = _decode(_SELECTOR, path, number, line, self.faults)
            if chosen is None or (roles and chosen.role not in roles):
                continue
            if cell is None or chosen.cell == cell:
                request = _decode(decoder, path, number, line, self.faults)
                if request is not None:
                    yield request

    def samples(self) -> Iterator[Sample]:
        """Metric samples in the order they were taken; read from disk at each call."""
        return _records(self.folder / "metrics.jsonl", Sample, self.faults)

    @cached_property
    def cells(self) -> list[CellSummary]:
        """The cells that were driven to their end, with their reason codes."""
        return list(_records(self.folder / "cells.jsonl", CellSummary, self.faults))

    @cached_property
    def needle(self) -> NeedleResult | None:
        """The gate's result, or None where there is none that can be read."""
        return _one(self.folder / "needle.json", NeedleResult, self.faults)

    @cached_property
    def findings(self) -> Findings | None:
        """What preflight and post-mortems found; None where nothing was kept, as in old runs."""
        path = self.folder / "findings.json"
        return _one(path, Findings, self.faults) if path.exists() else None


@dataclass(frozen=True)
class Results:
    """A campaign's results: its readable runs in the order they ran, and what was not readable."""

    folder: Path
    runs: tuple[Run, ...]
    faults: Faults

    @property
    def campaign(self) -> str:
        return self.runs[0].meta.campaign if self.runs else self.folder.name

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms in the order in which they first ran."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(sorted({run.block for run in self.runs}))

    def of_arm(self, arm: str) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.arm == arm)

    def events(self) -> list[Event]:
        """What the live view showed; an absent file is no fault, since no figure needs it."""
        path = self.folder / "events.jsonl"
        return list(_records(path, Event, self.faults)) if path.exists() else []


def load(folder: Path) -> Results:
    """The results in `folder`, which a campaign wrote.

    Raises QuestionError if there is no such folder or it holds no `runs`.
    """
    runs_folder = folder / "runs"
    if not runs_folder.is_dir():
        raise QuestionError(
            "it has no folder `runs`" if folder.is_dir() else "there is no such folder",
            place=str(folder),
            remedy="name the folder that a campaign wrote, e.g. results/demo",
        )
    faults = Faults()
    found = [_open(one, faults) for one in sorted(runs_folder.iterdir()) if one.is_dir()]
    runs = sorted((run for run in found if run), key=lambda run: (run.meta.order, run.id))
    return Results(folder, tuple(runs), faults)


def _open(folder: Path, faults: Faults) -> Run | None:
    path = folder / "run.json"
    head = _one(path, _Schema, faults)
    if head is not None and head.schema != SCHEMA:
        faults.note(path, f"schema {head.schema}; this twolane reads schema {SCHEMA}")
        return None
    meta = _one(path, RunMeta, faults) if head is not None else None
    return Run(folder, meta, faults) if meta is not None else None


def _one(path: Path, of: type[T], faults: Faults) -> T | None:
    try:
        return read_json(path, of)
    except FileNotFoundError:
        faults.note(path, "file is missing")
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        faults.note(path, str(error))
    return None


def _records(path: Path, of: type[T], faults: Faults) -> Iterator[T]:
    decoder = msgspec.json.Decoder(of)
    for number, line in _lines(path, faults):
        record = _decode(decoder, path, number, line, faults)
        if record is not None:
            yield record


def _lines(path: Path, faults: Faults) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as lines:
            yield from ((n, line) for n, line in enumerate(lines, 1) if line.strip())
    except FileNotFoundError:
        faults.note(path, "file is missing")
    except OSError as error:
        faults.note(path, str(error))


def _decode(
    decoder: msgspec.json.Decoder[T], path: Path, number: int, line: bytes, faults: Faults
) -> T | None:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        torn = "" if line.endswith(b"\n") else "torn last line: "
        faults.note(path, f"{torn}{error}", number)
    return None


_SELECTOR = msgspec.json.Decoder(_Selector)
