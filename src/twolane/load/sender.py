"""Sends prepared requests at their moment, from inside one worker's event loop.

Rules of this file: a connection is opened before the moment and is not part of any time. What
goes wrong becomes the request's record; nothing here raises for a bad server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from twolane import clock
from twolane.clock import NS
from twolane.load import body, client, prompts
from twolane.load.orders import Ask, Target
from twolane.records import Request
from twolane.wire.drain import Drain
from twolane.wire.http1 import ClientConnection, WireError

CONNECT_AHEAD_NS: Final = NS // 50
"""How long before its moment a request gets its connection: 20 ms, ample on a local network,
and far below the few seconds after which servers close idle connections."""


class Prepared:
    """A request whose bytes are ready."""

    __slots__ = ("ask", "body")

    def __init__(self, ask: Ask, body: bytes) -> None:
        self.ask = ask
        self.body = body


def prepare(ask: Ask, target: Target, seed: int) -> Prepared:
    """Make the prompt and the bytes; a null ask has none."""
    if ask.role == "null":
        return Prepared(ask, b"")
    prompt = prompts.of(ask, seed, target.form, target.words)
    return Prepared(ask, body.body_of(ask, target, prompt))


def _nobody(key: int, request: Request) -> None:
    """Hears what was sent."""


class Sender:
    """Sends to one target; `open` holds the streams under way by their key.

    `on_sent` gets the key and the record so far of every request that left.
    """

    def __init__(
        self, target: Target, worker: int, on_sent: Callable[[int, Request], None] = _nobody
    ) -> None:
        self.target = target
        self.worker = worker
        self._on_sent = on_sent
        self.drain = Drain()
        self.open: dict[int, client.Stream] = {}
        self._connections: dict[int, ClientConnection] = {}

    async def send(
        self,
        prepared: Prepared,
        due_ns: int,
        *,
        on_first: Callable[[int], None] | None = None,
        connection: ClientConnection | None = None,
    ) -> tuple[Request, ClientConnection | None]:
        """Send at `due_ns` and wait for the end.

        `connection` is used if it is still good; the one that was used comes back for the next.
        """
        if prepared.ask.role == "null":
            return await self._sleep(prepared.ask, due_ns, on_first), None
        ended: asyncio.Future[Request] = asyncio.get_running_loop().create_future()
        stream = client.Stream(
            prepared.ask, ended.set_result, on_first, worker=self.worker, due_ns=due_ns
        )
        self.open[prepared.ask.key] = stream
        await until(due_ns - CONNECT_AHEAD_NS)
        connection = await self._connected(connection, stream)
        await until(due_ns)
        if connection is not None and not ended.done():
            self._write(prepared, connection, stream)
        request = await self._end_of(stream, ended)
        self.open.pop(prepared.ask.key, None)
        self._connections.pop(prepared.ask.key, None)
        return request, connection

    def stop(self, key: int) -> None:
        """End a stream from this side; unknown keys have ended already."""
        if (connection := self._connections.get(key)) is not None:
            connection.abort()
        if (stream := self.open.get(key)) is not None:
            stream.stop()

    async def _connected(
        self, connection: ClientConnection | None, stream: client.Stream
    ) -> ClientConnection | None:
        if connection is not None and connection.reusable:
            return connection
        try:
            return await self.drain.connect(self.target.host, self.target.port)
        except OSError as error:
            stream.send_ns = clock.now_ns()
            where = f"{self.target.host}:{self.target.port}"
            stream.finish(f"no connection to {where}: {error}", stream.send_ns)
            return None

    def _write(
        self, prepared: Prepared, connection: ClientConnection, stream: client.Stream
    ) -> None:
        ask = prepared.ask
        self._connections[ask.key] = connection
        head = body.head_of(ask, self.target, len(prepared.body))
        try:
            stream.send_ns = connection.send(head, prepared.body, stream)
            self._on_sent(ask.key, stream.so_far())
        except WireError as error:
            stream.send_ns = clock.now_ns()
            stream.on_lost(error, stream.send_ns)

    async def _end_of(self, stream: client.Stream, ended: asyncio.Future[Request]) -> Request:
        """Wait for the end, or give up after the target's patience without a token."""
        patience = self.target.patience_s
        while not ended.done():
            quiet_since = stream.last_ns or stream.send_ns
            left = patience - (clock.now_ns() - quiet_since) / NS
            if left <= 0:
                if (connection := self._connections.get(stream.ask.key)) is not None:
                    connection.abort()
                stream.finish(f"silent for {patience:g} s, given up", clock.now_ns())
                break
            await asyncio.wait({ended}, timeout=left)
        return ended.result()

    async def _sleep(
        self, ask: Ask, due_ns: int, on_first: Callable[[int], None] | None
    ) -> Request:
        """The null shot: sleep where the aggressor would prefill, and say so as a request."""
        await until(due_ns)
        send_ns = clock.now_ns()
        await until(send_ns + round(ask.sleep_s * NS))
        first_ns = clock.now_ns()
        if on_first is not None:
            on_first(first_ns)
        return Request(
            id=ask.id,
            cell=ask.cell,
            role=ask.role,
            index=ask.index,
            shot=ask.shot,
            worker=self.worker,
            send_ns=send_ns,
            due_ns=due_ns,
            first_ns=first_ns,
            last_ns=first_ns,
            end_ns=first_ns,
            finish_reason="slept",
            tokens=[0],
        )


async def until(moment_ns: int) -> None:
    """Return at `moment_ns` and never before it, or at once if it has passed."""
    left = moment_ns - clock.now_ns()
    if left > 0:
        await asyncio.sleep(left / NS)
        await until(moment_ns)  # a loop's timers may be half a millisecond early
