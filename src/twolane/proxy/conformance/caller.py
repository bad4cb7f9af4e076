"""A client that notes what it saw, and that can leave.

Rules of this file: it judges nothing. One connection a request, so that no router's keep-alive
decides another row.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httptools

from twolane.wire.http1 import ClientConnection, Headers, connect, request_head
from twolane.wire.sse import SseParser


@dataclass
class Got:
    """One answer as a client saw it. `complete` is False where it broke off."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    left: bool = False
    comments: list[bytes] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def events(self) -> list[bytes]:
        return SseParser(self.comments.append).feed(self.body)

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """Decoded events, the end marker left out. Raises ValueError where one is not JSON."""
        return [json.loads(event) for event in self.events if event != b"[DONE]"]

    @property
    def texts(self) -> list[str]:
        """The generated text of every choice, by index. Raises where there is none."""
        parts: dict[int, str] = {}
        for chunk in self.chunks if self.streamed else [self.json]:
            for choice in chunk.get("choices") or ():
                index = choice.get("index", 0)
                parts[index] = parts.get(index, "") + _text(choice)
        return [parts[index] for index in sorted(parts)]

    @property
    def text(self) -> str:
        return self.texts[0]


def _text(choice: dict[str, Any]) -> str:
    for part in ("message", "delta"):
        if part in choice:
            return str(choice[part].get("content") or "")
    return str(choice["text"])


class Call:
    """One request under way: a sink with events to wait for."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.got = Got()
        self.some = asyncio.Event()
        self.ended = asyncio.Event()
        self._pieces: list[bytes] = []

    def on_head(self, status: int, headers: Headers) -> None:
        self.got.status = status
        self.got.headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers}

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        self._pieces.append(data)
        self.some.set()

    def on_end(self, stamp_ns: int) -> None:
        self.got.complete = True
        self._end()

    def on_lost(self, error: Exception | None, stamp_ns: int) -> None:
        self._end()

    def _end(self) -> None:
        self.got.body = b"".join(self._pieces)
        self.some.set()
        self.ended.set()

    def leave(self) -> None:
        """Close at once; nothing more is heard."""
        if not self.ended.is_set():
            self.got.left = True
            self._end()
        self.connection.abort()

    async def answer(self, patience_s: float) -> Got:
        """What was seen when the answer ended, or after `patience_s`, when the client leaves."""
        try:
            async with asyncio.timeout(patience_s):
                await self.ended.wait()
        except TimeoutError:
            pass
        self.leave()
        return self.got


async def call(
    port: int, body: object, path: str = "/v1/completions", headers: dict[str, str] | None = None
) -> Call:
    """Send one request. Raises OSError where nobody listens."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    one = Call(await connect("127.0.0.1", port))
    named = {"content-type": "application/json"} | (headers or {})
    one.connection.send(
        request_head("POST", path, "conformance", named.items(), len(raw)), raw, one
    )
    return one


async def exchange_raw(port: int, data: bytes, *, each_byte: bool, patience_s: float) -> bytes:
    """What comes back for bytes, until the peer closes or is silent for `patience_s`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = bytearray()
    try:
        for piece in (data[i : i + 1] for i in range(len(data))) if each_byte else (data,):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        while True:
            async with asyncio.timeout(patience_s):
                piece = await reader.read(65536)
            if not piece:
                break
            answer += piece
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return bytes(answer)


class _Splitter:
    """httptools' callbacks: answer after answer."""

    def __init__(self) -> None:
        self.answers: list[Got] = []
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self.answers.append(Got())

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answers[-1].headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answers[-1].status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.answers[-1].body += data

    def on_message_complete(self) -> None:
        self.answers[-1].complete = True


def split_answers(raw: bytes) -> list[Got]:
    """The answers that came one after the other over one connection."""
    splitter = _Splitter()
    try:
        splitter.parser.feed_data(raw)
    except httptools.HttpParserError:
        splitter.answers.append(Got())  # what follows is no HTTP
    return splitter.answers
