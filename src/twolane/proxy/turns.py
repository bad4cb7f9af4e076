"""Turns: in a burst, what has begun goes on before more begins.

Without them, of 256 requests that come at once all reach P before the first reaches D, and all
get their first token at about the same time, the end. With a few beginnings a round the rounds
between them serve P's answers and D's first tokens: the median first token of a burst comes in
half the time, the last no later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


async def in_turns(steps: Generator[None, None, T]) -> T:
    """What long work comes to, with the other streams' turns between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


class Turns:
    """Lets `a_round` requests begin in each round of the event loop, first come first."""

    def __init__(self, a_round: int = 4) -> None:
        self._a_round = a_round
        self._left = a_round
        self._queue: deque[asyncio.Future[None]] = deque()
        self._counting = False

    async def take(self) -> None:
        """Returns when it is the caller's turn, at once where few come."""
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._round)
        if self._left and not self._queue:
            self._left -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        await turn

    def _round(self) -> None:
        busy = self._left < self._a_round
        self._left = self._a_round
        while self._queue and self._left:
            turn = self._queue.popleft()
            if not turn.done():  # its client has left
                self._left -= 1
                turn.set_result(None)
        self._counting = busy or bool(self._queue) or self._left < self._a_round
        if self._counting:
            asyncio.get_running_loop().call_soon(self._round)
