"""Seals: what files held when they were written, so that a change since is seen.

Rules of this file: a seal finds accidents, such as doubled, lost, torn and edited lines or a file
of another run; it is no signature, and does not stop somebody who sets out to deceive. A digest
is the first half of SHA-256, in hex: processors have instructions for it, so that a gigabyte takes
half a second. Digests of records are taken over their JSON as it is read back, so that a file that
was only formatted anew is still whole.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from twolane.records import Appender, CellSummary, Request, RunMeta, Seal

SEALED: Final = ("needle.json", "findings.json", "metrics.jsonl")
"""Files of a run, besides run.json, that its end seals; cells seal themselves and requests."""

_DIGITS = 32
_CHUNK = 1 << 22

T = TypeVar("T", bound=msgspec.Struct)


class RequestFile(Appender):
    """requests.jsonl, which can seal each cell whose requests were appended to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._at = path.stat().st_size
        self._cells: dict[str, Lines] = {}

    def append(self, record: msgspec.Struct) -> None:
        line = msgspec.json.encode(record) + b"\n"
        self.write(line)
        if isinstance(record, Request):
            self._cells.setdefault(record.cell, Lines(self._at)).add(line)
        self._at += len(line)

    def sealed(self, meta: RunMeta, summary: CellSummary, *, measures: int) -> CellSummary:
        """`summary` with its seal; `measures` is the version of the values' definitions.

        Its requests must all have been appended.
        """
        never = {name for name, value in summary.values.items() if value == math.inf}
        never_of = sorted(never.union(summary.never))
        summary = _as_read(msgspec.structs.replace(summary, never=never_of, seal=None))
        lines = self._cells.get(summary.cell.id, Lines(self._at))
        seal = Seal(
            count=lines.count,
            start=lines.start,
            size=lines.size,
            lines=lines.digest(),
            summary=of_summary(meta, summary),
            measures=measures,
        )
        return msgspec.structs.replace(summary, seal=seal)


class Lines:
    """The lines of one cell so far; `start` is the first byte of the first."""

    def __init__(self, start: int = 0) -> None:
        self.start, self.count, self.size = start, 0, 0
        self._hash = hashlib.sha256()

    def add(self, line: bytes) -> None:
        self.count += 1
        self.size += len(line)
        self._hash.update(line)

    def digest(self) -> str:
        return self._hash.hexdigest()[:_DIGITS]


def of_bytes(*parts: bytes | memoryview) -> str:
    """Digest of `parts`, one after the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:_DIGITS]


def of_file(path: Path) -> str:
    """Digest of a file's bytes. Raises OSError."""
    return of_stretch(path, 0, path.stat().st_size)


def of_stretch(path: Path, start: int, size: int) -> str:
    """Digest of `size` bytes from byte `start` of a file. Raises OSError."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(_CHUNK, max(size, 1))))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while size > 0 and (read := file.readinto(buffer[: min(_CHUNK, size)])):
            digest.update(buffer[:read])
            size -= read
    return digest.hexdigest()[:_DIGITS]


def of_summary(meta: RunMeta, summary: CellSummary) -> str:
    """Digest of a cell's line less its seal, in the run that it was measured in."""
    belongs = [meta.id, meta.campaign, meta.arm, meta.block, meta.order, meta.seed, meta.boot]
    bare = _as_read(msgspec.structs.replace(summary, seal=None))
    return of_bytes(msgspec.json.encode(belongs), msgspec.json.encode(bare))


def of_run(meta: RunMeta) -> str:
    """Digest of run.json less its seal."""
    return of_bytes(msgspec.json.encode(_as_read(msgspec.structs.replace(meta, seal={}))))


def close_run(folder: Path, meta: RunMeta) -> RunMeta:
    """`meta` of a run that has ended, with the seal of its folder."""
    seal = {name: of_file(folder / name) for name in SEALED if (folder / name).exists()}
    return msgspec.structs.replace(meta, seal={"run.json": of_run(meta), **seal})


def _as_read(record: T) -> T:
    """`record` as a reader gets it: a whole number in a field of fractions becomes one."""
    return msgspec.json.decode(msgspec.json.encode(record), type=type(record))
