"""One request to one engine: connect, send, hear the answer.

Rules of this file: whoever asks owns the connection until the answer has ended, and every way out
that is not the end aborts it, which is how the engine learns that nobody waits any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from twolane import clock
from twolane.proxy.client import Reply
from twolane.proxy.ledger import EngineAnswer, Tail, read_answer
from twolane.proxy.opening import Opening
from twolane.proxy.splice import SplicedConnection
from twolane.wire.http1 import ClientConnection, Headers, Payload, WireError
from twolane.wire.pool import Pool

MAX_ANSWER_BYTES = 256 * 1024 * 1024  # an answer that is not streamed is held whole

Failure = Literal["connect", "lost", "timeout", "size"]


class LegError(Exception):
    """An engine did not answer. `kind` connect means that it cannot have seen the request;
    `refused` that nobody is there, where otherwise it may be we who are slow."""

    def __init__(self, kind: Failure, why: str, *, refused: bool = False) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind
        self.refused = refused


@dataclass
class Answer:
    """A complete answer and when it was complete."""

    status: int = 0
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    head_ns: int = 0
    end_ns: int = 0

    @property
    def good(self) -> bool:
        """Whether the head says so. No answer to a request of a proxy's has another status than
        200, and those that forbid a body, or speak of a part, would be framed wrongly for a client.
        """
        return self.status == 200

    def header(self, name: bytes) -> str | None:
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return None


class Collector:
    """A sink that holds the whole answer. `on_answer` is called before anybody can be cancelled."""

    def __init__(self, on_answer: Callable[[Answer], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter: asyncio.Future[None] | None = None
        self._on_answer = on_answer
        self.answer = Answer()  # what there is of it
        self._pieces: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: Headers) -> None:
        self.answer.status, self.answer.headers = status, headers
        self.answer.head_ns = clock.now_ns()

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise LegError("size", f"answer exceeds {MAX_ANSWER_BYTES} bytes")
        self._pieces.append(data)

    def on_end(self, stamp_ns: int) -> None:
        self.answer.body = b"".join(self._pieces)
        self.answer.end_ns = stamp_ns
        try:
            if self._on_answer is not None:
                self._on_answer(self.answer)
        except Exception as defect:  # raised here, it would only close the connection
            if not self.done.done():
                self.done.set_exception(defect)
        if not self.done.done():
            self.done.set_result(self.answer)
        self._wake()

    def on_lost(self, error: Exception | None, stamp_ns: int) -> None:
        if not self.done.done():
            self.done.set_exception(lost(error))
            self.done.exception()  # seen: whoever waited may have left
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> Answer:
        """The answer. Raises LegError; `timeout` where it took longer. Whoever waits may leave, and
        the answer be waited for by somebody else: `done` is not cancelled with it."""
        if not self.done.done():
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        if not self.done.done():
            raise LegError("timeout", f"no answer within {timeout_s:g} s")
        return self.done.result()


class Relay:
    """A sink that hands an answer on as it comes.

    Event streams go to the client read by read, and so does whatever is not JSON of an engine that
    was not asked to generate. The rest is held whole, because it must be looked at before a client
    may see it, and so is the beginning of a generated stream, until there is a token: an engine
    that fails before it can still be answered for with a status.

    `on_taken` is called when the engine has shown that it works on the request (a choice in its
    answer), `on_first` at its first body bytes.
    """

    def __init__(
        self,
        reply: Reply,
        on_taken: Callable[[], None],
        on_first: Callable[[], None],
        *,
        generates: bool = True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()
        self._begun = False
        self.tail = Tail()
        self.answer = Answer()
        self.streams = False
        self.taken = False
        self.opening: Opening | None = None  # of a generated stream, until its first token
        self.read: EngineAnswer | None = None  # of an answer that is not streamed
        self.first_ns: int | None = None
        self.asked_ns = self.last_ns = clock.now_ns()
        self._reply = reply
        self._on_taken = on_taken
        self._on_first = on_first
        self.generates = generates
        # Called in the read that ends a stream. Given the relay: one that it held would make a
        # circle, which lives until the collector comes.
        self.on_stream_end: Callable[[Relay], None] | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._connection: SplicedConnection | None = None

    def follow(self, connection: ClientConnection) -> None:
        """The answer comes over `connection`, which the request has been written to."""
        assert isinstance(connection, SplicedConnection)  # as an engine's pool makes them
        self._connection = connection
        connection.follow(self)

    def leave(self) -> None:
        """The connection is somebody else's now."""
        if self._connection is not None:
            self._connection.part()
            self._connection = None

    def on_head(self, status: int, headers: Headers) -> None:
        self.last_ns = clock.now_ns()
        self._begun = True
        self.answer.status, self.answer.headers = status, headers
        kind = self.answer.header(b"content-type") or ""
        self.streams = self.good and (
            kind.startswith("text/event-stream")
            or not (self.generates or kind.startswith("application/json"))
        )
        if self.streams and self.generates:
            self.opening = Opening()
        elif self.streams:
            self._start()

    @property
    def good(self) -> bool:
        """Whether the head says so."""
        return self.answer.good

    @property
    def told_error(self) -> bool:
        """Whether the client has heard of an error in the engine's own words, in a stream."""
        return self._reply.started and self.opening is not None and self.opening.error is not None

    @property
    def serves(self) -> bool:
        """Whether this is a stream for the client to have, to its end."""
        return self.streams and (self.taken or self.told_error or not self.generates)

    def _start(self) -> None:
        """Head to the client, and what was held back."""
        if not self._reply.started:
            self._reply.start(self.answer.status, passable(self.answer.headers))
        if self._pieces:
            self._pass(b"".join(self._pieces))
            self._pieces.clear()

    def _pass(self, data: bytes) -> None:
        self._reply.write(data)
        self.tail.add(data)

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        self.last_ns = stamp_ns
        if self.first_ns is None:
            self.first_ns = stamp_ns
            self._on_first()
        if self.opening is not None:
            self._open(self.opening, data)
        elif self.streams:
            self._pass(data)
        else:
            self._hold(data)

    def _open(self, opening: Opening, data: bytes) -> None:
        self._hold(data)
        opening.feed(data)
        if opening.taken:
            self.opening = None
            self._start()
            self._take()
            self._splice()
        elif self._reply.started or (opening.kept_alive and opening.error is None):
            self._start()

    def _take(self) -> None:
        self.taken = True
        self._on_taken()

    def _splice(self) -> None:
        onward = self._reply.raw()
        if onward is not None and self._connection is not None:
            self._connection.splice(onward)

    def on_chunks(self, data: bytes) -> None:
        """What went to the client past the parser."""
        self.tail.add(data, framed=True)

    def on_read(self) -> None:
        """All that one read brought goes to the client at once."""
        self._reply.flush()

    def _hold(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise LegError("size", f"answer exceeds {MAX_ANSWER_BYTES} bytes")
        self._pieces.append(data)

    def on_end(self, stamp_ns: int) -> None:
        self.answer.body = b"".join(self._pieces)
        self.answer.end_ns = stamp_ns
        try:
            if self.good and not self.streams:
                self._read()
            elif self.serves and self.on_stream_end is not None:
                self.on_stream_end(self)
        except Exception as defect:  # as in Collector
            if not self.done.done():
                self.done.set_exception(defect)
        if not self.done.done():
            self.done.set_result(None)

    def _read(self) -> None:
        self.read = read_answer(self.answer.body)
        if self.read is not None and self.read.has_choice:
            self._take()

    def on_lost(self, error: Exception | None, stamp_ns: int) -> None:
        if not self.done.done():
            self.done.set_exception(lost(error))

    def _quiet_s(self) -> float:
        passed_ns = 0 if self._connection is None else self._connection.passed_ns
        return (clock.now_ns() - max(self.last_ns, passed_ns)) / clock.NS

    def _waited_s(self) -> float:
        return (clock.now_ns() - self.asked_ns) / clock.NS

    @property
    def _speaks(self) -> bool:
        """Whether the engine has more than announced an answer, so that it should go on."""
        return self._begun and self.opening is None

    @property
    def _flows(self) -> bool:
        """Whether the answer itself goes to the client as it comes: comments are no part of it."""
        return self.streams and self.opening is None

    async def watch(self, answer_s: float, idle_s: float) -> None:
        """Wait for the end. Raises LegError, also where nothing can be handed on `answer_s` after
        the dispatch, whatever has come till then: no first token of a stream, no whole answer of
        one that is held. From the head on, or a stream's first token, also for silence longer than
        `idle_s`. Neither where it is the client who does not read."""
        self._alarm(min(answer_s, idle_s), answer_s, idle_s)
        try:
            await self.done
        finally:
            self._timer.cancel()

    def _alarm(self, in_s: float, answer_s: float, idle_s: float) -> None:
        self._timer = self._loop.call_later(in_s, self._check, answer_s, idle_s)

    def _check(self, answer_s: float, idle_s: float) -> None:
        """One timer for the whole answer, set anew as long as something comes."""
        if self.done.done():
            return
        paused = self._reply.paused
        quiet_s = 0.0 if paused or not self._speaks else self._quiet_s()
        waited_s = 0.0 if paused or self._flows else self._waited_s()
        if waited_s >= answer_s:
            self.done.set_exception(LegError("timeout", f"no answer within {answer_s:g} s"))
        elif quiet_s >= idle_s:
            self.done.set_exception(LegError("timeout", f"silent for {quiet_s:.1f} s"))
        else:
            self._alarm(min(answer_s - waited_s, idle_s - quiet_s), answer_s, idle_s)


def lost(error: Exception | None) -> LegError:
    if isinstance(error, LegError):
        return error
    return LegError("lost", str(error) if error else "connection closed before the end")


_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"content-length", b"server"),
    )
)


def passable(headers: Headers) -> Headers:
    """The headers of an engine's answer that a client gets: all but those of the connection."""
    return [(name, value) for name, value in headers if name not in _HOP]


async def open_leg(pool: Pool, timeout_s: float) -> ClientConnection:
    """A connection to an engine. Raises LegError of kind connect."""
    idle = pool.take()  # a timer for what is at hand would cost more than it
    if idle is not None:
        return idle
    try:
        async with asyncio.timeout(timeout_s):
            return await pool.acquire()
    except TimeoutError:
        raise LegError("connect", f"no connection within {timeout_s:g} s") from None
    except OSError as error:
        raise LegError("connect", str(error), refused=True) from None


async def ask(
    pool: Pool, head: bytes, body: Payload, *, connect_s: float, answer_s: float
) -> Answer:
    """One whole exchange with an engine. Raises LegError."""
    connection = await open_leg(pool, connect_s)
    answer = await hear(connection, head, body, answer_s)
    pool.release(connection)
    return answer


async def hear(
    connection: ClientConnection,
    head: bytes,
    body: Payload,
    answer_s: float,
    sink: Collector | None = None,
) -> Answer:
    """One whole exchange over a connection, which whatever is no answer ends. Raises LegError.
    `sink` is for whoever must know what there was of an answer even then."""
    sink = sink or Collector()
    try:
        connection.send(head, body, sink)
        return await sink.wait(answer_s)
    except WireError as error:
        raise LegError("connect", str(error)) from None
    except BaseException:
        connection.abort()
        raise
