"""A server that knows when it wrote every event, for measuring the client alone.

Rules of this file: it answers a completion with one token every GAP_S, whatever the prompt, and
`GET /log` with the stamps of its writes by request id, taken just before each write. It runs as a
process of its own on a free port of the loopback, prints the port, and dies with its parent.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast

import msgspec
import uvloop

from twolane import clock
from twolane.load.worker import die_with
from twolane.wire.requests import BadRequestError, Request, RequestParser

GAP_S: Final = 0.02
"""50 tokens a second: faster than most engines decode, so that a campaign asks for less."""

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_EVENT: Final = (
    b'data: {"id":"echo","object":"text_completion","choices":[{"index":0,"text":"x",'
    b'"finish_reason":%b}],"usage":{"prompt_tokens":0,"completion_tokens":%d}}\n\n'
)


class _Asked(msgspec.Struct, frozen=True):
    max_tokens: int = 16


_asked = msgspec.json.Decoder(_Asked).decode


class _Connection(asyncio.Protocol):
    def __init__(self, log: dict[str, list[int]]) -> None:
        self._log = log
        self._parser = RequestParser()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            requests = self._parser.feed(data)
        except BadRequestError:
            self._transport.abort()
            return
        for request in requests:
            self._answer(request)

    def _answer(self, request: Request) -> None:
        if request.method == "GET":
            body = msgspec.json.encode(self._log)
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            self._transport.write(body)
            return
        written = self._log[request.header(b"x-request-id") or ""] = []
        self._transport.write(_HEAD)
        due = asyncio.get_running_loop().time() + GAP_S
        self._later(due, written, _asked(request.body).max_tokens)

    def _later(self, due: float, written: list[int], total: int) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(due, self._write, due, written, total)

    def _write(self, due: float, written: list[int], total: int) -> None:
        written.append(clock.now_ns())
        last = len(written) == total
        event = _EVENT % (b'"length"' if last else b"null", len(written))
        end = b"0\r\n\r\n" if last else b""
        self._transport.write(b"%x\r\n%b\r\n%b" % (len(event), event, end))
        if not last:
            self._later(due + GAP_S, written, total)


async def serve() -> None:
    log: dict[str, list[int]] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(log), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    uvloop.run(serve())
