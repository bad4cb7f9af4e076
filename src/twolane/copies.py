"""Folders copied so that none is ever seen by half, and held against each other byte by byte.

Rules of this file: it knows files and nothing of what is in them. A copy grows where nobody looks,
is written through to the disk, and then gets its name in one step.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from twolane.errors import AnswerError, QuestionError

_CHUNK = 1 << 22

Told = Callable[[str, int, int], None]
"""The folder that is being read, bytes read so far, bytes to read in all."""


@dataclass
class Reading:
    """How far the reading of some folders is, told as it goes on; `total` is in bytes."""

    total: int
    told: Told
    _read: int = field(default=0, init=False)

    def on(self, folder: Path, count: int) -> None:
        self._read += count
        self.told(folder.name, self._read, self.total)


def files(folder: Path) -> dict[str, int]:
    """Sizes of all files below `folder`, by their path from it.

    Raises QuestionError at what is neither a file nor a folder, and at a link to a folder.
    """
    found: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        about = path.stat()
        if stat.S_ISREG(about.st_mode):
            found[str(path.relative_to(folder))] = about.st_size
        elif path.is_symlink() or not stat.S_ISDIR(about.st_mode):
            raise QuestionError(
                "neither a file nor a folder",
                place=str(path),
                remedy="put the file itself here, or remove it",
            )
    return found


def copy(source: Path, target: Path, staging: Path, reading: Reading) -> None:
    """Copy the folder `source` to `target`, which must not exist, by way of `staging`.

    Both must be on one file system. Raises AnswerError if a file changes meanwhile.
    """
    beside = staging / target.name
    beside.mkdir(parents=True)
    for name, size in files(source).items():
        (beside / name).parent.mkdir(parents=True, exist_ok=True)
        if _copy_file(source, name, beside, reading, size) != size:
            raise AnswerError(
                "it changed while it was copied",
                place=str(source / name),
                remedy="wait until nobody writes it any more, then do this again",
            )
    target.parent.mkdir(exist_ok=True)
    beside.rename(target)


def _copy_file(source: Path, name: str, target: Path, reading: Reading, size: int) -> int:
    """Returns the number of bytes copied; not many more than `size`, however it grows."""
    count = 0
    with (source / name).open("rb") as original, (target / name).open("xb") as made:
        while count <= size and (chunk := _chunk(original)):
            made.write(chunk)
            count += len(chunk)
            reading.on(source, len(chunk))
        made.flush()
        os.fsync(made.fileno())
    return count


def _chunk(file: BinaryIO) -> bytes:
    with naming(Path(file.name)):
        return file.read(_CHUNK)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the system refuses of an open file names no path: then it names `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def unlike(first: Path, second: Path, reading: Reading) -> str | None:
    """The first file in which two folders differ, by its path from them; None if in none."""
    here, there = files(first), files(second)
    for name in sorted(here.keys() | there.keys()):
        same_size = here.get(name, -1) == there.get(name, -1)
        if not same_size or not _same_bytes(first, second, name, reading):
            return name
    return None


def _same_bytes(first: Path, second: Path, name: str, reading: Reading) -> bool:
    with (first / name).open("rb") as here, (second / name).open("rb") as there:
        while chunk := _chunk(here):
            reading.on(first, len(chunk))
            if chunk != _chunk(there):
                return False
    return True


def remove(folder: Path) -> None:
    """What is left of copies that came to no end; nothing if there is none."""
    if folder.exists():
        shutil.rmtree(folder)
