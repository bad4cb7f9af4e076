"""events.jsonl: everything that happens in a campaign, as it happens, for whoever watches.

Rules of this file: one process at a time writes a campaign's folder. It holds the file's lock, so
that another terminal can tell a campaign that is running from one that was cut.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from twolane.clock import now_ns
from twolane.errors import QuestionError
from twolane.pace import Pace
from twolane.records import Appender, Event

FILE = "events.jsonl"


class Journal:
    """A campaign's events: written, annotated by `pace`, and told. Use as a context manager.

    `begin` tells how many runs are done of how many, and how long the others should take.
    Raises QuestionError where another process writes this folder.
    """

    def __init__(
        self,
        folder: Path,
        pace: Pace,
        told: Callable[[Event], None],
        *,
        done: int = 0,
        total: int | None = None,
        expect_s: float | None = None,
    ) -> None:
        self._pace = pace
        self._told = told
        self._begin = Event(
            t_ns=now_ns(), run="", step="begin", text=str(folder), done=done, total=total,
            expect_s=expect_s,
        )  # fmt: skip
        self._file = Appender(folder / FILE)
        if not _locked(self._file.fileno()):
            self._file.close()
            raise QuestionError(
                "another twolane writes this folder",
                place=str(folder),
                remedy=f"wait for it (twolane live {folder}), or run without --resume",
            )

    def __enter__(self) -> Journal:
        self.tell(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._say("end", "done" if error is None else _why(error))
        finally:
            self._file.close()

    def tell(self, event: Event) -> None:
        event = self._pace.annotate(event)
        self._file.append(event)
        self._told(event)

    def note(self, text: str) -> None:
        """Something that belongs to no run."""
        self._say("note", text)

    def _say(self, step: str, text: str) -> None:
        self.tell(Event(t_ns=now_ns(), run="", step=step, text=text))


def _why(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "interrupted"
    return f"ended early: {error or type(error).__name__}"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks cannot tell
    return True


def is_written(folder: Path) -> bool:
    """Whether some process writes the campaign in `folder` now."""
    try:
        with (folder / FILE).open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
