"""Whether a run's files still hold what was written: seals checked, changes named.

Rules of this file: it reads bytes and compares digests, and knows no measure. A cell whose lines
or whose run changed since it was sealed gets the code `DAMAGED`, in words that say what is there
and what was; nothing is repaired. Cells without a seal, as older versions of twolane left them,
are said to be unsealed and believed.

The quick way, of a file that is whole: every cell's requests stand where its seal says, so a
digest over that stretch is all there is to do, at the speed of SHA-256 and with no line looked at.
Only what lies outside of the stretches that hold is read line by line.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from twolane import seal
from twolane.analysis.reading import SELECTOR, Faults, misread, numbered
from twolane.records import UNREADABLE, CellSummary, Code, RunMeta, Seal

CODE: Final = "DAMAGED"

_CHUNK = 1 << 22

Stretch = tuple[int, int]
"""First byte and number of bytes."""


@dataclass(frozen=True)
class Checked:
    """A run's cells and what became of them, by cell id.

    `damage` says why a cell's point can enter no verdict. `stretches` are where the requests of
    undamaged cells stand in requests.jsonl. `edited` are cells whose own line is not what it was,
    so that its values cannot be taken over.
    """

    summaries: tuple[CellSummary, ...] = ()
    damage: Mapping[str, Code] = field(default_factory=dict)
    stretches: Mapping[str, Stretch] = field(default_factory=dict)
    edited: frozenset[str] = frozenset()
    lost: tuple[str, ...] = ()  # cells that the run finished and of which no line is left

    @property
    def sealed(self) -> bool:
        return any(summary.seal is not None for summary in self.summaries)


def check(folder: Path, meta: RunMeta, faults: Faults) -> Checked:
    """The cells of the run in `folder`, each with its damage; every change goes into `faults`."""
    found, why = _summaries(folder / "cells.jsonl", faults)
    sealed = {one.cell.id: one.seal for one in found if one.seal is not None}
    edited = {one.cell.id for one in found if one.seal and not _unchanged(meta, one, one.seal)}
    for cell in sorted(edited):
        why.setdefault(cell, "its line in cells.jsonl is not what the run wrote")
    if sealed or meta.seal:
        bare = [one.cell.id for one in found if one.seal is None]
        why |= dict.fromkeys(bare, "its line in cells.jsonl has no seal, unlike the run")
    stretches, changed = _requests(folder / "requests.jsonl", sealed, faults)
    for cell, said in changed.items():
        why.setdefault(cell, said)
    lost = _lost(meta, found)
    if of_run := _run(folder, meta, faults):
        why |= {one.cell.id: of_run for one in found if one.cell.id not in why}
    _tell(folder, why, lost, faults)
    return Checked(
        tuple(found),
        {cell: Code(code=CODE, why=said) for cell, said in why.items()},
        stretches,
        frozenset(edited),
        lost,
    )


def _tell(folder: Path, why: Mapping[str, str], lost: Iterable[str], faults: Faults) -> None:
    for cell, said in why.items():
        faults.note(folder, f"{cell}: {said}; its points enter no verdict")
    for cell in lost:
        faults.note(folder, f"{cell}: the run finished it and its line in cells.jsonl is gone")


def _summaries(path: Path, faults: Faults) -> tuple[list[CellSummary], dict[str, str]]:
    """The first line of each cell, and why a cell is damaged that has several unlike ones."""
    found: dict[str, CellSummary] = {}
    unlike: dict[str, str] = {}
    for number, summary in numbered(path, CellSummary, faults):
        cell = summary.cell.id
        if cell not in found:
            found[cell] = summary
        elif msgspec.json.encode(found[cell]) == msgspec.json.encode(summary):
            faults.note(path, f"{cell}: the same line again, skipped", number)
        else:
            unlike[cell] = "cells.jsonl has unlike lines of it"
    return list(found.values()), unlike


def _unchanged(meta: RunMeta, summary: CellSummary, sealed: Seal) -> bool:
    return seal.of_summary(meta, summary) == sealed.summary


def _lost(meta: RunMeta, found: Sequence[CellSummary]) -> tuple[str, ...]:
    if meta.status != "done":
        return ()
    held = {summary.cell.id for summary in found}
    return tuple(cell.id for cell in meta.cells if cell.id not in held)


def _run(folder: Path, meta: RunMeta, faults: Faults) -> str | None:
    """What of the run as a whole is not as its end left it, of that which a verdict rests on."""
    if not meta.seal:
        return None
    changed = [] if seal.of_run(meta) == meta.seal.get("run.json") else ["run.json"]
    changed += [name for name in seal.SEALED if not _holds(folder / name, meta.seal.get(name))]
    for name in changed:
        faults.note(folder / name, "changed since the run ended, or gone")
    spoilt = [name for name in changed if name in ("run.json", "needle.json")]
    return f"{' and '.join(spoilt)} changed since the run ended" if spoilt else None


def _holds(path: Path, digest: str | None) -> bool:
    try:
        return digest is None or seal.of_file(path) == digest
    except OSError:
        return False


# ------------------------------------------------------------------------------------ requests


def _requests(
    path: Path, sealed: Mapping[str, Seal], faults: Faults
) -> tuple[dict[str, Stretch], dict[str, str]]:
    """Where the cells' requests stand, and what is wrong with those that do not hold."""
    if not sealed:
        return {}, {}
    try:
        with path.open("rb") as file, _mapped(file.fileno()) as data:
            return _compared(_Outside(path, data, faults), sealed)
    except OSError:
        return {}, dict.fromkeys(sealed, "requests.jsonl cannot be read")
    except ValueError:  # an empty file cannot be mapped
        return {}, {cell: "requests.jsonl is empty" for cell, of in sealed.items() if of.count}


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _compared(
    lines: _Outside, sealed: Mapping[str, Seal]
) -> tuple[dict[str, Stretch], dict[str, str]]:
    whole = {
        cell: (of.start, of.size)
        for cell, of in sealed.items()
        if _in_place(lines.path, lines.data, of)
    }
    others = lines.by_cell(whole.values())
    wrong: dict[str, str] = {}
    for cell, of in sealed.items():
        other = others.get(cell, _NONE)
        count = other.count + (of.count if cell in whole else 0)
        if count != of.count:
            wrong[cell] = f"requests.jsonl has {count:,} lines of it, {of.count:,} were written"
        elif cell not in whole and other.digest() != of.lines:
            wrong[cell] = "its lines in requests.jsonl are not those that were written"
    return {cell: at for cell, at in whole.items() if cell not in wrong}, wrong


def _in_place(path: Path, data: mmap.mmap, of: Seal) -> bool:
    """Whether the stretch that the seal names holds what it names."""
    if of.start < 0 or of.size < 0 or of.start + of.size > len(data):
        return False
    # Read, not looked at in place: mapped pages would count as this process's memory.
    return seal.of_stretch(path, of.start, of.size) == of.lines


_NONE: Final = seal.Lines()


@dataclass
class _Outside:
    """The lines of requests.jsonl that lie outside of the stretches that hold."""

    path: Path
    data: mmap.mmap
    faults: Faults
    _counted: tuple[int, int] = (0, 0)  # a place in the file, and the lines before it

    def by_cell(self, held: Iterable[Stretch]) -> dict[str, seal.Lines]:
        """What lies there, by the cell that a line names; what names none goes into `faults`."""
        found: dict[str, seal.Lines] = {}
        for start, line in self._outside(held):
            try:
                cell = SELECTOR.decode(line).cell
            except UNREADABLE as error:
                if line.strip():
                    misread(self.path, self._number(start), line, error, self.faults)
                continue
            found.setdefault(cell, seal.Lines()).add(line)
        return found

    def _outside(self, held: Iterable[Stretch]) -> Iterator[tuple[int, bytes]]:
        at = 0
        for start, size in sorted(held):
            yield from self._lines(at, start)
            at = max(at, start + size)
        yield from self._lines(at, len(self.data))

    def _lines(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        while start < end:
            newline = self.data.find(b"\n", start, end)
            stop = end if newline < 0 else newline + 1
            yield start, self.data[start:stop]
            start = stop

    def _number(self, start: int) -> int:
        """The number of the line at byte `start`; the places asked for must ascend."""
        at, lines = self._counted
        for begin in range(at, start, _CHUNK):
            lines += self.data[begin : min(begin + _CHUNK, start)].count(b"\n")
        self._counted = (start, lines)
        return lines + 1
