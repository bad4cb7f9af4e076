"""Idle connections to one server.

Rules of this file: there is no limit on connections, ever: a request that waits for a socket is
a request that the engine does not know of, and 100-connection pools are how proxies fail to hold
256 requests in flight. Idle sockets are closed before the server's own keep-alive ends, so that
no request is written into a connection that the server is just closing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from twolane import clock
from twolane.wire.http1 import ClientConnection, connect

_AHEAD_AT_MOST = 64  # opened ahead at a time: thousands would crowd out those that are needed
IDLE_NS = 3 * clock.NS  # uvicorn closes after 5 s


class Pool:
    """Connections to `host`:`port`, the most recently used one first."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        kind: type[ClientConnection] = ClientConnection,
        idle_ns: int = IDLE_NS,
        now_ns: Callable[[], int] = clock.now_ns,
    ) -> None:
        self.host = host
        self.port = port
        self.opened = 0
        self._kind = kind
        self._idle_ns = idle_ns
        self._now_ns = now_ns
        self._idle: deque[tuple[int, ClientConnection]] = deque()  # oldest first
        self._opening: set[asyncio.Task[ClientConnection | None]] = set()
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def acquire(self) -> ClientConnection:
        """A free connection. Raises OSError where the server refuses one."""
        connection = self.take()
        if connection is not None:
            return connection
        self.opened += 1
        return await connect(self.host, self.port, self._kind)

    def prepare(self) -> None:
        """A connection will be needed soon: open one now, unless enough are at hand."""
        enough = len(self._idle) > len(self._opening) or len(self._opening) >= _AHEAD_AT_MOST
        if self._closed or enough:
            return
        task = asyncio.get_running_loop().create_task(self._open_ahead())
        self._opening.add(task)
        task.add_done_callback(self._opened)

    async def _open_ahead(self) -> ClientConnection | None:
        self.opened += 1
        try:
            return await connect(self.host, self.port, self._kind)
        except OSError:
            return None  # whoever needs it will find out, and can tell

    def _opened(self, task: asyncio.Task[ClientConnection | None]) -> None:
        self._opening.discard(task)
        connection = None if task.cancelled() else task.result()
        if connection is not None:
            self.release(connection)

    def release(self, connection: ClientConnection) -> None:
        """Give back a connection whose answer has ended; one that is not reusable is closed. Who
        paused it, as the last reads of an answer may, has no more to say: the next must be heard.
        """
        if self._closed or not connection.reusable:
            connection.abort()
            return
        connection.resume_reading()
        self._idle.append((self._now_ns(), connection))
        if self._reaper is None:
            self._schedule()

    def close(self) -> None:
        """Close what is idle; connections in use are closed when they come back."""
        self._closed = True
        for task in tuple(self._opening):
            task.cancel()
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        while self._idle:
            self._idle.pop()[1].abort()

    def take(self) -> ClientConnection | None:
        """An idle connection, None where there is none."""
        self.reap()
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.reusable:
                return connection
        return None

    def reap(self) -> None:
        """Close what has been idle for too long."""
        limit = self._now_ns() - self._idle_ns
        while self._idle and self._idle[0][0] <= limit:
            self._idle.popleft()[1].abort()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._reaper = loop.call_later(self._idle_ns / 2 / clock.NS, self._tick)

    def _tick(self) -> None:
        self._reaper = None
        self.reap()
        if self._idle:
            self._schedule()
