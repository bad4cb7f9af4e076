"""Reading files as they are found: what is wrong is named, skipped and counted, and never raised.

Rules of this file: nothing here knows what a campaign is. A file that is missing, half-written,
torn or not ours goes into `Faults`, each fault once, however often its file is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from twolane.records import UNREADABLE, BadLine, read_json

T = TypeVar("T", bound=msgspec.Struct)


_BLOCK = 1 << 20


class Selector(msgspec.Struct, frozen=True):
    """The two fields a selection looks at; decoding only these skips the long ones cheaply."""

    role: str
    cell: str


SELECTOR = msgspec.json.Decoder(Selector)


class Faults:
    """What could not be read, or is not what it was, each fault once."""

    def __init__(self) -> None:
        self._seen: dict[BadLine, None] = {}
        self._others: tuple[Faults, ...] = ()

    @classmethod
    def of(cls, *several: Faults) -> Faults:
        """Those of several results, what is found later included."""
        found = cls()
        found._others = several
        return found

    def note(self, path: Path, why: str, line: int = 0) -> None:
        self._seen[BadLine(str(path), line, why)] = None

    def __iter__(self) -> Iterator[BadLine]:
        """In the order of their places: runs are checked side by side, and end when they end."""
        every = [*self._seen, *(bad for other in self._others for bad in other)]
        return iter(sorted(every, key=lambda bad: (bad.path, bad.line, bad.why)))

    def __len__(self) -> int:
        return len(self._seen) + sum(len(other) for other in self._others)


def one(path: Path, of: type[T], faults: Faults) -> T | None:
    """The record that `path` holds, or None."""
    try:
        return read_json(path, of)
    except FileNotFoundError:
        faults.note(path, "file is missing")
    except (OSError, *UNREADABLE) as error:
        faults.note(path, str(error))
    return None


def records(path: Path, of: type[T], faults: Faults) -> Iterator[T]:
    """The records of a JSONL file, in order."""
    for _, record in numbered(path, of, faults):
        yield record


def numbered(path: Path, of: type[T], faults: Faults) -> Iterator[tuple[int, T]]:
    """The records of a JSONL file with the numbers of their lines, from 1."""
    decoder = msgspec.json.Decoder(of)
    for number, line in lines(path, faults):
        record = decode(decoder, path, number, line, faults)
        if record is not None:
            yield number, record


def lines(path: Path, faults: Faults) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers from 1."""
    try:
        with path.open("rb") as file:
            yield from ((n, line) for n, line in enumerate(file, 1) if line.strip())
    except FileNotFoundError:
        faults.note(path, "file is missing")
    except OSError as error:
        faults.note(path, str(error))


def stretch(path: Path, start: int, size: int, faults: Faults) -> Iterator[bytes]:
    """The lines of the `size` bytes from byte `start`, which begin and end with a line."""
    rest = b""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            while size > 0 and (block := file.read(min(size, _BLOCK))):
                size -= len(block)
                whole = (rest + block).splitlines(keepends=True)
                rest = whole.pop() if size > 0 and not block.endswith(b"\n") else b""
                yield from whole
    except OSError as error:
        faults.note(path, str(error))


def decode(
    decoder: msgspec.json.Decoder[T], path: Path, number: int, line: bytes, faults: Faults
) -> T | None:
    """The record in `line`, or None."""
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        misread(path, number, line, error, faults)
    return None


def misread(path: Path, number: int, line: bytes, error: Exception, faults: Faults) -> None:
    """Name a line that is no record."""
    torn = "" if line.endswith(b"\n") else "torn last line: "
    faults.note(path, f"{torn}{error}", number)


def without_gaps(line: bytes) -> bytes:
    """A request's line without its gaps, which are nearly all of it, found and not parsed.

    Inside a text every quote is escaped, so this text can stand nowhere else.
    """
    start = line.find(b',"gaps_ns":[')
    end = line.find(b"]", start)
    return line[:start] + line[end + 1 :] if 0 < start < end else line
