"""The process: says where it listens, drains on SIGTERM, ends at once on SIGINT."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.proxy.rig import Call, completion, expected, soon

from twolane.errors import QuestionError
from twolane.proxy.config import config_from_urls
from twolane.proxy.fault_answer import Behaviour
from twolane.proxy.fault_engine import FaultEngine
from twolane.proxy.server import serve
from twolane.wire.http1 import connect, request_head

PROGRAM = """
import sys
from twolane.proxy.config import config_from_urls
from twolane.proxy.server import run
run(config_from_urls(aggregated=(sys.argv[1],), port=0))
"""


@asynccontextmanager
async def process(engine: FaultEngine) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    one = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, engine.url, stdout=-1, stderr=-1, env={"PYTHONPATH": "src"}
    )
    assert one.stdout is not None
    assert one.stderr is not None
    try:
        line = json.loads(await asyncio.wait_for(one.stdout.readline(), 30))
        host, _, port = line["listening"].removeprefix("http://").partition(":")
        assert (list(line), host) == (["listening"], "127.0.0.1")
        yield one, int(port)
    finally:
        if one.returncode is None:
            one.kill()
        await one.communicate()


async def stream(port: int) -> Call:
    body = json.dumps(completion(stream=True)).encode()
    call = Call(await connect("127.0.0.1", port))
    call.connection.send(request_head("POST", "/v1/completions", "x", (), len(body)), body, call)
    await call.first()
    return call


async def test_sigterm_lets_a_stream_end_and_accepts_no_other() -> None:
    async with FaultEngine("aggregated") as engine:
        gate = asyncio.Event()
        engine.behaviour = Behaviour(after_first=gate)
        async with process(engine) as (one, port):
            call = await stream(port)
            one.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while await accepts(port):
                    await asyncio.sleep(0.01)
            assert one.returncode is None
            gate.set()
            got = await call.answer()
            assert (got.text, got.complete) == (expected(), True)
            assert await asyncio.wait_for(one.wait(), 20) == 0
        await asyncio.sleep(0)


async def accepts(port: int) -> bool:
    try:
        connection = await connect("127.0.0.1", port)
    except OSError:
        return False
    connection.abort()
    return True


async def test_sigint_ends_at_once_and_frees_the_engine() -> None:
    async with FaultEngine("aggregated") as engine:
        engine.behaviour = Behaviour(after_first=asyncio.Event())
        async with process(engine) as (one, port):
            call = await stream(port)
            one.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(one.wait(), 20) == 0
            assert not (await call.answer()).complete
            await soon(engine.left)


async def test_a_taken_port_is_told_with_a_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = config_from_urls(aggregated=("http://127.0.0.1:9",), port=taken.getsockname()[1])
        with pytest.raises(QuestionError, match="another --port"):
            await serve(config)


async def test_serve_ends_when_it_is_cancelled() -> None:
    async with FaultEngine("aggregated") as engine:
        ports: list[int] = []
        listening = asyncio.Event()

        def ready(port: int) -> None:
            ports.append(port)
            listening.set()

        config = config_from_urls(aggregated=(engine.url,), port=0)
        task = asyncio.create_task(serve(config, ready))
        await soon(listening)
        assert await accepts(ports[0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await accepts(ports[0])
        await asyncio.sleep(0)


async def test_these_tests_run_on_the_loop_of_the_proxy() -> None:
    assert type(asyncio.get_running_loop()).__module__ == "uvloop"
