"""Which runs of a campaign are done already, and what those that were cut leave to the next.

Rules of this file: what is done is read off the disk alone, by the keys in run.json, so that it
holds after a power cut on this host and for results that were carried over from another one. A
run that was cut is set aside, whole, and done again, since its engines are gone. Where it died in
a ramp, which may have taken hours to get there, the new run goes on at the turn that was not
answered. Nothing is deleted. A run on other devices of a node is the same work: its devices are a
recorded fact, and a difference between arms in them is a confound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from twolane.analysis import asked as questions
from twolane.analysis import integrity
from twolane.analysis.measures import tpot_ns
from twolane.analysis.reading import Faults
from twolane.errors import QuestionError
from twolane.plan import PlannedRun
from twolane.records import (
    UNREADABLE,
    CellSummary,
    RampCell,
    Request,
    RunMeta,
    Sample,
    read_json,
    read_jsonl,
)

CUT = "cut"
"""Beside `runs`: runs that did not come to their end and were done again. No figure reads it."""

Groups = dict[str, tuple[int, ...]]
"""A node's groups: their devices, by name."""

OnGroups = Callable[[Groups], Iterable[PlannedRun]]
"""The campaign's runs in order, planned for a node whose groups hold these devices."""


@dataclass(frozen=True)
class Carried:
    """What a run that died in a ramp leaves to the one that goes on for it.

    `cells` were driven to their end; `ramp` was not, and of it `turns` were answered.
    """

    run: Path
    cells: tuple[CellSummary, ...]
    ramp: RampCell
    turns: tuple[Request, ...]

    def __str__(self) -> str:
        last = max(turn.index for turn in self.turns) + 1
        return (
            f"goes on from {self.run.name}: {len(self.cells)} cells are done, and {last} of "
            f"{self.ramp.turns} turns of {self.ramp.id}"
        )

    @property
    def done(self) -> frozenset[str]:
        """Ids of the cells that need not be driven again."""
        return frozenset(summary.cell.id for summary in self.cells)

    def requests(self, run: Path) -> Iterable[Request]:
        """What is kept of `run`, the cut run's folder wherever it lies now."""
        turns = {turn.id for turn in self.turns}
        for request in read_jsonl(run / "requests.jsonl", Request, []):
            if request.cell in self.done or request.id in turns:
                yield request

    def samples(self, run: Path, boot: str) -> Iterable[Sample]:
        """Its metrics; none where the host has been started anew, and with it its clock."""
        if read_json(run / "run.json", RunMeta).boot != boot:
            return ()
        return read_jsonl(run / "metrics.jsonl", Sample, [])


@dataclass(frozen=True)
class Left:
    """What is left to do: `runs` in order, `cut` folders to set aside with their runs' keys (None
    where it cannot be read), by run's key what is `carried` over into it. Of what is done,
    `elsewhere` runs were measured on other devices than the campaign names now."""

    runs: tuple[PlannedRun, ...]
    cut: Mapping[Path, str | None] = field(default_factory=dict)
    carried: Mapping[str, Carried] = field(default_factory=dict)
    elsewhere: int = 0

    def only(self, blocks: Collection[int], arms: Collection[str] = ()) -> Left:
        """The runs of these blocks and arms, all if none is named; cut runs of others stay."""
        runs = tuple(
            run
            for run in self.runs
            if (not blocks or run.block in blocks) and (not arms or run.arm.name in arms)
        )
        keys = {run.key for run in runs}
        cut = {path: key for path, key in self.cut.items() if key is None or key in keys}
        return replace(self, runs=runs, cut=cut)

    def set_aside(self) -> None:
        """Move the cut runs out of the way of those that will do their work."""
        for run in self.cut:
            aside = run.parents[1] / CUT
            aside.mkdir(exist_ok=True)
            run.rename(aside / run.name)


def latest_folder(results: Path, name: str) -> Path | None:
    """The newest folder that campaigns called `name` wrote under `results`, if there is one."""
    found = None
    for n in range(1, 10_000):
        folder = results / (name if n == 1 else f"{name}-{n}")
        if not (folder / "runs").exists():
            break
        found = folder
    return found


def left_over(
    planned: Sequence[PlannedRun],
    folder: Path,
    redo: Collection[str] = (),
    on: OnGroups | None = None,
    asked: Mapping[str, Any] | None = None,
) -> Left:
    """What of `planned` the results in `folder` do not hold as done. Changes nothing.

    A run with a cell that has one of the codes `redo` is to be done again, like one that was cut.
    `on` plans the campaign for other devices, so that what was measured there is known again.
    `asked` is the campaign as run.json would hold it, to say what was changed.
    Raises QuestionError if `folder` holds finished runs of another question.
    """
    keys = _Keys(planned, on)
    done: dict[str, Path] = {}
    cut: dict[Path, str | None] = {}
    for run in sorted(path for path in (folder / "runs").iterdir() if path.is_dir()):
        key = keys.of(run)
        if key is None or finished_key(run) is None or _struck(run, redo):
            cut[run] = key
        else:
            done[key] = run
    _require_same_question(done, planned, folder, asked or {})
    left = tuple(step for step in planned if step.key not in done)
    undone = {step.key for step in left}
    carried = {
        key: kept
        for run, key in cut.items()
        if key in undone and key is not None and (kept := _carried(run)) is not None
    }
    return Left(left, cut, carried, sum(_key(run) != key for key, run in done.items()))


class _Keys:
    """The planned run's key of a run on disk, also where that was measured on other devices."""

    def __init__(self, planned: Sequence[PlannedRun], on: OnGroups | None) -> None:
        self._planned = [run.key for run in planned]
        self._on = on
        self._here: dict[str, str] = {}  # keys on other devices, and what they are on these
        self._asked: list[Groups] = []

    def of(self, run: Path) -> str | None:
        """None where it cannot be read, its own where it is none of the campaign's."""
        key = _key(run)
        if key is None or key in self._planned:
            return key
        groups = _groups(run)
        if self._on is not None and groups is not None and groups not in self._asked:
            self._asked.append(groups)
            there = (step.key for step in self._on(groups))
            self._here |= dict(zip(there, self._planned, strict=True))
        return self._here.get(key, key)


def finished_key(run: Path) -> str | None:
    """Key of the run in folder `run`; None if it did not come to its end, cannot be read, or is a
    copy: its folder bears another name than the run."""
    meta = read_meta(run)
    if meta is None or meta.status != "done" or meta.id != run.name:
        return None
    return _key(run)


def read_meta(run: Path) -> RunMeta | None:
    """What the run in folder `run` says of itself; None where that cannot be read."""
    try:
        return read_json(run / "run.json", RunMeta)
    except (OSError, *UNREADABLE):
        return None


def _key(run: Path) -> str | None:
    meta = read_meta(run)
    key = meta.config.get("key") if meta is not None else None
    return key if isinstance(key, str) else None


def _groups(run: Path) -> Groups | None:
    meta = read_meta(run)
    node = meta.config.get("node") if meta is not None else None
    try:
        return msgspec.convert(node["groups"], Groups) if isinstance(node, dict) else None
    except (KeyError, msgspec.ValidationError):
        return None


def _struck(run: Path, codes: Collection[str]) -> bool:
    """Whether a cell of the run has one of `codes`, damage since it was written among them."""
    summaries = read_jsonl(run / "cells.jsonl", CellSummary, [])
    if any(code.code in codes for summary in summaries for code in summary.codes):
        return True
    return integrity.CODE in codes and bool(damage(run))


def damage(run: Path) -> str:
    """What of a finished run's files is not as the run wrote it, the first; empty if nothing."""
    meta = read_meta(run)
    if meta is None:
        return ""
    checked = integrity.check(run, meta, Faults())
    lost = [f"{cell}: its line in cells.jsonl is gone" for cell in checked.lost]
    spoilt = [f"{cell}: {code.why}" for cell, code in checked.damage.items()]
    return next(iter([*lost, *spoilt]), "")


def _carried(run: Path) -> Carried | None:
    """What the cut run in folder `run` leaves; None unless it died in a ramp that had begun, and
    all that it had measured is as it was written."""
    meta = read_meta(run)
    if meta is None:
        return None
    checked = integrity.check(run, meta, Faults())
    if checked.damage:
        return None
    summaries = checked.summaries
    done = {summary.cell.id for summary in summaries}
    unfinished = next((cell for cell in meta.cells if cell.id not in done), None)
    if not isinstance(unfinished, RampCell):
        return None
    turns = _answered(unfinished, read_jsonl(run / "requests.jsonl", Request, []))
    return Carried(run, summaries, unfinished, turns) if turns else None


def _answered(ramp: RampCell, requests: Iterable[Request]) -> tuple[Request, ...]:
    """The turns that were answered in full, every user's from the first on without a hole."""
    whole = {
        (r.user, r.index): r
        for r in requests
        if r.cell == ramp.id and r.role == "turn" and r.error is None and tpot_ns(r) is not None
    }
    kept: list[Request] = []
    for user in range(ramp.users):
        for index in range(ramp.turns):
            if (user, index) not in whole:
                break
            kept.append(whole[user, index])
    return tuple(kept)


def _require_same_question(
    done: Mapping[str, Path],
    planned: Sequence[PlannedRun],
    folder: Path,
    asked: Mapping[str, Any],
) -> None:
    keys = {step.key for step in planned}
    foreign = [run for key, run in done.items() if key not in keys]
    if not foreign:
        return
    metas = [meta for run in foreign if (meta := read_meta(run)) is not None]
    blocks = max((step.block for step in planned), default=-1) + 1
    there = max((meta.block for meta in metas), default=-1) + 1
    changed = questions.changed([meta for meta in metas if meta.block < blocks] or metas, asked)
    further = f"give --blocks {there}, as many as there are here"
    if there > blocks and not changed:
        raise QuestionError(
            f"{len(foreign)} finished runs here are of further blocks: {there} were measured, and "
            f"this campaign has {blocks}",
            place=str(folder),
            remedy=further,
        )
    why = f": {'; '.join(changed)}" if changed else f", first {foreign[0].name}"
    raise QuestionError(
        f"{len(foreign)} finished runs here belong to another question{why}",
        place=str(folder),
        remedy="run it without --resume, into a new folder, or undo the change"
        + (f" and {further}" if there > blocks else ""),
    )
