"""Clients that leave, and engines that die, in front of a real pair under load.

TWOLANE_LEAVES says how often a client leaves at each point (default 1); TWOLANE_LEAVES_OUT=FILE
appends what was seen, one JSON line a test. TWOLANE_P_BUDGET is P's token budget (default 2048).
TWOLANE_RESTARTS=1 also kills each engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import BUDGET, side
from tests.engine.leaving import (
    POINTS,
    Others,
    Point,
    Scene,
    Watched,
    back_to_base,
    leave,
    scene,
)  # fmt: skip

from twolane.engines import http, pinning
from twolane.engines.fleet import Fleet
from twolane.engines.process import Process
from twolane.proxy import ways

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

TIMES = int(os.environ.get("TWOLANE_LEAVES", "1"))
OTHERS = 4 if TIMES > 1 else 2
OUT = os.environ.get("TWOLANE_LEAVES_OUT")
BACK_S = 2.0
LEASE_S = 32.0
SLACK_S = 13.0  # a test machine may be busy with something else; the lease would be 30
restarts = pytest.mark.skipif(
    not os.environ.get("TWOLANE_RESTARTS"), reason="only with TWOLANE_RESTARTS=1"
)


def note(**seen: Any) -> None:
    if OUT:
        with Path(OUT).open("a") as file:
            file.write(json.dumps(seen) + "\n")


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    Watched.arrived, Watched.stay, Watched.prefilled = {}, set(), []
    monkeypatch.setattr(ways, "Exchange", Watched)


@pytest.mark.parametrize("point", POINTS)
async def test_a_client_that_leaves_frees_both_engines(pair: Fleet, point: Point) -> None:
    async with scene(pair) as one:
        async with Others(one, count=OTHERS) as others:
            for turn in range(TIMES):
                await leave(one, point, seed=1000 * POINTS.index(point) + turn + 1)
                one.returned_s.append(await back_to_base(one, others.blocks(), LEASE_S))
            steps_s = [await one.step_s(seed) for seed in range(9000, 9000 + TIMES // 4)]
        note(point=point, back_s=one.returned_s, others=others.served, wrong=others.wrong,
             handoffs=dict(one.proxy.book.ends), budget=BUDGET, steps_s=steps_s)  # fmt: skip
        assert others.wrong == []
        assert max(one.returned_s) < BACK_S + SLACK_S
        assert await back_to_base(one, (0, 0), LEASE_S) < BACK_S + SLACK_S


@restarts
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_only_the_requests_on_a_killed_engine_fail(pair: Fleet, role: str) -> None:
    async with scene(pair) as one, Others(one, count=4) as others:
        while others.served < 4:
            await asyncio.sleep(0.1)
        others.excused = True
        engine = side(pair, role)
        os.kill(engine.process.pid, signal.SIGKILL)
        await engine.process.wait()
        await restarted(pair, role)
        used_s = await used_again(one)
        others.excused = False
        before = others.served
        while others.served < before + 8:
            await asyncio.sleep(0.1)
        failed = [f"{got.status} {got.complete}" for got in others.failed]
        note(killed=role, used_again_s=used_s, served=others.served, wrong=others.wrong,
             failed={kind: failed.count(kind) for kind in set(failed)})  # fmt: skip
        assert others.wrong == []
        assert all(got.status in (502, 503) or not got.complete for got in others.failed)
        assert used_s < 5.0


async def restarted(pair: Fleet, role: str) -> None:
    """The engine's command again, on the same ports, until it says that it is well."""
    engine = side(pair, role)
    engine.process = await Process.start(
        engine.name, engine.launch.argv, env=engine.launch.env, log=engine.process.log,
        cores=engine.launch.engine.devices,
    )  # fmt: skip
    while not await asyncio.to_thread(http.healthy, engine.launch.url):
        assert engine.process.code is None
        await asyncio.sleep(0.1)
    pinning.repin(engine.process.pid, engine.launch.engine.devices)


async def used_again(one: Scene) -> float:
    """Seconds from now until a request is answered through the pair."""
    began = time.monotonic()
    while time.monotonic() - began < 60.0:
        one.number += 1
        got = await (await one.call("again, please", 2, f"again-{one.number}")).answer(30.0)
        if got.status == 200 and got.complete:
            return time.monotonic() - began
        await asyncio.sleep(0.1)
    return 60.0
