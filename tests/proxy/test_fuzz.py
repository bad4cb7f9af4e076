"""Mutated requests and mutated answers: no crash, no hang, nothing smuggled.

TWOLANE_FUZZ is how many of each; a few hundred where it is not set.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.proxy.rig import PATIENCE_S, Rig, completion, expected, rig

from twolane.proxy.config import ProxyConfig, Upstream
from twolane.proxy.conformance.caller import Got, call
from twolane.proxy.ledger import LedgerLine
from twolane.proxy.service import Proxy
from twolane.records import read_jsonl

MUTATIONS = int(os.environ.get("TWOLANE_FUZZ", "300"))
BATCH = 300  # at once; a mutation that only leaves an answer unfinished costs its batch SILENCE_S
SILENCE_S = 1.5

HIDDEN = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"


def request(framing: str = "length", **more: object) -> bytes:
    body = json.dumps(completion("fuzz", 2, **more)).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    if framing == "length":
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    half = len(body) // 2
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (body[:half], body[half:]))
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + pieces + b"0\r\n\r\n"


REQUESTS = [
    request(),
    request("chunked"),
    request(stream=True),
    request(n=2),
    request(kv_transfer_params={"do_remote_prefill": True}),
    request() + request("chunked"),
    request().replace(b"Host: a", b"Host: a\r\nTransfer-Encoding: chunked") + HIDDEN,
    b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /metrics HTTP/1.0\r\n\r\n",
]
# What parsers have been found to differ about.
SPLICES = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"0\r\n\r\n", b"\r\n\r\n", b"\xff", b'"'),
    *(b"Content-Length: 5\r\n", b"Content-Length: +5\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Transfer-Encoding: xchunked\r\n", b"Transfer-Encoding : chunked\r\n", b"Host: b\r\n"),
    *(
        b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
        b"Upgrade: h2c\r\n",
        b";ext=\n",
        HIDDEN,
    ),
]


def mutate(raw: bytes, dice: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = dice.randrange(256)
        elif kind == 1:
            del data[at : at + dice.randint(1, 8)]
        elif kind == 2:
            data[at:at] = dice.choice(SPLICES)
        elif kind == 3:
            data[at:at] = data[at : at + dice.randint(1, 40)]
        else:
            ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
            at = dice.choice(ends) if ends else 0
            data[at:at] = dice.choice(SPLICES)
    return bytes(data)


async def until_closed(port: int, data: bytes) -> bytes:
    """The answers to `data`, after which our half is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(data)
            writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("seed", range(2))
async def test_mutated_requests(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(seed)
    file = tmp_path / "ledger.jsonl"
    async with rig(ledger=file) as r:
        for _ in range(-(-MUTATIONS // 2 // BATCH)):
            texts = [mutate(dice.choice(REQUESTS), dice) for _ in range(BATCH)]
            await asyncio.gather(*(until_closed(r.port, text) for text in texts))
            assert (await r.ask(completion())).text == expected()
        await r.settled()
        assert not any(record.levelno >= logging.ERROR for record in caplog.records)
        nothing_smuggled(r, file)


def nothing_smuggled(r: Rig, file: Path) -> None:
    """Engines got whole requests only, and each is one that the proxy has written down."""
    known = {line.id for line in read_jsonl(file, LedgerLine, [])}
    for engine in (r.p, r.d):
        assert engine.malformed == 0
        for seen in engine.asked:
            assert seen.headers["host"] == f"127.0.0.1:{engine.port}"
            assert seen.headers["x-request-id"] in known


# ------------------------------------------------------------------------------ mutated answers

WHOLE = json.dumps({"choices": [{"index": 0, "text": "good"}], "kv_transfer_params": None}).encode()
EVENT = b'data: {"choices": [{"index": 0, "text": "good"}]}\n\n'
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ANSWERS = [
    JSON_HEAD + b"content-length: %d\r\n\r\n" % len(WHOLE) + WHOLE,
    JSON_HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE),
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + 3 * (b"%x\r\n%b\r\n" % (len(EVENT), EVENT)) + b"0\r\n\r\n",
    b"HTTP/1.1 503 X\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" + JSON_HEAD + b"content-length: 2\r\n\r\n{}",
]  # fmt: skip


@asynccontextmanager
async def before(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """A proxy before one engine that answers a request's bytes with `answer`; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0] or 0)
                writer.write(answer(await reader.readexactly(length)))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, IndexError, ValueError):
            writer.close()

    engine = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream("aggregated", "a", "127.0.0.1", engine.sockets[0].getsockname()[1])
    config = ProxyConfig(
        aggregated=(upstream,), answer_timeout_s=SILENCE_S, idle_timeout_s=SILENCE_S
    )
    proxy = Proxy(config)
    server = await asyncio.get_running_loop().create_server(proxy.client, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await proxy.close()
        engine.close()
        await asyncio.sleep(0)


async def test_mutated_answers(caplog: pytest.LogCaptureFixture) -> None:
    """Over connections that are used again, so that a stray byte would reach the next answer."""
    dice = random.Random(7)

    def answer(body: bytes) -> bytes:
        return ANSWERS[0] if b"good" in body else mutate(dice.choice(ANSWERS), dice)

    async def one(port: int, prompt: str) -> Got:
        return await (await call(port, completion(prompt))).answer(PATIENCE_S)

    async with before(answer) as port:
        for _ in range(-(-MUTATIONS // BATCH)):
            prompts = ["bad", "good"] * BATCH
            answers = await asyncio.gather(*(one(port, prompt) for prompt in prompts))
            for prompt, got in zip(prompts, answers, strict=True):
                assert not got.left, "a hang"
                assert prompt == "bad" or got.text == "good", got
    assert not any(record.levelno >= logging.ERROR for record in caplog.records)
