"""Who holds a device: one lock file for each core and each GPU of this host.

Rules of this file: a lock is the kernel's (flock), so that it ends with the last process that
holds it, whatever ended that process; what stands in the file is for people alone, and a file that
was left behind by a crash locks nothing. Engines inherit the locks of their devices: a device is
free when nothing of a run lives any more, not when twolane has gone.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil

from twolane import devices, lock
from twolane.config import Layout
from twolane.config.models import Platform
from twolane.errors import QuestionError

VARIABLE: Final = "TWOLANE_LOCKS"
"""Folder of the lock files; else one in the system's own folder for temporary files, so that
campaigns of different users meet there."""

LINGER_S: Final = 15.0
"""How long the engines of a twolane that was killed may still be stopping: the guard's grace and
more."""

_RETRY_S = 0.25


@dataclass(frozen=True)
class Claim:
    """Devices that are held; `descriptors` are to be inherited by the engines on them.

    `beside` tells of others who hold other devices of this host.
    """

    descriptors: tuple[int, ...]
    beside: tuple[str, ...] = ()

    def release(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def folder() -> Path:
    return Path(os.environ.get(VARIABLE) or Path(tempfile.gettempdir()) / "twolane-devices")


@contextlib.contextmanager
def held(
    layouts: Iterable[Layout],
    kind: Platform,
    what: str,
    *,
    beside: bool = True,
    linger_s: float = LINGER_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Claim]:
    """Hold every device of `layouts` while the block runs; `what` tells others what for.

    Raises QuestionError, naming the holder, if another campaign has one of them. One whose holder
    is gone is waited for, since its engines are ending. Without `beside`, also if another has any
    other device of this host.
    """
    numbers = sorted({d for layout in layouts for e in layout.engines for d in e.devices})
    wanted = [(_name(kind, n), _said(kind, n)) for n in numbers]
    claim = _claim(wanted, what, linger_s, sleep)
    try:
        others = _others({name for name, _ in wanted})
        if others and not beside:
            raise QuestionError(
                f"this host is not alone: {others[0]}",
                place=str(folder()),
                remedy="wait until it has finished, or set `beside_others: true` in the campaign: "
                "memory, PCIe and host cores are then shared, and the confounds say so",
            )
        yield replace(claim, beside=others)
    finally:
        claim.release()


def _others(ours: Collection[str]) -> tuple[str, ...]:
    """Who holds other devices of this host, each once: what for, and its process id."""
    found: dict[str, None] = {}
    for path in sorted(folder().glob("*.lock")):
        if path.stem not in ours and lock.is_taken(path):
            pid, what = _holder(path)
            found[f"{what or 'another run'} (pid {pid}) holds {path.stem}"] = None
    return tuple(found)


def _said(kind: Platform, number: int) -> str:
    return f"CPU core {number}" if kind == "cpu" else f"GPU {number}"


def _name(kind: Platform, number: int) -> str:
    """A GPU is named by its UUID: its number depends on the driver's order."""
    if kind == "cpu":
        return f"core-{number}"
    return next((g.uuid for g in devices.gpus() if g.index == number), f"gpu-{number}")


def _claim(
    wanted: Sequence[tuple[str, str]],
    what: str,
    linger_s: float,
    sleep: Callable[[float], None],
) -> Claim:
    taken: list[int] = []
    try:
        for name, said in wanted:
            path = folder() / f"{name}.lock"
            for _ in range(1 + round(linger_s / _RETRY_S)):
                descriptor = _try(path, what)
                if descriptor is not None:
                    taken.append(descriptor)
                    break
                if _lives(_holder(path)):
                    raise _refused(path, said)
                sleep(_RETRY_S)
            else:
                raise _refused(path, said)
    except BaseException:
        Claim(tuple(taken)).release()
        raise
    return Claim(tuple(taken))


def _try(path: Path, what: str) -> int | None:
    """The lock's descriptor; None if another process has it."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o1777)  # others put their own files there, and remove none of ours
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except PermissionError:  # the file is another user's: it can be locked all the same
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not lock.take(descriptor):
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, 0o666)  # whoever holds it next says so here, whatever our umask
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {what}\n".encode(), 0)
    return descriptor


def _holder(path: Path) -> tuple[int, str]:
    """Process id of the holder, 0 if unknown, and what it holds the device for."""
    try:
        pid, _, what = path.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    except OSError:
        return 0, ""
    return (int(pid) if pid.isdecimal() else 0), what


def _lives(holder: tuple[int, str]) -> bool:
    return bool(holder[0]) and psutil.pid_exists(holder[0])


def _refused(path: Path, said: str) -> QuestionError:
    pid, what = _holder(path)
    whose = f"{what or 'another run'} (pid {pid})" if pid else "another run"
    end = f"end it with `kill -INT {pid}`" if _lives((pid, what)) else "wait until its engines end"
    return QuestionError(
        f"{said} is held by {whose}",
        place=str(path),
        remedy=f"{end}, wait until it has finished, or name other devices in node.groups: two "
        "runs on one device would measure each other",
    )
