"""The wish to stop, and when it takes effect: after the request that is under way.

Rules of this file: a long prompt may have run for minutes when somebody presses Ctrl-C; its answer
is worth waiting for. A second Ctrl-C does not wait. Who drives requests says so with `driving`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class Halt:
    """One campaign's wish to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._driving = False
        self._now = asyncio.Event()

    def ask(self) -> bool:
        """Somebody wants a stop. Whether it waits for a request; if not, it is to be at once."""
        waits = self._driving and not self.asked
        self.asked = True
        return waits

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Requests are under way while the block runs."""
        self._driving = True
        try:
            yield
        finally:
            self._driving = False

    def request_ended(self) -> None:
        """A request has its whole answer: a stop that was asked for takes effect."""
        if self.asked:
            self._now.set()

    async def wait(self) -> None:
        """Return when the stop takes effect."""
        await self._now.wait()
