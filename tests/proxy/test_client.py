"""The client's side alone: bytes in, replies out, over a fake transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.proxy.rig import PATIENCE_S, rig
from tests.wire.fake_transport import FakeTransport

from twolane import clock
from twolane.proxy.client import ClientSide, Members, Reply
from twolane.proxy.refusal import RefusalError
from twolane.wire.requests import Limits, Request

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"


class Side:
    """A client's side whose handler is `serve`, for one connection."""

    def __init__(
        self, serve: Callable[[Request, Reply], None], limits: Limits | None = None
    ) -> None:
        self.served: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0
        self._serve = serve
        self.members: Members[ClientSide] = Members()
        self.side = ClientSide(self._handle, limits or Limits(), 60, self.members)
        self.transport = FakeTransport()
        self.side.connection_made(self.transport)

    async def _handle(self, request: Request, reply: Reply, received_ns: int) -> None:
        self.served.append(request.target)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self._serve(request, reply)

    async def feed(self, data: bytes) -> bytes:
        self.transport.written = b""
        self.side.data_received(data)
        await turns()
        return self.transport.written

    def lose(self) -> None:
        self.side.connection_lost(None)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def whole(request: Request, reply: Reply) -> None:
    reply.whole(200, [], b"ok")


def streamed(request: Request, reply: Reply) -> None:
    reply.start(200, [(b"x", b"y")])
    reply.write(b"hello")
    reply.end()


async def test_whole_replies_keep_the_connection() -> None:
    one = Side(whole)
    back = await one.feed(GET)
    assert back == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok"
    assert await one.feed(GET) == back
    assert not one.transport.is_closing()
    one.lose()
    assert one.members.none.is_set()


async def test_streams_are_chunked_for_1_1_and_until_close_for_1_0() -> None:
    one = Side(streamed)
    back = await one.feed(GET)
    assert back.endswith(b"transfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n"
                         b"5\r\nhello\r\n0\r\n\r\n")  # fmt: skip
    one.lose()
    old = Side(streamed)
    back = await old.feed(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert back.endswith(b"connection: close\r\n\r\nhello")
    assert old.transport.closed
    old.lose()


async def test_what_is_written_leaves_in_one_piece() -> None:
    def stream(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        reply.write(b"first")
        reply.flush()
        reply.write(b"second")
        reply.flush()
        reply.flush()
        reply.write(b"last")
        reply.end()

    one = Side(stream)
    await one.feed(GET)
    head, *rest = one.transport.writes
    assert head.endswith(b"\r\n\r\n5\r\nfirst\r\n")
    assert rest == [b"6\r\nsecond\r\n", b"4\r\nlast\r\n0\r\n\r\n"]
    one.lose()


async def test_head_has_no_body_that_the_next_reply_could_be_taken_for() -> None:
    for serve in (whole, streamed):
        one = Side(serve)
        back = await one.feed(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert back.endswith(b"\r\n\r\n")
        assert back.count(b"\r\n\r\n") == 1
        one.lose()


async def test_close_is_honoured() -> None:
    one = Side(whole)
    back = await one.feed(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + GET)
    assert b"connection: close" in back
    assert one.transport.closed
    assert one.served == ["/"]
    one.lose()


async def test_a_client_that_leaves_cancels_its_request_and_those_behind_it() -> None:
    one = Side(whole)
    one.gate.clear()
    await one.feed(GET + GET)
    one.lose()
    await turns()
    assert (one.cancelled, one.served) == (1, ["/a"])


async def test_a_request_is_served_before_the_fault_behind_it() -> None:
    one = Side(whole)
    back = await one.feed(GET + b"nonsense\r\n\r\n")
    assert [part.split()[0] for part in back.split(b"HTTP/1.1 ")[1:3]] == [b"200", b"400"]
    assert one.served == ["/a"]
    one.lose()


async def test_an_upgrade_is_refused_and_not_served() -> None:
    one = Side(whole)
    upgrade = b"GET /u HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert (await one.feed(GET + upgrade + GET)).count(b"HTTP/1.1 400 ") == 1
    assert one.served == ["/a"]
    one.lose()


async def test_a_fault_is_answered_after_what_came_before_it() -> None:
    one = Side(whole)
    one.gate.clear()
    assert await one.feed(GET) == b""
    assert await one.feed(b"nonsense\r\n\r\n") == b""
    one.gate.set()
    await turns()
    good, _, bad = one.transport.written.partition(b"ok")
    assert good.startswith(b"HTTP/1.1 200 ")
    assert bad.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in bad
    assert (one.transport.eof, one.transport.closed) == (True, False)
    assert await one.feed(b"what was still under way") == b""
    one.lose()


async def test_who_is_refused_while_it_sends_may_send_on_and_read_the_answer() -> None:
    """Closed with its bytes unread, a connection is reset, and the answer lost with it."""
    async with rig(limits=Limits(body=1000)) as r:
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(9):
                writer.write(bytes(1_000_000))
                await writer.drain()
            assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("running", [False, True])
async def test_a_client_that_takes_nothing_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, running: bool, closes: bool
) -> None:
    now = [clock.now_ns()]
    monkeypatch.setattr(clock, "now_ns", lambda: now[0])
    one = Side(whole)
    if running:
        one.gate.clear()
    await one.feed(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") if closes else GET)
    one.side.pause_writing()

    def aborted_at(*unsent: int) -> int | None:
        """The look of those that see so much unsent, 20 s apart, that ends it."""
        for look, size in enumerate(unsent):
            one.transport.unsent = size
            now[0] += 20 * clock.NS
            one.side._look()
            if one.transport.aborted:
                return look
        return None

    assert aborted_at(*range(900, -1, -100)) is None  # it reads, however slowly
    assert aborted_at(500, 500, 500, 400, 401, 401, 401, 401) == 6
    one.lose()
    await turns()
    assert one.cancelled == running


async def test_a_client_that_reads_as_fast_as_it_is_written_to_is_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [clock.now_ns()]
    monkeypatch.setattr(clock, "now_ns", lambda: now[0])
    one = Side(whole)
    one.gate.clear()
    await one.feed(GET)
    one.transport.unsent = 500  # of a stream: always others
    for _ in range(20):
        now[0] += 20 * clock.NS
        one.side._look()
    assert not one.transport.is_closing()
    one.lose()


async def test_who_takes_no_answer_gets_no_other() -> None:
    one = Side(whole)
    one.side.pause_writing()
    assert await one.feed(GET * 3) == b""
    assert one.served == []
    one.side.resume_writing()
    await turns()
    assert one.served == ["/a"] * 3
    one.lose()


async def test_a_drain_waits_less_for_who_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [clock.now_ns()]
    monkeypatch.setattr(clock, "now_ns", lambda: now[0])
    one = Side(whole)
    await one.feed(GET)
    one.side.pause_writing()
    one.transport.unsent = 500
    one.side.drain()
    for _ in range(3):
        one.side._look()
        now[0] += 5 * clock.NS
    one.side._look()
    assert one.transport.aborted
    one.lose()


async def test_too_many_pipelined_requests_are_not_served() -> None:
    one = Side(whole, Limits(pipelined=3))
    one.gate.clear()
    await one.feed(GET * 5)
    await one.feed(GET * 5)
    one.gate.set()
    await turns()
    assert len(one.served) == 5
    assert one.transport.written.count(b"connection: close") == 1
    assert one.transport.closed
    one.lose()


async def test_continue_is_given_to_a_client_that_waits_for_it() -> None:
    one = Side(whole)
    head = b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert await one.feed(head) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await one.feed(b"{}")).startswith(b"HTTP/1.1 200 ")
    answered = await one.feed(GET + head)  # not before the answer in front of it, nor never
    assert [part[:3] for part in answered.split(b"HTTP/1.1 ")] == [b"", b"200", b"100"]
    assert (await one.feed(b"{}")).startswith(b"HTTP/1.1 200 ")
    one.lose()


async def test_a_reply_that_breaks_off_has_no_end() -> None:
    def broken(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        reply.write(b"hello")
        reply.break_off()

    one = Side(broken)
    back = await one.feed(GET)
    assert back.endswith(b"5\r\nhello\r\n")
    assert one.transport.closed
    one.lose()


async def test_a_handler_that_answers_nothing_ends_the_connection() -> None:
    one = Side(lambda request, reply: None)
    assert await one.feed(GET) == b""
    assert one.transport.aborted
    one.lose()


async def test_refusals_are_openai_shaped() -> None:
    one = Side(lambda request, reply: reply.refuse(RefusalError(429, "later")))
    back = await one.feed(GET)
    assert back.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"retry-after: 1\r\n" in back
    assert back.endswith(
        b'{"error":{"message":"later","type":"RateLimitError","param":null,"code":429}}'
    )
    one.lose()


async def test_a_slow_client_pauses_what_is_attached() -> None:
    class Engine:
        reading = True
        parted = False

        def part(self) -> None:
            self.parted = True

        def pause_reading(self) -> None:
            self.reading = False

        def resume_reading(self) -> None:
            self.reading = True

    engine = Engine()
    held: list[Reply] = []

    def start(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        held.append(reply)
        reply.attach(engine)
        one.side.pause_writing()
        assert (engine.reading, reply.paused) == (False, True)
        one.side.resume_writing()
        assert (engine.reading, reply.paused) == (True, False)
        one.side.pause_writing()
        engine.reading = True
        reply.attach(engine)  # attached while it is slow
        assert not engine.reading
        reply.end()

    one = Side(start)
    await one.feed(GET)
    assert held[0].ended
    one.lose()


async def test_a_client_that_is_gone_is_written_to_by_nobody() -> None:
    parted: list[bool] = []

    class Engine:
        def part(self) -> None:
            parted.append(True)

        def pause_reading(self) -> None: ...

        def resume_reading(self) -> None: ...

    one = Side(lambda request, reply: None)
    one.gate.clear()
    await one.feed(GET)
    assert one.side._reply is not None
    one.side._reply.attach(Engine())
    one.lose()
    assert parted == [True]


async def test_draining_serves_what_has_begun_and_closes() -> None:
    one = Side(whole)
    one.gate.clear()
    await one.feed(GET)
    one.side.drain()
    assert not one.transport.is_closing()
    one.gate.set()
    await turns()
    assert b"connection: close" in one.transport.written
    assert one.transport.closed
    one.lose()
    idle = Side(whole)
    idle.side.drain()
    assert idle.transport.closed
    idle.lose()
