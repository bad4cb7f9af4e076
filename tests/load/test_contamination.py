"""What spoils a measurement is planted in a whole cell, and its code is seen; else none is."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from tests.golden_engine import GoldenEngine, Pace, serve
from tests.load.test_driver import workers_of

from twolane import bench
from twolane.clock import now_ns
from twolane.gates.validity import judge
from twolane.load.driver import CellRun, Target, drive
from twolane.records import Code, GridCell, Request

CELL = GridCell(id="c8 in64 out16 n80", users=8, prompt=64, output=16, requests=80)
CALM_MS = 500.0
"""The smallest effect claimed here: a busy machine's own lag must not look planted."""


async def held(engine: GoldenEngine, seen: list[tuple[int, float]]) -> None:
    """Sample what the engine knows of, as its gauges would be."""
    while True:
        seen.append((now_ns(), float(engine.running)))
        await asyncio.sleep(0.02)


async def judged(
    pace: Pace, *, again: bool = False, freeze_s: float = 0.0, smallest_ms: float = CALM_MS
) -> list[Code]:
    async with serve(pace) as (engine, port):
        if again:
            await driven(engine, port)
        requests, run, samples = await driven(engine, port, freeze_s)
    return judge(
        CELL, requests, run.window_ns, {}, {}, {}, problem=run.problem,
        lag_p99_ms=run.lag_p99_ms, smallest_effect_ms=smallest_ms, engines_held=samples,
    )  # fmt: skip


async def driven(
    engine: GoldenEngine, port: int, freeze_s: float = 0.0
) -> tuple[list[Request], CellRun, list[float]]:
    requests: list[Request] = []
    samples: list[tuple[int, float]] = []
    window, target = asyncio.Event(), Target("127.0.0.1", port, "golden")
    freezing = asyncio.create_task(freeze(window, freeze_s))
    sampling = asyncio.create_task(held(engine, samples))
    run = await drive(
        CELL, target, seed=1, record=requests.append,
        progress=lambda now: window.set() if now.phase == "window" else None,
    )  # fmt: skip
    sampling.cancel()
    freezing.cancel()
    begin, end = run.window_ns or (0, 0)
    return requests, run, [running for t_ns, running in samples if begin <= t_ns <= end]


async def freeze(window: asyncio.Event, seconds: float) -> None:
    """Hold up the worker, as a client would that serialises while it reads."""
    await window.wait()
    while seconds:
        (worker,) = workers_of(os.getpid())
        os.kill(worker.pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(worker.pid, signal.SIGCONT)
        await asyncio.sleep(0.05)


async def test_a_clean_cell_has_no_code() -> None:
    assert await judged(Pace(gap_s=0.005)) == []


@pytest.mark.parametrize(
    ("pace", "again", "code"),
    [
        pytest.param(Pace(gap_s=0.005, cache_block=16), True, "CACHE", id="warm cache"),
        pytest.param(Pace(gap_s=0.005, at_once=3), False, "INFLIGHT", id="router's limit"),
        pytest.param(Pace(gap_s=0.005, ends_after=9), False, "LENGTH", id="early end"),
    ],
)
async def test_what_is_planted_is_coded(pace: Pace, again: bool, code: str) -> None:
    assert code in {found.code for found in await judged(pace, again=again)}


async def test_a_client_that_lags_by_more_than_it_claims_is_coded() -> None:
    found = await judged(Pace(gap_s=0.02), freeze_s=0.03, smallest_ms=20.0)
    assert "CLIENT" in {code.code for code in found}


@pytest.mark.parametrize(("pulls", "codes"), [(True, []), (False, ["DEGENERATE"])])
async def test_a_decode_engine_that_prefills_itself_is_coded_from_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pulls: bool, codes: list[str]
) -> None:
    """A router that hands nothing over: its decode engine answers all the same."""
    monkeypatch.setattr(bench, "judge", partial(judge, smallest_effect_ms=CALM_MS))
    async with serve(Pace()) as (_, idle), serve(Pace(gap_s=0.005, pulls=pulls)) as (_, port):
        server = bench.Server("127.0.0.1", port, "golden", 100_000)
        outcome = await bench.run(
            server, [CELL], tmp_path, lambda _: None, seed=1, calibrated=False,
            engines={"prefill0": f"http://127.0.0.1:{idle}", "decode0": server.url},
        )  # fmt: skip
    assert [code.code for code in outcome.cells[0].codes] == codes
