"""Sockets that are read together, against a server in the same loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from tests.wire.fake_transport import NoteSink

from twolane.clock import MS, now_ns
from twolane.wire import drain
from twolane.wire.drain import Drain
from twolane.wire.http1 import ClientConnection

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Sink(NoteSink):
    def __init__(self) -> None:
        super().__init__()
        self.over = asyncio.Event()

    def on_end(self, stamp_ns: int) -> None:
        super().on_end(stamp_ns)
        self.over.set()

    def on_lost(self, error: Exception | None, stamp_ns: int) -> None:
        super().on_lost(error, stamp_ns)
        self.over.set()


class Server(asyncio.Protocol):
    """Answers each request with what `answer` writes, once `size` bytes are there."""

    def __init__(self, answer: Callable[[asyncio.Transport], None], size: int) -> None:
        self.answer, self.size, self.got = answer, size, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.got += len(data)
        if self.got >= self.size:
            self.got = 0
            self.answer(self.transport)


@asynccontextmanager
async def served(
    answer: Callable[[asyncio.Transport], None], size: int = 1, *, rests: bool = False
) -> AsyncIterator[tuple[Drain, Callable[[], "asyncio.Future[ClientConnection]"]]]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(answer, size), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reads = Drain(rests=rests)
    try:
        yield reads, lambda: asyncio.ensure_future(reads.connect("127.0.0.1", port))
    finally:
        reads.close()
        server.close()
        await asyncio.sleep(0)


def whole(transport: asyncio.Transport) -> None:
    transport.write(HEAD)
    for letter in b"abc":
        transport.write(b"1\r\n%c\r\n" % letter)
    transport.write(b"0\r\n\r\n")


@pytest.mark.parametrize("rests", [False, True])
async def test_answers_of_many_connections_are_read_and_stamped(
    rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "THICK", 0)
    monkeypatch.setattr(drain, "JUDGED_NS", 0)
    async with served(whole, rests=rests) as (_, connect):
        for _ in range(2):
            before = now_ns()
            sinks = [Sink() for _ in range(20)]
            for sink in sinks:
                (await connect()).send(b"GET / HTTP/1.1\r\n\r\n", b"", sink)
            for sink in sinks:
                await sink.over.wait()
            for sink in sinks:
                assert (sink.body, sink.ends) == (b"abc", ["end"])
                assert sink.stamps == sorted(sink.stamps)
                assert before < sink.stamps[0]
                assert sink.stamps[-1] < now_ns()


@pytest.mark.parametrize("rests", [False, True])
async def test_an_answer_whose_reader_raises_does_not_stop_the_others(
    rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Sink):
        def on_end(self, stamp_ns: int) -> None:
            super().on_end(stamp_ns)
            raise ValueError("a sink's own fault")

    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, c: said.append(str(c["exception"])))
    monkeypatch.setattr(drain, "THICK", 0)
    monkeypatch.setattr(drain, "JUDGED_NS", 0)
    async with served(whole, rests=rests) as (_, connect):
        for kind in (Sink, Broken, Sink, Broken, Sink):
            sink = kind()
            (await connect()).send(b"GET / HTTP/1.1\r\n\r\n", b"", sink)
            await sink.over.wait()
            assert sink.body == b"abc"
    assert said == ["a sink's own fault"] * 2


async def test_a_connection_carries_one_request_after_another_and_large_ones() -> None:
    body = b"x" * 8_000_000
    async with served(whole, len(body) + 3) as (_, connect):
        connection = await connect()
        assert connection.local_port
        for _ in range(2):
            sink = Sink()
            connection.send(b"abc", body, sink)
            await sink.over.wait()
            assert (sink.body, connection.reusable) == (b"abc", True)


async def test_a_late_reader_does_not_make_a_late_stamp() -> None:
    """The stamp is when the bytes came, whatever kept this process from reading them."""
    wrote: list[int] = []

    def write(transport: asyncio.Transport) -> None:
        whole(transport)
        wrote.append(now_ns())
        while now_ns() < wrote[-1] + 5 * MS:  # nobody reads meanwhile
            pass

    async with served(write) as (_, connect):
        connection = await connect()
        for _ in range(50):  # the kernel begins to stamp some time after it was asked to
            sink = Sink()
            connection.send(b"x", b"", sink)
            await sink.over.wait()
            if max(sink.stamps) < wrote[-1] + 5 * MS:
                break
        else:
            pytest.fail("no read was stamped before it was read")


async def test_a_server_that_hangs_up_loses_the_answer() -> None:
    async with served(lambda transport: transport.abort()) as (_, connect):
        sink = Sink()
        (await connect()).send(b"x", b"", sink)
        await sink.over.wait()
    assert sink.ends == ["lost"]


async def test_after_abort_the_sink_hears_nothing() -> None:
    async with served(whole) as (_, connect):
        sink, other = Sink(), Sink()
        connection = await connect()
        connection.send(b"x", b"", sink)
        connection.abort()
        connection.abort()
        (await connect()).send(b"x", b"", other)
        await other.over.wait()
    assert sink.ends == []
    assert not connection.reusable


async def test_reading_can_be_paused_and_a_half_closed() -> None:
    async with served(whole) as (_, connect):
        sink, other = Sink(), Sink()
        connection = await connect()
        connection.pause_reading()
        connection.send(b"x", b"", sink)
        (await connect()).send(b"x", b"", other)
        await other.over.wait()
        assert sink.status == 0
        assert connection.ask_to_stop()
        connection.resume_reading()
        await sink.over.wait()
    assert sink.body == b"abc"


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(whole, 1), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()

    async def both(*_: object, **__: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, ("127.0.0.1", 1)), (*kind, address)]

    monkeypatch.setattr(loop, "getaddrinfo", both)
    sink, reads = Sink(), Drain()
    (await reads.connect("localhost", address[1])).send(b"x", b"", sink)
    await sink.over.wait()
    reads.close()
    server.close()
    assert sink.body == b"abc"


async def test_nobody_there_is_an_error() -> None:
    reads = Drain()
    with pytest.raises(ConnectionRefusedError):
        await reads.connect("127.0.0.1", 1)
    reads.close()


def test_the_clocks_are_paired_closely() -> None:
    assert abs(drain.from_epoch() - drain.from_epoch()) < MS
