"""A results folder, opened for reading: the campaign's runs and what each wrote down.

Rules of this file: it reads and never writes, and nothing that is wrong on disk raises. A file
that is half-written, torn, of another schema or not ours is named in `Results.faults`, skipped and
counted, so that a reader of the report sees what is not in it. Only a folder that holds no
results at all is an error, since then the question was bad.

Requests are read when they are asked for, role by role: a campaign may hold a million of them,
and most questions need only the victims.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypedDict

import msgspec

from twolane.analysis import reading
from twolane.analysis.integrity import Checked, Stretch, check
from twolane.analysis.reading import Faults
from twolane.analysis.sameness import MOST_BLOCKS
from twolane.errors import QuestionError
from twolane.records import (
    SCHEMA,
    CellSummary,
    Event,
    Findings,
    NeedleResult,
    Request,
    Role,
    RunMeta,
    Sample,
)

__all__ = ["Faults", "Results", "Run", "load", "together"]


class _Schema(msgspec.Struct, frozen=True):
    schema: int = 1  # the first did not always write it


class _Gpu(TypedDict, total=False):
    index: int | None
    nvlinks: int | None


# Parts of run.json that the record leaves open, as figures read them: field, key, form, in words.
_FORMS: Final[tuple[tuple[str, str, Any, str], ...]] = (
    ("host", "gpus", list[_Gpu] | None, "a list of GPUs"),
    ("host", "cores", list[int] | None, "a list of numbers"),
    ("host", "beside", list[Any] | None, "a list"),
    ("proxy", "argv", list[Any], "a list of words"),
)


@dataclass(frozen=True)
class Run:
    """One run on disk. `faults` are those of the `Results` it belongs to."""

    folder: Path
    meta: RunMeta
    faults: Faults = field(repr=False, compare=False)
    label: str | None = None  # the arm's name where results of several folders stand together

    @property
    def id(self) -> str:
        return self.meta.id

    @property
    def arm(self) -> str:
        return self.label or self.meta.arm

    @property
    def block(self) -> int:
        return self.meta.block

    @property
    def finished(self) -> bool:
        return self.meta.status == "done"

    @cached_property
    def checked(self) -> Checked:
        """Its cells, held against their seals; reads all of its requests, once."""
        return check(self.folder, self.meta, self.faults)

    def requests(
        self, *roles: Role, cell: str | None = None, gaps: bool = True, every: int = 1
    ) -> Iterator[Request]:
        """Requests of these roles (all, if none is named), in the order they were written.

        Read from disk at each call and never held. Without `gaps` they come with empty `gaps_ns`,
        several times as fast, for whoever asks for no event but the first and the last. With
        `every` only each n-th is given, the first one first.
        """
        at = self.checked.stretches.get(cell) if cell is not None else None
        found = self._searched(roles, cell, gaps) if at is None else self._at(at, roles, gaps)
        return islice(found, 0, None, every)

    def _at(self, at: Stretch, roles: tuple[Role, ...], gaps: bool) -> Iterator[Request]:
        """From a stretch of the file that a seal vouches for: one cell's, and nothing else."""
        path, decoder = self.folder / "requests.jsonl", msgspec.json.Decoder(Request)
        for whole in reading.stretch(path, *at, self.faults):
            line = whole if gaps else reading.without_gaps(whole)
            request = reading.decode(decoder, path, 0, line, self.faults)
            wanted = request is not None and (not roles or request.role in roles)
            if request is not None and wanted and (not gaps or self._whole(request, 0)):
                yield request

    def _searched(self, roles: tuple[Role, ...], cell: str | None, gaps: bool) -> Iterator[Request]:
        path, decoder = self.folder / "requests.jsonl", msgspec.json.Decoder(Request)
        for number, whole in reading.lines(path, self.faults):
            line = whole if gaps else reading.without_gaps(whole)
            chosen = reading.decode(reading.SELECTOR, path, number, line, self.faults)
            if chosen is None or (roles and chosen.role not in roles):
                continue
            if cell is None or chosen.cell == cell:
                request = reading.decode(decoder, path, number, line, self.faults)
                if request is not None and (not gaps or self._whole(request, number)):
                    yield request

    def _whole(self, request: Request, number: int) -> bool:
        """Whether each of its events has its tokens; where files were damaged, a line may lie."""
        if not request.tokens or len(request.tokens) == len(request.gaps_ns) + 1:
            return True
        why = f"{request.id}: {len(request.tokens)} counts of tokens, {len(request.gaps_ns)} gaps"
        self.faults.note(self.folder / "requests.jsonl", f"{why}; left out", number)
        return False

    def count(self, cell: str) -> int | None:
        """How many requests a cell has, by its seal; None where it has none."""
        sealed = next((one.seal for one in self.cells if one.cell.id == cell), None)
        return sealed.count if sealed is not None else None

    def samples(self) -> Iterator[Sample]:
        """Metric samples in the order they were taken; read from disk at each call."""
        return reading.records(self.folder / "metrics.jsonl", Sample, self.faults)

    @property
    def cells(self) -> tuple[CellSummary, ...]:
        """The cells that were driven to their end, each once, with their reason codes."""
        return self.checked.summaries

    @cached_property
    def needle(self) -> NeedleResult | None:
        """The gate's result, or None where there is none that can be read.

        A run that was cut before its gate has none, and that is no fault.
        """
        path = self.folder / "needle.json"
        if not self.finished and not path.exists():
            return None
        return reading.one(path, NeedleResult, self.faults)

    @cached_property
    def findings(self) -> Findings | None:
        """What preflight and post-mortems found; None where nothing was kept, as in old runs."""
        path = self.folder / "findings.json"
        return reading.one(path, Findings, self.faults) if path.exists() else None


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

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Arms that the campaign planned and of which no run can be read."""
        planned = [arm for run in self.runs if run.label is None for arm in _planned(run)]
        return tuple(arm for arm in dict.fromkeys(planned) if arm not in self.arms)

    @cached_property
    def absent(self) -> tuple[tuple[str, int], ...]:
        """Runs that are not here, as arm and block, of arms that are: of blocks that were planned
        for the arm, or that another arm has."""
        mine = [run for run in self.runs if run.label is None]
        planned = {(arm, block) for run in mine for arm in _planned(run) for block in _blocks(run)}
        held = {(run.arm, run.block) for run in mine}
        arms = {arm for arm, _ in held}
        planned |= {(arm, block) for arm in arms for _, block in held}
        return tuple(sorted((one for one in planned - held if one[0] in arms), key=_by_block))

    @cached_property
    def unsealed(self) -> tuple[Run, ...]:
        """Runs with cells but no seal, of which nobody can say whether they are whole."""
        return tuple(run for run in self.runs if run.cells and not run.checked.sealed)

    def check(self) -> None:
        """Hold every run against its seals, several at once: the digest lets others work."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(lambda run: run.checked, self.runs):
                pass

    def events(self) -> list[Event]:
        """What the live view showed; an absent file is no fault, since no figure needs it."""
        path = self.folder / "events.jsonl"
        return list(reading.records(path, Event, self.faults)) if path.exists() else []


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
    return Results(folder, tuple(_each_once(runs, faults)), faults)


def together(first: Results, second: Results) -> Results:
    """Both as one: arms of `second` are called `<arm>@<its folder>`, its runs come after."""
    name = second.folder.resolve().name
    labelled = [replace(run, label=f"{run.arm}@{name}") for run in second.runs]
    return Results(first.folder, (*first.runs, *labelled), Faults.of(first.faults, second.faults))


def _open(folder: Path, faults: Faults) -> Run | None:
    odd = (one for one in folder.iterdir() if one.exists() and not (one.is_file() or one.is_dir()))
    if strange := next(odd, None):  # reading a pipe would wait for ever
        faults.note(strange, "neither a file nor a folder; its run is left out")
        return None
    path = folder / "run.json"
    head = reading.one(path, _Schema, faults)
    if head is not None and head.schema != SCHEMA:
        faults.note(path, f"schema {head.schema}; this twolane reads schema {SCHEMA}")
        return None
    meta = reading.one(path, RunMeta, faults) if head is not None else None
    if meta is None:
        return None
    if meta.id != folder.name:
        faults.note(folder, f"it holds the run {meta.id}: a copy, or renamed; left out")
        return None
    return Run(folder, _in_form(meta, path, faults), faults)


def _in_form(meta: RunMeta, path: Path, faults: Faults) -> RunMeta:
    """`meta` without those of its open parts that no figure could read."""
    for name, key, form, words in _FORMS:
        part: dict[str, Any] = getattr(meta, name)
        try:
            msgspec.convert(part.get(key, []), form)
        except msgspec.ValidationError:
            faults.note(path, f"{name}.{key} is not {words}; read as if it were not there")
            less = {known: value for known, value in part.items() if known != key}
            meta = msgspec.structs.replace(meta, **{name: less})
    return meta


def _each_once(runs: Iterable[Run], faults: Faults) -> Iterator[Run]:
    """Of finished runs that did the same work the first: a campaign does no work twice."""
    done: dict[str, Run] = {}
    for run in runs:
        key = run.meta.config.get("key")
        if not run.finished or not isinstance(key, str):
            yield run
        elif key not in done:
            done[key] = run
            yield run
        else:
            faults.note(run.folder, f"the same work as {done[key].id}, already there; left out")


def _by_block(one: tuple[str, int]) -> tuple[int, str]:
    return one[1], one[0]


def _blocks(run: Run) -> range:
    blocks = run.meta.config.get("blocks")
    return range(min(blocks, MOST_BLOCKS) if isinstance(blocks, int) else 0)


def _planned(run: Run) -> tuple[str, ...]:
    arms = run.meta.config.get("arms")
    return tuple(arms) if isinstance(arms, dict) else ()
