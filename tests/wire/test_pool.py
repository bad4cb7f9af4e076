from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.wire.fake_transport import NoteSink

from twolane.wire.http1 import request_head
from twolane.wire.pool import IDLE_NS, Pool

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEAD = request_head("GET", "/", "h", [], 0)


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


class Ending(NoteSink):
    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    def on_end(self, stamp_ns: int) -> None:
        super().on_end(stamp_ns)
        self.ended.set()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            if await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def ask(pool: Pool) -> int:
    connection = await pool.acquire()
    sink = Ending()
    connection.send(HEAD, b"", sink)
    await sink.ended.wait()
    pool.release(connection)
    return connection.local_port


async def test_a_fresh_idle_connection_is_used_again(port: int) -> None:
    pool = Pool("127.0.0.1", port)
    assert await ask(pool) == await ask(pool)
    assert (pool.opened, pool.idle) == (1, 1)
    pool.close()
    assert pool.idle == 0


async def test_an_old_idle_connection_is_not(port: int) -> None:
    now = Clock()
    pool = Pool("127.0.0.1", port, now_ns=now)
    await ask(pool)
    now.now = IDLE_NS
    await ask(pool)
    assert (pool.opened, pool.idle) == (2, 1)
    pool.close()


async def test_there_is_no_limit_on_connections(port: int) -> None:
    pool = Pool("127.0.0.1", port)
    held = [await pool.acquire() for _ in range(300)]
    assert len({c.local_port for c in held}) == 300
    for connection in held:
        pool.release(connection)
    assert pool.idle == 300
    pool.close()


async def test_broken_connections_and_closed_pools_keep_nothing(port: int) -> None:
    pool = Pool("127.0.0.1", port)
    broken = await pool.acquire()
    broken.abort()
    pool.release(broken)
    late = await pool.acquire()
    pool.close()
    pool.release(late)
    assert pool.idle == 0
    assert not late.reusable


async def test_idle_connections_are_closed_without_being_asked_for(port: int) -> None:
    pool = Pool("127.0.0.1", port, idle_ns=2_000_000)
    connection = await pool.acquire()
    pool.release(connection)
    lost = asyncio.Event()
    connection.connection_lost = lambda exc: lost.set()  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        await lost.wait()
    assert not connection.reusable
    assert pool.idle == 0


async def test_a_refusal_is_an_oserror() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    free = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await Pool("127.0.0.1", free).acquire()


async def test_a_connection_is_opened_ahead_where_none_is_at_hand(port: int) -> None:
    pool = Pool("127.0.0.1", port)
    pool.prepare()
    async with asyncio.timeout(5):
        while not pool.idle:
            await asyncio.sleep(0)
    pool.prepare()  # one is at hand
    assert await ask(pool)
    assert (pool.opened, pool.idle) == (1, 1)
    pool.close()
    pool.prepare()
    assert pool.opened == 1
    for _ in range(3):  # the loop closes aborted sockets in its next rounds
        await asyncio.sleep(0)


async def test_a_server_that_refuses_is_not_told_of_ahead() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    free = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    pool = Pool("127.0.0.1", free)
    pool.prepare()
    for _ in range(20):
        await asyncio.sleep(0)
    assert pool.idle == 0
    pool.close()
