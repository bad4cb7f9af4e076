"""The sockets of a fault engine.

Rules of this file: HTTP only. It writes what it is told, also when that is broken on purpose.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import cast

from twolane.wire.requests import BadRequestError, Limits, Request, RequestParser

Serve = Callable[[Request, "EngineConnection"], Awaitable[None]]


class EngineConnection(asyncio.Protocol):
    """One connection to a fault engine; its requests are served in order."""

    def __init__(
        self, serve: Serve, members: set[EngineConnection], malformed: Callable[[], None]
    ) -> None:
        self._malformed = malformed
        self._serve = serve
        self._members = members
        self._parser = RequestParser(Limits(body=256 * 1024 * 1024))
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[Request] = []
        self.split_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._members.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._members.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._waiting += self._parser.feed(data)
        except BadRequestError as error:
            self._malformed()
            self.error(error.status, error.message)
            self._transport.close()
        self._next()

    def _next(self) -> None:
        if self._task is None and self._waiting:
            work = self._run(self._waiting.pop(0))
            self._task = asyncio.get_running_loop().create_task(work)

    async def _run(self, request: Request) -> None:
        try:
            await self._serve(request, self)
        finally:
            self._task = None
        self._next()

    # ------------------------------------------------------------------------------- writing

    def whole(self, status: int, body: bytes, *extra: bytes) -> None:
        lines = [b"HTTP/1.1 %d X" % status, b"server: uvicorn", *extra]
        lines.append(b"content-length: %d" % len(body))
        self._transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    def json(self, status: int, value: object, *extra: bytes) -> None:
        self.whole(status, json.dumps(value).encode(), b"content-type: application/json", *extra)

    def error(self, status: int, message: str, *extra: bytes) -> None:
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        error = {"message": message, "type": kind, "param": None, "code": status}
        self.json(status, {"error": error}, *extra)

    def failure(self, status: int, retry_after: str | None, *, html: bool) -> None:
        extra = [] if retry_after is None else [b"retry-after: " + retry_after.encode()]
        if html:
            text = b"<h1>bad gateway at 127.0.0.1:8101</h1>"
            self.whole(status, text, b"content-type: text/html", *extra)
        else:
            self.error(status, f"engine says {status}", *extra)

    def cut_short(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body[: len(body) // 2])
        self._transport.close()

    async def late_end(self, body: bytes, after_s: float) -> None:
        """Half of an answer at once, the rest later."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body[: len(body) // 2])
        await asyncio.sleep(after_s)
        self._transport.write(body[len(body) // 2 :])

    def begin(self, status: int, body: bytes) -> None:
        """A head that announces more than comes."""
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % (status, len(body) + 100) + body)

    def start(self, content_type: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head % content_type)

    def announce(self, *, stream: bool) -> None:
        """The head of an answer whose body never comes."""
        if stream:
            self.start(b"text/event-stream")
        else:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            self._transport.write(head + b"content-length: 100\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, value: object) -> None:
        data = b"data: " + json.dumps(value).encode() + b"\n\n"
        step = self.split_bytes or len(data)
        for at in range(0, len(data), step):
            self.chunk(data[at : at + step])

    def end(self) -> None:
        self._transport.write(b"0\r\n\r\n")

    def reset(self) -> None:
        """What was written leaves, then the connection is gone."""
        self._transport.close()
