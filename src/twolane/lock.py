"""Locks on files: taken without waiting, asked about without taking.

Rules of this file: a lock is the kernel's (flock). It belongs to the open file, is inherited by
children with its descriptor, and ends with the last process that holds it, whatever ended that
process. A file system without locks cannot tell: there every lock is free.
"""

from __future__ import annotations

import fcntl
from pathlib import Path


def take(descriptor: int) -> bool:
    """Lock the open file; False if another process has it."""
    return _flock(descriptor, fcntl.LOCK_EX)


def is_taken(path: Path) -> bool:
    """Whether some process holds the lock of `path` now; a file that is not there has none."""
    try:
        with path.open("rb") as file:
            return not _flock(file.fileno(), fcntl.LOCK_SH)
    except OSError:
        return False


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
