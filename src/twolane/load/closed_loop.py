"""A grid cell inside one worker: so many users, each with one request in flight at all times.

Rules of this file: every user first gets one warm-up answer, whose length is spread over the
users so that they do not march in step; a user that is done early goes on warming up. The
warm-up is not drained: when every user of every worker has had its answer, the driver names the
moment from which requests simply begin to count. The window runs from the first request that
counts to the last one, so that neither start-up nor tail is in it. Prompts follow from the
user's number in the whole cell, however many workers share it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from twolane import clock
from twolane.clock import NS
from twolane.load.orders import Ask, ClosedLoop, LoopEnded
from twolane.load.sender import Prepared, Sender, prepare
from twolane.records import Request, Role
from twolane.wire.http1 import ClientConnection

FAILURES_IN_A_ROW: Final = 20
"""After so many (or twice the users, if that is more) the server is taken for dead: a loop of
refused connections turns thousands of times a second."""


class Loop:
    def __init__(
        self,
        order: ClosedLoop,
        sender: Sender,
        seed: int,
        on_done: Callable[[int, Request], None],
        on_warm: Callable[[], None],
    ) -> None:
        self.cell = order.cell
        self._part = order.part
        self._parts = order.parts
        self._users = range(order.part, self.cell.users, order.parts)
        self.quota = _quota(self.cell.requests, order)
        self._on_warm = on_warm
        self._enough = False
        self._prefix = order.id_prefix
        self._sender = sender
        self._seed = seed
        self._on_done = on_done
        self._warm_users = 0
        self._issued = 0
        self._begun_ns: int | None = None
        self._sent_ns: list[int] = []
        self._failures = 0
        self.completed = 0

    @property
    def phase(self) -> str:
        return "warm-up" if not self._counting else "window" if self._more() else "tail"

    def count_from(self, at_ns: int) -> None:
        """Requests that leave at `at_ns` or later count."""
        self._begun_ns = at_ns

    def stop(self) -> None:
        """Issue no more requests."""
        self._enough = True

    @property
    def _counting(self) -> bool:
        return self._begun_ns is not None and clock.now_ns() >= self._begun_ns

    async def run(self) -> LoopEnded:
        await asyncio.gather(*(self._user(number) for number in self._users))
        window = (min(self._sent_ns), max(self._sent_ns)) if self._sent_ns else None
        problem = None if self._alive else f"{self._failures} requests failed in a row"
        return LoopEnded(window_ns=window, problem=problem)

    async def _user(self, number: int) -> None:
        connection: ClientConnection | None = None
        warm = False
        salts = count(number, self.cell.users)
        ready = self._prepare(next(salts), _staggered(self.cell.output, number, self.cell.users))
        while self._more():
            due_ns = clock.now_ns()
            counts = self._counting
            prepared = self._place(ready, counts)
            sending = asyncio.ensure_future(
                self._sender.send(prepared, due_ns, connection=connection)
            )
            await asyncio.sleep(0)  # the request is written before the next one is made
            ready = self._prepare(next(salts), self.cell.output)
            request, connection = await sending
            self._note(prepared.ask.key, request, counts)
            if not warm:
                warm = True
                self._one_more_is_warm()

    def _more(self) -> bool:
        """Whether a user may issue another request now."""
        if not self._alive or self._enough:
            return False
        if self._begun_ns is None or not self._counting:
            return True
        if self.quota is not None:
            return self._issued < self.quota
        return clock.now_ns() < self._begun_ns + round((self.cell.seconds or 0.0) * NS)

    @property
    def _alive(self) -> bool:
        return self._failures < max(FAILURES_IN_A_ROW, 2 * len(self._users))

    def _one_more_is_warm(self) -> None:
        self._warm_users += 1
        if self._warm_users == len(self._users):
            self._on_warm()

    def _prepare(self, salt: int, output: int) -> Prepared:
        """The bytes of the next request; its place in the cell is not known yet."""
        ask = self._ask("grid", index=0, output=output, salt=salt)
        return prepare(ask, self._sender.target, self._seed)

    def _place(self, prepared: Prepared, counts: bool) -> Prepared:
        role: Role = "grid" if counts else "warmup"
        index = self._issued * self._parts + self._part if counts else prepared.ask.salt
        self._issued += counts
        old = prepared.ask
        ask = self._ask(role, index=index, output=old.output, salt=old.salt)
        return Prepared(ask, prepared.body)

    def _ask(self, role: Role, *, index: int, output: int, salt: int) -> Ask:
        return Ask(
            key=salt,
            id=f"{self._prefix}-{role}-{index}",
            cell=self.cell.id,
            role=role,
            index=index,
            prompt=self.cell.prompt,
            output=output,
            salt=salt,
        )

    def _note(self, key: int, request: Request, counts: bool) -> None:
        self._failures = self._failures + 1 if request.error is not None else 0
        if counts:
            self.completed += 1
            self._sent_ns.append(request.send_ns)
        self._on_done(key, request)


def _quota(requests: int | None, order: ClosedLoop) -> int | None:
    """How many of the cell's requests fall to this part."""
    return None if requests is None else len(range(order.part, requests, order.parts))


def _staggered(output: int, number: int, users: int) -> int:
    """Warm-up answer length of user `number`: from output / users up to output, evenly."""
    return max(1, output * (number + 1) // users)
