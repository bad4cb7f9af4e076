"""Records on disk: whole lines, appended; what cannot be read is named and skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises: of another shape, of no shape, no text, nested without end."""


class Appender:
    """Appends structs to a JSONL file, one complete line per write, flushed to the kernel.

    A torn last line left by a crash is closed with a newline first, so that it spoils no
    neighbour.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def append(self, record: msgspec.Struct) -> None:
        self.write(msgspec.json.encode(record) + b"\n")

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[os.write(self._fd, left) :]

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BadLine(msgspec.Struct, frozen=True):
    """A line that could not be read: counted and shown, never silently dropped."""

    path: str
    line: int
    why: str


def read_jsonl(path: Path, of: type[T], bad: list[BadLine]) -> Iterator[T]:
    """Records of type `of` from `path`; unreadable lines are appended to `bad` and skipped."""
    decoder = msgspec.json.Decoder(of)
    if not path.exists():
        bad.append(BadLine(str(path), 0, "file is missing"))
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield decoder.decode(line)
            except UNREADABLE as error:
                torn = "" if line.endswith(b"\n") else "torn last line: "
                bad.append(BadLine(str(path), number, f"{torn}{error}"))


def write_json(path: Path, record: msgspec.Struct) -> None:
    """Replace `path` atomically with `record`, indented for people."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    beside = path.with_name(path.name + ".tmp")
    beside.write_bytes(text + b"\n")
    beside.replace(path)


def read_json(path: Path, of: type[T]) -> T:
    """One record from `path`.

    Raises OSError if it cannot be opened, one of UNREADABLE if it is not such a record.
    """
    return msgspec.json.decode(path.read_bytes(), type=of)
