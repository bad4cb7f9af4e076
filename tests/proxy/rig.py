"""A proxy between fault engines on loopback sockets, and a client that can leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from twolane.proxy.config import ProxyConfig, Upstream
from twolane.proxy.conformance import caller
from twolane.proxy.conformance.caller import Got
from twolane.proxy.fault_answer import answer_text
from twolane.proxy.fault_engine import MODEL, FaultEngine, KvStore
from twolane.proxy.fault_push import PushEngine, PushStore
from twolane.proxy.service import Proxy
from twolane.wire.http1 import connect, request_head

PATIENCE_S = 20.0  # only how long a failing test takes


class Call(caller.Call):
    """As a conformance client; it says what it has seen only when there is no more to see."""

    async def answer(self, patience_s: float = PATIENCE_S) -> Got:
        await soon(self.ended)
        return await super().answer(patience_s)

    async def first(self) -> None:
        await soon(self.some)


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


def completion(prompt: str = "hello", tokens: int = 4, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, **more}


def expected(prompt: str = "hello", tokens: int = 4) -> str:
    return "".join(answer_text(prompt, tokens))


@dataclass
class Rig:
    proxy: Proxy
    port: int
    store: KvStore
    prefill: list[FaultEngine]
    decode: list[FaultEngine]
    aggregated: list[FaultEngine]
    calls: list[Call] = field(default_factory=list)

    @property
    def p(self) -> FaultEngine:
        return self.prefill[0]

    @property
    def d(self) -> FaultEngine:
        return self.decode[0]

    async def call(
        self,
        body: Any = None,
        path: str = "/v1/completions",
        method: str = "POST",
        **headers: str,
    ) -> Call:
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        named = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        call = Call(await connect("127.0.0.1", self.port))
        self.calls.append(call)
        head = request_head(method, path, "twolane", named.items(), len(raw))
        call.connection.send(head, raw, call)
        return call

    async def ask(self, body: Any = None, path: str = "/v1/completions", **headers: str) -> Got:
        return await (await self.call(body, path, **headers)).answer()

    async def get(self, path: str) -> Got:
        return await (await self.call(None, path, "GET")).answer()

    async def settled(self) -> None:
        """Every exchange is over and every release done."""
        async with asyncio.timeout(PATIENCE_S):
            await self.proxy.idle()
            await self.proxy.releases.finish()

    async def raw(self, data: bytes) -> bytes:
        """What comes back for bytes, until the proxy closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def rig(
    prefill: int = 1,
    decode: int = 1,
    aggregated: int = 0,
    *,
    strands: bool = False,
    push: bool = False,
    **more: Any,
) -> AsyncIterator[Rig]:
    """Engines and a proxy in front. At the end no handoff may be left, and unless `strands`
    says that the engines break in a way that must strand some, no block may be held."""
    store = PushStore() if push else KvStore()
    kind = PushEngine if push else FaultEngine
    engines = [
        *(kind("prefill", store) for _ in range(prefill)),
        *(kind("decode", store) for _ in range(decode)),
        *(kind("aggregated", store) for _ in range(aggregated)),
    ]
    for engine in engines:
        await engine.start()
    config = replace(_config(engines), **{"hear_out_s": 0.05, "scrape_every_s": 0.0} | more)
    proxy = Proxy(config)
    await proxy.start()
    server = await asyncio.get_running_loop().create_server(proxy.client, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def of(role: str) -> list[FaultEngine]:
        return [engine for engine in engines if engine.role == role]

    one = Rig(proxy, port, store, of("prefill"), of("decode"), of("aggregated"))
    try:
        yield one
        await one.settled()
    finally:
        server.close()
        for call in one.calls:
            call.leave()
        await proxy.close()
        for engine in engines:
            engine.stop()
        for _ in range(3):  # the loop closes aborted sockets in its next rounds
            await asyncio.sleep(0)
    assert proxy.book.balanced, vars(proxy.book)
    assert proxy.book.stranded == 0
    assert strands or not store.held, store.held
    assert not (isinstance(store, PushStore) and store.waiting and not strands)
    assert all(engine.in_flight == 0 for engine in proxy.fleet.engines)
    assert all(engine.prompt_bytes == 0 for engine in proxy.fleet.engines)


def _config(engines: list[FaultEngine]) -> ProxyConfig:
    def of(role: Any) -> tuple[Upstream, ...]:
        mine = [engine for engine in engines if engine.role == role]
        return tuple(Upstream(role, f"{role}-{i}", "127.0.0.1", e.port) for i, e in enumerate(mine))

    return ProxyConfig(
        prefill=of("prefill"), decode=of("decode"), aggregated=of("aggregated"), port=0
    )
