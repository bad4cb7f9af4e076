"""Parts of one campaign that were measured in different folders, put together in one.

Blocks may be measured at once on disjoint devices, each by a process with a folder of its own, or
on a fresh machine after a cut. Rules of this file: whatever can be refused is refused before
anything is written. A run becomes visible whole or not at all, the parts stay as they are, nothing
is deleted, and doing it again adds only what is new.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from twolane import copies, journal, lock
from twolane.analysis import sameness
from twolane.copies import Reading, Told
from twolane.errors import QuestionError
from twolane.records import SCHEMA, UNREADABLE, Appender, RunMeta, read_json
from twolane.resume import CUT, damage, read_meta

RUNS: Final = "runs"
STAGING: Final = ".gathering"
"""Where copies grow; what a gathering that was killed left there is removed by the next one."""

_ROOM_BYTES = 1 << 26  # beside the runs: the joined events, and what the file system takes


@dataclass(frozen=True)
class Held:
    """A run as a part holds it: under `runs`, or set aside under `cut`. `meta` is None where it
    cannot be read; `foreign` is its schema where that is another version's. `spoilt` says what of a
    finished run's files is not as it was written."""

    folder: Path
    meta: RunMeta | None
    foreign: int | None = None
    spoilt: str = ""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def part(self) -> Path:
        return self.folder.parents[1]

    @property
    def aside(self) -> bool:
        return self.folder.parent.name == CUT

    @property
    def done(self) -> RunMeta | None:
        """Its meta, if it came to its end and its folder bears its name."""
        meta = None if self.aside else self.meta
        return meta if meta and meta.status == "done" and meta.id == self.name else None


@dataclass(frozen=True)
class Gathered:
    """What came of it, by run id: `copied`; `there` before; put `aside`, since another run has
    done the same work to its end. `done` runs are in the folder now, of which `damaged` ones are
    not as they were written; `missing` ones are in none of the parts, as arm and block (from 0).
    `notes` are for a person."""

    folder: Path
    campaign: str
    copied: tuple[str, ...]
    there: tuple[str, ...]
    aside: tuple[str, ...]
    done: tuple[str, ...]
    damaged: tuple[str, ...]
    missing: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


def gather(parts: Sequence[Path], out: Path, told: Told = lambda *_: None) -> Gathered:
    """Copy every run of `parts` to `out`, which may be one of them, or hold some of it already.

    Raises QuestionError where a part is none or is being written, where two are of different
    campaigns, where two unlike runs bear one id, where the same work was done on other devices,
    and where `out` has no room.
    """
    folders = _folders(parts, out)
    held = [run for folder in folders for run in _runs(folder)]
    metas = _of_one_campaign(folders, held)
    aside = {run.name for run in held if run.aside}
    counted = [run for run in held if run.name not in aside]
    aside |= _done_again(counted)
    counted = [run for run in counted if run.name not in aside]
    notes = [*_said_differently(metas), *_unreadable(held), *_damaged(counted)]
    notes += _done_twice(counted)
    first, again = _by_name(held)
    new = [run for run in first if run.part != folders[0]]
    reading = Reading(sum(_size(run) for run in [*new, *(run for _, run in again)]), told)
    for one, other in again:
        _require_alike(one, other, reading)
    _require_room(out, sum(map(_size, new)))
    with _writing(out):
        for run in new:
            target = out / (CUT if run.name in aside else RUNS) / run.name
            copies.copy(run.folder, target, out / STAGING, reading)
        there = [run for run in first if run not in new]
        _move_aside(there, aside)
        notes += _join_events(folders, out, metas)
    done = _work(run for run in first if run.name not in aside)
    return Gathered(
        out,
        metas[0].campaign,
        copied=tuple(run.name for run in new),
        there=tuple(run.name for run in there),
        aside=tuple(run.name for run in first if run.name in aside and not run.aside),
        done=tuple(meta.id for meta in done.values()),
        damaged=tuple(run.name for run in first if run.spoilt and run.done in done.values()),
        missing=tuple(sameness.missing(done.values())),
        notes=tuple(notes),
    )


# ------------------------------------------------------------------------------ what there is


def _folders(parts: Sequence[Path], out: Path) -> list[Path]:
    """`out` first, then every other part, each once. Raises QuestionError."""
    if out.is_dir() and not (out / RUNS).is_dir() and any(out.iterdir()):
        raise QuestionError(
            "it holds something else than a campaign",
            place=str(out),
            remedy="name a new folder, or a campaign's",
        )
    found = {out.resolve(): out}
    for part in parts:
        if not (part / RUNS).is_dir():
            raise QuestionError(
                "it has no folder `runs`" if part.is_dir() else "there is no such folder",
                place=str(part),
                remedy="name folders that a campaign wrote, e.g. results/demo",
            )
        found.setdefault(part.resolve(), part)
        if out.resolve() != part.resolve() and out.resolve().is_relative_to(part.resolve()):
            raise QuestionError(
                f"it lies inside of {part}", place=str(out), remedy="name a folder beside the parts"
            )
    for folder in found.values():
        if journal.is_written(folder):
            raise QuestionError(
                "a twolane writes it now",
                place=str(folder),
                remedy=f"wait until it has ended: twolane live {folder}",
            )
    return list(found.values())


def _runs(folder: Path) -> Iterator[Held]:
    for sub in (RUNS, CUT):
        if (folder / sub).is_dir():
            paths = sorted(path for path in (folder / sub).iterdir() if path.is_dir())
            for path in paths:
                yield _held(path)


class _Schema(msgspec.Struct):
    """What every version of twolane wrote into run.json."""

    schema: int


def _held(path: Path) -> Held:
    try:
        schema = read_json(path / "run.json", _Schema).schema
    except (OSError, *UNREADABLE):
        return Held(path, None)
    if schema != SCHEMA:
        return Held(path, None, foreign=schema)
    run = Held(path, read_meta(path))
    return run if run.done is None else replace(run, spoilt=damage(path))


def _size(run: Held) -> int:
    return sum(copies.files(run.folder).values())


def _unreadable(held: Iterable[Held]) -> Iterator[str]:
    for run in held:
        if run.meta is None:
            yield f"{run.folder}: {_unread(run)}; kept as it is, no figure reads it"


def _unread(run: Held) -> str:
    why = "cannot be read" if run.foreign is None else f"has {_other_schema(run.foreign)}"
    return f"its run.json {why}"


def _other_schema(schema: int) -> str:
    return f"schema {schema}, this twolane reads schema {SCHEMA}"


def _damaged(runs: Iterable[Held]) -> Iterator[str]:
    for run in runs:
        if run.spoilt:
            yield (
                f"{run.folder}: its run.json says done, and its files are not as they were "
                f"written ({run.spoilt}); kept, those points enter no verdict"
            )


# --------------------------------------------------------------------- whether it goes together


def _of_one_campaign(folders: Sequence[Path], held: Sequence[Held]) -> list[RunMeta]:
    """The metas of all runs that can be read. Raises QuestionError at the first difference."""
    readable = [(run, run.meta) for run in held if run.meta is not None]
    for folder in folders:
        mine = [run for run in held if run.part == folder]
        if mine and all(run.meta is None for run in mine):
            foreign = [run.foreign for run in mine if run.foreign is not None]
            if foreign:
                raise QuestionError(
                    f"its runs have {_other_schema(foreign[0])}",
                    place=str(folder),
                    remedy="gather it with the twolane that wrote it, and measure what is to stand "
                    "beside it with that one too",
                )
            raise _no_campaign(folder, "no run here can be read")
    if not readable:
        raise _no_campaign(folders[-1], "no run is here")
    first, reference = readable[0]
    for run, meta in readable:
        if not isinstance(meta.config.get("key"), str):
            raise _no_campaign(run.folder, "not a run of a campaign")
        _require_same(run, meta, first, reference)
    return [meta for _, meta in readable]


def _no_campaign(place: Path, what: str) -> QuestionError:
    return QuestionError(
        what, place=str(place), remedy="name folders that `twolane run` wrote, e.g. results/demo"
    )


def _require_same(run: Held, meta: RunMeta, first: Held, reference: RunMeta) -> None:
    found = list(sameness.differences(sameness.planned(meta), sameness.planned(reference)))
    if found:
        one, more = found[0], len(found) - 1
        also = f" ({more} more after this one)" if more else ""
        raise QuestionError(
            f"another campaign: {one.setting} is {one.here}, in {first.folder} it is "
            f"{one.there}{also}",
            place=str(run.folder),
            remedy="leave one of the two folders out; to hold them against each other: "
            f"twolane compare {first.part} {run.part}",
        )


def _said_differently(metas: Sequence[RunMeta]) -> Iterator[str]:
    """Settings that change no run, where the parts are not at one; each told once."""
    told: set[str] = set()
    for meta in metas:
        here, first = sameness.said_only(meta), sameness.said_only(metas[0])
        for one in sameness.differences(here, first):
            if one.setting not in told:
                told.add(one.setting)
                yield f"{one.setting}: {one.there} in {metas[0].id}, {one.here} in {meta.id}"


def _work(runs: Iterable[Held]) -> dict[tuple[str, int], RunMeta]:
    """Of finished runs the one that counts, by arm and block: the first of its ids that is whole,
    if any is."""
    done: dict[tuple[str, int], RunMeta] = {}
    for run in sorted(runs, key=lambda run: (bool(run.spoilt), run.name)):
        if meta := run.done:
            done.setdefault((meta.arm, meta.block), meta)
    return done


def _done_twice(runs: Sequence[Held]) -> Iterator[str]:
    """Notes of work that was done twice. Raises QuestionError where that was on other devices: a
    block's figures would be of both."""
    done = _work(runs)
    told: set[str] = set()
    for run, meta in ((run, meta) for run in runs if (meta := run.done)):
        counts, work = done[meta.arm, meta.block], f"{meta.arm}, block {meta.block + 1}"
        if meta.id == counts.id or meta.id in told:
            continue
        told.add(meta.id)
        if meta.config["key"] != counts.config["key"]:
            raise QuestionError(
                f"{work} was measured twice, on other devices: also in {counts.id}",
                place=str(run.folder),
                remedy="leave one of the two folders out: an arm counts once a block "
                "(`twolane run --block N` measures other blocks)",
            )
        yield f"{work} was measured twice: {counts.id} counts, {meta.id} is left out"


def _by_name(held: Iterable[Held]) -> tuple[list[Held], list[tuple[Held, Held]]]:
    """Each id's first folder, and pairs of folders with the same id."""
    first: dict[str, Held] = {}
    again: list[tuple[Held, Held]] = []
    for run in held:
        known = first.setdefault(run.name, run)
        if known is not run:
            again.append((known, run))
    return list(first.values()), again


def _require_alike(one: Held, other: Held, reading: Reading) -> None:
    name = copies.unlike(one.folder, other.folder, reading)
    if name is not None:
        raise QuestionError(
            f"two different runs have one id: {name} is not that of {one.folder}",
            place=str(other.folder),
            remedy=_the_whole_one(one, other),
        )


def _the_whole_one(one: Held, other: Held) -> str:
    broken = [run for run in (one, other) if run.spoilt or run.meta is None]
    if len(broken) == 1:
        why = f"it is not whole ({run.spoilt})" if (run := broken[0]).spoilt else _unread(run)
        return f"move {run.folder} out of its part: {why}"
    return (
        "keep the one that is whole (`twolane explain` tells them apart), and move the other out "
        "of its part"
    )


def _done_again(runs: Sequence[Held]) -> set[str]:
    """Runs that were cut, or whose files were, and whose work another one did to its end."""
    done = _work(run for run in runs if not run.spoilt)
    cut = [run.meta for run in runs if run.meta and (run.meta.status != "done" or run.spoilt)]
    whole = {meta.id for meta in done.values()}
    return {meta.id for meta in cut if (meta.arm, meta.block) in done} - whole


# ------------------------------------------------------------------------------------- writing


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Be the one who writes `out`. Raises QuestionError."""
    (out / RUNS).mkdir(parents=True, exist_ok=True)
    with copies.naming(out), Appender(out / journal.FILE) as events:
        if not lock.take(events.fileno()):
            raise QuestionError(
                "a twolane writes it now", place=str(out), remedy="wait until it has ended"
            )
        copies.remove(out / STAGING)
        yield
        copies.remove(out / STAGING)


def _require_room(out: Path, size: int) -> None:
    there = next(path for path in (out.resolve(), *out.resolve().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < size + _ROOM_BYTES:
        raise QuestionError(
            f"{_bytes(size)} are to be copied and {_bytes(_ROOM_BYTES)} left over, "
            f"{_bytes(free)} are free",
            place=str(out),
            remedy="free some space, or name another --out",
        )


def _bytes(count: int) -> str:
    """In the unit that its size deserves, so that a little is not nothing."""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def _move_aside(there: Iterable[Held], aside: Collection[str]) -> None:
    for run in there:
        if run.name in aside and not run.aside:
            (run.part / CUT).mkdir(exist_ok=True)
            run.folder.rename(run.part / CUT / run.name)


def _join_events(folders: Sequence[Path], out: Path, metas: Iterable[RunMeta]) -> Iterator[str]:
    """One events.jsonl out of all; notes of what is not in it."""
    began = {meta.id: meta.started_at for meta in metas}
    files = []
    for folder in folders:
        found, unread = journal.stretches(folder)
        files.append(found)
        if unread:
            yield f"{folder / journal.FILE}: {unread} lines cannot be read and are left out"
    beside = out / f"{journal.FILE}.tmp"
    beside.write_bytes(b"".join(journal.joined(files, began)))
    beside.replace(out / journal.FILE)
