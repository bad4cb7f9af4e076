"""Clients that leave a real pair at a chosen point, and the others, whom that must not touch.

The proxy runs in this process, so that a client can leave exactly between the legs: `Watched` is
the exchange that says where a request is.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.engine.conftest import BUDGET, side

from twolane.engines import metrics
from twolane.engines.fleet import Fleet
from twolane.gates import needle
from twolane.proxy import service
from twolane.proxy.config import ProxyConfig, config_from_urls
from twolane.proxy.conformance.caller import Call, Got, call
from twolane.proxy.exchange import Exchange
from twolane.proxy.fleet import Reservation
from twolane.proxy.handoff import Handoff

Point = Literal["at once", "in prefill", "between the legs", "in transfer", "in the stream"]
POINTS: tuple[Point, ...] = (
    "at once", "in prefill", "between the legs", "in transfer", "in the stream",
)  # fmt: skip
LONG = 6000  # tokens of who leaves: 47 blocks of 128, more than all the others hold
SHORT, OUTPUT = 300, 300
PATIENCE_S = 240.0
QUIET_S = 1.0  # what is given back must not come again


class Watched(Exchange):
    """Tells when it stands between the legs, and waits there where it is told to."""

    arrived: dict[str, asyncio.Event]
    stay: set[str]
    prefilled: list[tuple[str, float]]  # request id and P's time to its first token, ms

    async def _decode(self, handoff: Handoff, place: Reservation) -> None:
        times = self.account.p_times
        if times is not None and times.first_token_ms is not None:
            self.prefilled.append((self.asked.id, times.first_token_ms))
        here = self.arrived.get(self.asked.id)
        if here is not None:
            here.set()
        if self.asked.id in self.stay:
            await asyncio.Event().wait()  # until its client has left
        await super()._decode(handoff, place)


@dataclass
class Scene:
    """A proxy of our own before a real pair."""

    pair: Fleet
    proxy: service.Proxy
    port: int
    number: int = 0
    returned_s: list[float] = field(default_factory=list)

    async def call(self, prompt: str, tokens: int, name: str) -> Call:
        body = {"model": "needle", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                "stream": True}  # fmt: skip
        return await call(self.port, body, headers={"x-request-id": name})

    async def poke(self, role: str) -> None:
        """A step for an engine."""
        body = {"model": "needle", "prompt": "poke", "max_tokens": 1}
        await (await call(side(self.pair, role).launch.port, body)).answer(PATIENCE_S)

    async def step_s(self, seed: int) -> float:
        """How long one of P's steps takes now: a long prompt, seen out, by the steps it needs."""
        Watched.prefilled.clear()
        client = await self.call(needle.filler(LONG, seed=seed), 1, f"whole-{seed}")
        await client.answer(PATIENCE_S)
        (times,) = (t for name, t in Watched.prefilled if name == f"whole-{seed}")
        return times / 1e3 / -(-LONG // BUDGET)

    async def used(self, role: str) -> int:
        """KV blocks in use."""
        return await asyncio.to_thread(used_blocks, side(self.pair, role).launch.url)


def used_blocks(url: str) -> int:
    values = metrics.scrape(url)
    blocks = int(metrics.cache_config(values)["num_gpu_blocks"])
    return round(values["vllm:kv_cache_usage_perc"] * blocks)


@asynccontextmanager
async def scene(pair: Fleet, **limits: Any) -> AsyncIterator[Scene]:
    proxy = service.Proxy(configured(pair, **limits))
    await proxy.start()
    server = await asyncio.get_running_loop().create_server(proxy.client, "127.0.0.1", 0)
    try:
        yield Scene(pair, proxy, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await proxy.close()
    assert proxy.book.balanced, vars(proxy.book)
    assert proxy.book.stranded == 0


def configured(pair: Fleet, **limits: Any) -> ProxyConfig:
    p, d = (side(pair, role).launch.url for role in ("prefill", "decode"))
    return config_from_urls((p,), (d,), limits=limits)


# --------------------------------------------------------------------------------- the others


@dataclass
class Others:
    """`count` clients that ask one thing after the other; `right` are the undisturbed answers."""

    scene: Scene
    count: int
    right: dict[int, str] = field(default_factory=dict)
    served: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[Got] = field(default_factory=list)
    excused: bool = False  # an engine is down: answers may fail, but none may be wrong
    ended: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def undisturbed(self) -> None:
        for seed in range(self.count):
            got = await self._ask(seed)
            assert got.complete, got
            self.right[seed] = got.text
            known = needle.echo(SHORT, seed=seed).continuation(OUTPUT)
            assert got.text == known, (got.text[:80], known[:80])

    async def _ask(self, seed: int) -> Got:
        self.scene.number += 1
        prompt = needle.echo(SHORT, seed=seed).text
        one = await self.scene.call(prompt, OUTPUT, f"other-{seed}-{self.scene.number}")
        return await one.answer(PATIENCE_S)

    async def _client(self, seed: int) -> None:
        while not self.ended:
            excused = self.excused
            got = await self._ask(seed)
            right = got.status == 200 and got.complete and got.text == self.right[seed]
            self.served += right
            if right:
                continue
            self.failed.append(got)
            if not (excused or self.excused) or (got.status == 200 and got.complete):
                self.wrong.append(f"{seed}: {got.status} {got.complete} {got.body[-300:]!r}")
            await asyncio.sleep(0.2)

    async def __aenter__(self) -> Others:
        if not self.right:
            await self.undisturbed()
        self._tasks = [asyncio.create_task(self._client(seed)) for seed in range(self.count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.ended = True
        await asyncio.gather(*self._tasks)

    def blocks(self) -> tuple[int, int]:
        """What they may hold at P and at D at most."""
        whole = -(-(SHORT + OUTPUT) // 128) + 1
        return self.count * (-(-SHORT // 128)), self.count * whole


# ------------------------------------------------------------------------------------ leaving


async def leave(one: Scene, point: Point, seed: int) -> None:
    """One client asks and leaves at `point`."""
    name = f"leaver-{seed}"
    here = Watched.arrived[name] = asyncio.Event()
    if point == "between the legs":
        Watched.stay.add(name)
    client = await one.call(needle.filler(LONG, seed=seed), 200, name)
    try:
        await _WAIT[point](client, here, random.Random(seed))
    finally:
        client.leave()
        Watched.arrived.pop(name)
        Watched.stay.discard(name)


async def _at_once(client: Call, here: asyncio.Event, dice: random.Random) -> None:
    await asyncio.sleep(dice.uniform(0, 0.005))


async def _in_prefill(client: Call, here: asyncio.Event, dice: random.Random) -> None:
    """Any time from the first chunk to about the end, with its race."""
    waiting = asyncio.create_task(here.wait())
    await asyncio.wait((waiting,), timeout=dice.uniform(0.05, 2.5))
    waiting.cancel()


async def _between(client: Call, here: asyncio.Event, dice: random.Random) -> None:
    await asyncio.wait_for(here.wait(), PATIENCE_S)


async def _in_transfer(client: Call, here: asyncio.Event, dice: random.Random) -> None:
    await asyncio.wait_for(here.wait(), PATIENCE_S)
    await asyncio.sleep(dice.uniform(0, 0.03))


async def _in_stream(client: Call, here: asyncio.Event, dice: random.Random) -> None:
    await asyncio.wait_for(client.some.wait(), PATIENCE_S)
    await asyncio.sleep(dice.uniform(0, 0.3))


_WAIT: dict[Point, Callable[[Call, asyncio.Event, random.Random], Awaitable[None]]] = {
    "at once": _at_once,
    "in prefill": _in_prefill,
    "between the legs": _between,
    "in transfer": _in_transfer,
    "in the stream": _in_stream,
}


async def back_to_base(one: Scene, base: tuple[int, int], patience_s: float) -> float:
    """Seconds until neither engine holds more than `base` says, and then not for a second more.

    An engine tells what it holds only when it has done a step, and may have nothing to do once it
    was stopped; so it is given something now and then, a block more than `base`.
    """
    began = over = time.monotonic()
    pokes: dict[str, asyncio.Task[None]] = {}
    while (now := time.monotonic()) - over < QUIET_S and now - began < patience_s:
        for role in ("prefill", "decode"):
            if role not in pokes or pokes[role].done():
                pokes[role] = asyncio.create_task(one.poke(role))
        held = await asyncio.gather(one.used("prefill"), one.used("decode"))
        if held[0] > base[0] + 1 or held[1] > base[1] + 1:
            over = time.monotonic()
        await asyncio.sleep(0.05)
    await asyncio.gather(*pokes.values())
    return over - began
