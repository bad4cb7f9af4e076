"""The client's side: one connection, its requests in order, one reply at a time.

Rules of this file: knows HTTP and nothing of engines. A client that closes its connection has its
task cancelled at once; a client that reads slowly pauses the engine's connection, not our memory,
and one that takes nothing at all is not waited for without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import sys
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar, cast

from twolane import clock
from twolane.proxy.refusal import RefusalError
from twolane.wire.http1 import Headers
from twolane.wire.requests import BadRequestError, Limits, Request, RequestParser

T = TypeVar("T")

_JSON = (b"content-type", b"application/json")
# libuv reads up to 32 times before it turns to anybody else: 8 MB, some 8 ms.
_READ_IN_A_TURN = 512 * 1024
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_LOOKS = 4  # at an idle connection, in the time that it may be idle
_DRAIN_IDLE_S = 10.0  # for who takes nothing while the proxy waits for its end
_LINGER_S = 10.0  # for a client that is refused while it sends


class Pausable(Protocol):
    def part(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Reply:
    """The answer to one request: either `whole`, or `start`, `write`* and `end`.

    What is written leaves at `flush` and at the end, in one piece: handing bytes to the kernel
    costs more than all else that is done with them, and the client is woken once instead of for
    the head, each event and the end.
    """

    def __init__(self, transport: asyncio.Transport, request: Request, keep_alive: bool) -> None:
        self._transport = transport
        self._unsent: list[bytes] = []
        self._chunked = False
        self._http10 = request.http10
        self._bodiless = request.method == "HEAD"
        self._upstream: Pausable | None = None
        self._paused = False
        self.keep_alive = keep_alive
        self.lingers = False  # closes our half only: the client may still be sending
        self.status = 0
        self.ended = False

    @property
    def started(self) -> bool:
        return self.status != 0

    @property
    def paused(self) -> bool:
        """Whether the client reads slower than the engine writes."""
        return self._paused

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Head and body at once."""
        self.status = status
        self._unsent.append(self._head(status, [*headers, (b"content-length", b"%d" % len(body))]))
        if not self._bodiless:
            self._unsent.append(body)
        self._finish()

    def refuse(self, refusal: RefusalError) -> None:
        """An error in OpenAI's shape; closes nothing that the request did not close itself."""
        headers = [_JSON]
        if refusal.retry_after_s is not None:
            headers.append((b"retry-after", str(refusal.retry_after_s).encode("latin-1")))
        self.whole(refusal.status, headers, refusal.body)

    def start(self, status: int, headers: Headers) -> None:
        """Head of an answer of unknown length."""
        self.status = status
        self._chunked = not self._http10
        if self._chunked:
            headers = [*headers, (b"transfer-encoding", b"chunked")]
        else:
            self.keep_alive = False
        self._unsent.append(self._head(status, headers))

    def write(self, data: bytes) -> None:
        if not self._bodiless:
            self._unsent.append(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def flush(self) -> None:
        """Send what was written. A client that has left is told nothing."""
        if self._unsent and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def raw(self) -> Callable[[bytes], None] | None:
        """What takes whole chunks with their framing, once all is flushed; None where this answer
        is not chunked."""
        return self._transport.write if self._chunked and not self._bodiless else None

    def end(self) -> None:
        if self._chunked and not self._bodiless:
            self._unsent.append(b"0\r\n\r\n")
        self._finish()

    def break_off(self) -> None:
        """Close without the end marker, so that nobody takes the answer for complete."""
        self.keep_alive = False
        self._finish()

    def _finish(self) -> None:
        self.flush()
        self.ended = True
        self.attach(None)
        if not self.keep_alive and self.lingers:
            self._transport.write_eof()
        elif not self.keep_alive:
            self._transport.close()

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [b"HTTP/1.1 %d %b" % (status, _phrase(status))]
        lines += [b"%b: %b" % header for header in headers]
        lines.append(b"connection: keep-alive" if self.keep_alive else b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # ------------------------------------------------------------------------- back-pressure

    def attach(self, upstream: Pausable | None) -> None:
        """From now on a slow client pauses `upstream`."""
        self._upstream = upstream
        if upstream is not None and self._paused:
            upstream.pause_reading()

    def pause(self) -> None:
        self._paused = True
        if self._upstream is not None:
            self._upstream.pause_reading()

    def gone(self) -> None:
        """The client has left: nothing may be written past us any more."""
        if self._upstream is not None:
            self._upstream.part()

    def resume(self) -> None:
        self._paused = False
        if self._upstream is not None:
            self._upstream.resume_reading()


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("latin-1")
    except ValueError:
        return b"Unknown"


Handler = Callable[[Request, Reply, int], Awaitable[None]]


class Members(Generic[T]):
    """Something that comes and goes; `none` is set while there is nothing."""

    def __init__(self) -> None:
        self._present: set[T] = set()
        self.none = asyncio.Event()
        self.none.set()

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._present))

    def add(self, one: T) -> None:
        self._present.add(one)
        self.none.clear()

    def discard(self, one: T) -> None:
        self._present.discard(one)
        if not self._present:
            self.none.set()


class ClientSide(asyncio.Protocol):
    """One accepted connection. `handler` serves one request at a time, in order."""

    def __init__(
        self,
        handler: Handler,
        limits: Limits,
        idle_s: float,
        members: Members[ClientSide],
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._idle_s = idle_s
        self._members = members
        self._parser = RequestParser(limits)
        self._waiting: deque[tuple[Request, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._reply: Reply | None = None
        self._last = False  # no request after the ones we have
        self._refusal: BadRequestError | None = None
        self._paused = False
        self._active_ns = 0
        self._left = 0  # bytes that the client had not taken at the last look
        self._moved_ns = 0  # when it last was seen to take some, or had none to take
        self._unread = 0  # bytes since the other connections had their turn
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------------- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._members.add(self)
        self._active_ns = self._moved_ns = clock.now_ns()
        self._arm(self._idle_s / _LOOKS, self._look)

    def data_received(self, data: bytes) -> None:
        self._active_ns = clock.now_ns()
        self._unread += len(data)
        if self._unread >= _READ_IN_A_TURN:
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)
        if self._last:
            return
        try:
            requests = self._parser.feed(data)
        except BadRequestError as error:
            self._last = True
            self._refusal = error
            requests = error.requests
        self._waiting.extend((request, self._active_ns) for request in requests)
        if len(self._waiting) > self._limits.pipelined:
            self._last = True
        self._next()

    def _read_on(self) -> None:
        self._unread = 0
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._members.discard(self)
        self._waiting.clear()
        self._last = True
        if self._timer is not None:
            self._timer.cancel()
        if self._reply is not None:
            self._reply.gone()
        if self._task is not None and not (self._reply is not None and self._reply.ended):
            self._task.cancel()

    def pause_writing(self) -> None:
        self._paused = True
        if self._reply is not None:
            self._reply.pause()

    def resume_writing(self) -> None:
        self._paused = False
        self._left = 0
        if self._reply is not None:
            self._reply.resume()
        self._next()

    # --------------------------------------------------------------------------- the requests

    def _next(self) -> None:
        """The next request, once the client has taken most of the answers before it."""
        if self._task is not None or self._paused or self._transport.is_closing():
            return
        if self._waiting:
            self._serve(*self._waiting.popleft())
        elif self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            self._answer_refusal(refusal)
        elif self._last:
            self._transport.close()
        elif self._parser.take_continue():
            self._transport.write(_CONTINUE)

    def _serve(self, request: Request, received_ns: int) -> None:
        more = bool(self._waiting) or self._refusal is not None or not self._last
        self._reply = Reply(self._transport, request, request.keep_alive and more)
        self._left = 0
        self._task = self._loop.create_task(self._run(request, self._reply, received_ns))

    async def _run(self, request: Request, reply: Reply, received_ns: int) -> None:
        try:
            await self._handler(request, reply, received_ns)
        finally:
            self._task = None
            self._reply = None
            self._active_ns = clock.now_ns()
            if not reply.ended:
                self._transport.abort()  # a defect or a cancelled request: nothing is complete
        self._next()

    def _answer_refusal(self, error: BadRequestError) -> None:
        """To a client that may still send what is refused: closed before it has, it would see its
        connection reset, and not the answer."""
        request = Request("POST", "", [], keep_alive=False, http10=False)
        reply = Reply(self._transport, request, keep_alive=False)
        reply.lingers = True
        reply.refuse(RefusalError(error.status, error.message))
        self._arm(_LINGER_S, self._transport.abort)

    def drain(self) -> None:
        """Serve what has begun and close then."""
        self._last = True
        nothing_more = not self._waiting and self._refusal is None
        if self._reply is not None and not self._reply.started and nothing_more:
            self._reply.keep_alive = False
        self._idle_s = min(self._idle_s, _DRAIN_IDLE_S)
        self._arm(self._idle_s / _LOOKS, self._look)
        self._next()

    def stop(self) -> None:
        """Cancel what runs and close."""
        self._transport.abort()

    def _arm(self, in_s: float, what: Callable[[], None]) -> None:
        """One timer, for the last that was set."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(in_s, what)

    def _look(self) -> None:
        """Close what is idle, and abort what has taken nothing of what waits for it as long."""
        now_ns = clock.now_ns()
        left = self._not_taken()
        if not 0 < self._left <= left:
            self._moved_ns = now_ns
        self._left = left
        if now_ns - self._moved_ns >= self._idle_s * clock.NS:
            self._transport.abort()
            return
        if self._task is None and now_ns - self._active_ns >= self._idle_s * clock.NS:
            self._transport.close()
        self._arm(self._idle_s / _LOOKS, self._look)

    def _not_taken(self) -> int:
        """Bytes that wait for the client and get no more meanwhile, so that they tell whether it
        reads; with the kernel's, of which a slow reader takes long before there is room again."""
        waiting = self._transport.get_write_buffer_size()
        if not waiting or (self._task is not None and not self._paused):
            return 0
        socket = self._transport.get_extra_info("socket")
        if socket is not None:
            with contextlib.suppress(OSError, ValueError):  # aborted a moment ago
                unsent = fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4))
                waiting += int.from_bytes(unsent, sys.byteorder)
        return waiting
