"""The client half of HTTP/1.1: one request at a time over one connection.

Rules of this file: time is stamped once per socket read, before any parsing. Bodies pass as they
come, nothing is collected. One answer ends before the next request may begin, and a connection
on which anything unexpected happened (surplus bytes, an unfinished answer, an error) is never
used again: a reused connection that carried a stray byte would give one request another's answer.

A sink hears of its answer in this order: `on_head`, `on_body`*, then exactly one of `on_end` and
`on_lost`. After `abort` it hears nothing more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import httptools

from twolane import clock

MAX_HEADER_BYTES = 64 * 1024  # uvicorn's and nginx's order of size; engines send under 1 KiB

SLICE = 256 * 1024  # bytes of a body written in one turn of the loop, some 0.1 ms

NO_SIZE = 1 << 62  # of what is no plain chunk: no read is as long
_SIZES = {b"%x" % size: size for size in range(1, 4096)}  # of chunks that hold a token or few

Headers = list[tuple[bytes, bytes]]
_IN_ONE_PIECE = (bytes, bytearray, memoryview)
Payload = bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview]


class WireError(Exception):
    """The peer broke HTTP/1.1, or the connection broke the answer; the text says which."""


class ResponseSink(Protocol):
    def on_head(self, status: int, headers: Headers) -> None:
        """Status line and headers are in; header names are lower-case."""

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        """Body bytes, de-chunked; `stamp_ns` is when their socket read returned."""

    def on_end(self, stamp_ns: int) -> None:
        """The answer is complete and the connection is free."""

    def on_lost(self, error: Exception | None, stamp_ns: int) -> None:
        """The connection is gone before the end."""


def request_head(
    method: str, path: str, host: str, headers: Iterable[tuple[str, str]], content_length: int
) -> bytes:
    """The bytes of a request's head. `headers` must not name Host or Content-Length.

    Raises ValueError for a line break or NUL in any part, which would smuggle a header.
    """
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if content_length or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {content_length}")
    head = "\r\n".join(lines)
    between = len(lines) - 1
    if head.count("\r") != between or head.count("\n") != between or "\0" in head:
        raise ValueError("a request head may not hold CR, LF or NUL inside a line")
    return (head + "\r\n\r\n").encode("latin-1")


def payload_size(body: Payload) -> int:
    """Bytes in a body, whole or in pieces."""
    if isinstance(body, _IN_ONE_PIECE):
        return len(body)
    return sum(len(piece) for piece in body)


class ClientConnection(asyncio.Protocol):
    """One connection to a server. `reusable` says whether `send` may be called."""

    def __init__(self) -> None:
        self.reusable = False
        self.local_port = 0
        self.aborted_by_us = False
        self.cut_off = False  # aborted before the last request had left
        self._transport: asyncio.Transport | None = None
        self._sink: ResponseSink | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._stamp_ns = 0
        self._rest: deque[memoryview] = deque()  # of the body that is being sent
        self._write_paused = False
        self._reset(expects_body=True)

    def _reset(self, expects_body: bool) -> None:
        self._expects_body = expects_body
        self._headers: Headers = []
        self._header_bytes = 0
        self._in_body = False
        self._until_close = False
        self._complete = False
        self._keep_alive = False
        self._surplus = False
        self._started = False
        self._chunk_ended = False
        self._between_chunks = False

    # ------------------------------------------------------------------------------ the user

    def send(self, head: bytes, body: Payload, sink: ResponseSink) -> int:
        """Send one request; its answer goes to `sink`. Returns the stamp of the first write, ns.

        A large body leaves slice by slice, a slice a turn of the loop, and must not be changed
        meanwhile. Raises WireError if the connection is busy or gone.
        """
        if not self.reusable or self._transport is None:
            raise WireError("connection is not free for a request")
        self.reusable = False
        self._sink = sink
        self._reset(expects_body=not head.startswith(b"HEAD "))
        pieces = (body,) if isinstance(body, _IN_ONE_PIECE) else body
        stamp_ns = clock.now_ns()
        if payload_size(body) <= SLICE:
            self._transport.writelines((head, *pieces))
        else:
            self._transport.write(head)
            self._rest.extend(memoryview(piece) for piece in pieces)
            self._pump()
        return stamp_ns

    def _pump(self) -> None:
        """Write the next slice; the one after it in the next turn, or when there is room."""
        if not self._rest or self._write_paused or self._transport is None:
            return
        room = SLICE
        while self._rest and room:
            piece = self._rest.popleft()
            self._transport.write(piece[:room])
            if len(piece) > room:
                self._rest.appendleft(piece[room:])
            room = max(0, room - len(piece))
        if self._rest:
            asyncio.get_running_loop().call_soon(self._pump)

    @property
    def _unsent(self) -> bool:
        waits = self._transport is not None and self._transport.get_write_buffer_size() > 0
        return waits or bool(self._rest)

    @property
    def sent(self) -> bool:
        """Whether the present request has wholly left, and its answer may still come."""
        closing = self._transport is None or self._transport.is_closing()
        return not (closing or self._unsent)

    @property
    def answer_started(self) -> bool:
        """Whether any byte of the present answer has arrived."""
        return self._started

    def abort(self) -> None:
        """Close at once; the sink hears nothing more. Harmless twice."""
        self._sink = None
        self.reusable = False
        if self._transport is not None:
            if not self._transport.is_closing():
                self.aborted_by_us = True
                self.cut_off = self._unsent
            self._transport.abort()
        self._rest.clear()

    def ask_to_stop(self) -> bool:
        """Close our half only, so that the server stops but what it has already answered still
        arrives. False where the request has not wholly left: then only `abort` is safe."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._unsent:
            return False
        transport.write_eof()
        return True

    def part(self) -> None:
        """Nobody else reads this connection's answer any more."""

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ------------------------------------------------------------------------- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("sockname")
        self.local_port = name[1] if isinstance(name, tuple) else 0
        self.reusable = True

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._pump()

    def data_received(self, data: bytes) -> None:
        self.received(data, clock.now_ns())

    def received(self, data: bytes, stamp_ns: int) -> None:
        """Take what one socket read returned at `stamp_ns`."""
        self._stamp_ns = stamp_ns
        sink = self._sink
        if sink is None:
            self.abort()  # nobody asked: whatever this is, it must not answer the next request
            return
        if self._between_chunks:
            # Exactly one chunk, as nearly every read of a token stream is: the parser need not
            # see it, since it stands where it stood.
            end = data.find(b"\r\n", 0, 8)
            if len(data) == end + 4 + _SIZES.get(data[:end], NO_SIZE) and data.endswith(b"\r\n"):
                try:
                    sink.on_body(data[end + 2 : -2], stamp_ns)
                except Exception as error:  # as one that is raised inside the parser's callback
                    self._lose(error)
                return
        self._started = True
        if not self._in_body:
            self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._lose(_cause(error))
                return
            self._surplus = True
        self._between_chunks = self._chunk_ended and data.endswith(b"\r\n") and not self._surplus
        if self._complete:
            self._finish()
        elif not self._in_body and self._header_bytes > MAX_HEADER_BYTES:
            self._lose(WireError(f"response headers exceed {MAX_HEADER_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stamp_ns = clock.now_ns()
        self._transport = None
        self.reusable = False
        if self._until_close and exc is None:
            self._finish()
        else:
            self._lose(exc)

    def _finish(self) -> None:
        sink, self._sink = self._sink, None
        closing = self._transport is None or self._transport.is_closing()
        self.reusable = self._keep_alive and not (self._surplus or closing or self._rest)
        if not self.reusable and self._transport is not None:
            self._rest.clear()  # answered before it was asked to the end
            self._transport.abort()
        if sink is not None:
            sink.on_end(self._stamp_ns)

    def _lose(self, error: Exception | None) -> None:
        sink = self._sink
        self.abort()
        if sink is not None:
            sink.on_lost(error, self._stamp_ns)

    # ---------------------------------------------------------------------- httptools' calls

    def on_message_begin(self) -> None:
        self._surplus = self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._surplus or 100 <= status < 200:
            return
        self._in_body = True
        self._until_close = self._expects_body and _runs_until_close(status, self._headers)
        if self._sink is not None:
            self._sink.on_head(status, self._headers)
        if not self._expects_body:
            self._complete = True  # the parser waits for a body that HEAD never gets

    def on_body(self, data: bytes) -> None:
        if self._complete:
            self._surplus = True
        elif self._sink is not None:
            self._sink.on_body(data, self._stamp_ns)

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = self._in_body and not self._complete

    def on_message_complete(self) -> None:
        self._chunk_ended = False
        if self._in_body and not self._surplus:
            self._keep_alive = self._expects_body and self._parser.should_keep_alive()
            self._complete = True
        elif not self._in_body:
            self._headers = []  # an interim answer (100 Continue): the real one follows


def _runs_until_close(status: int, headers: Headers) -> bool:
    if status in (204, 304):
        return False
    names = [name for name, _ in headers]
    return b"content-length" not in names and b"transfer-encoding" not in names


def _cause(error: Exception) -> Exception:
    """What a sink raised inside a callback, or the parser's complaint as ours."""
    if isinstance(error.__context__, Exception):
        return error.__context__
    return WireError(f"not HTTP/1.1: {error}")


async def connect(
    host: str, port: int, kind: type[ClientConnection] = ClientConnection
) -> ClientConnection:
    """Open one connection. Raises OSError where that is refused or impossible."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(kind, host, port)
    return connection
