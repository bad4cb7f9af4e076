"""Golden engines in the place of vLLM, in this very event loop: a campaign's run in half a second.

Rules of this file: what is replaced is where things run, never what they do. Plan, recorder, load
client, driver, reason codes, seals and files are twolane's own. The load worker runs here too
instead of in a process of its own; its orders and reports still pass as the lines that they are.
Arrivals are stamped by the kernel, so that whoever has the loop meanwhile is in no time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import msgspec
from tests.golden_engine import Pace, serve

from twolane import campaign as campaigns
from twolane import claims, devices, inspection, recorder
from twolane.config import Layout, Model
from twolane.config.models import Platform
from twolane.engines import installed
from twolane.engines.fleet import Fleet, Running, Told
from twolane.engines.front import Front
from twolane.engines.launch import Launch
from twolane.engines.process import Process
from twolane.load import driver
from twolane.load.crew import Crew
from twolane.load.orders import Begin, Order, Ready, Report
from twolane.load.worker import Worker
from twolane.records import RunMeta, read_json

PaceOf = Callable[[RunMeta, str], Pace]
"""From a run and the group of one of its engines to the pace of that engine."""

BLOCK = 16
KV_TOKENS = 100_000

_order = msgspec.json.Decoder(Order).decode
_report = msgspec.json.Decoder(Report).decode


# ------------------------------------------------------------------------------------- engines


class _Here:
    """What runs in this process, where a fleet expects a process: it never ends by itself."""

    code = None
    ended = False

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self.pid = os.getpid()

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0


class GoldenFleet(Fleet):
    """A golden engine for each engine of a layout; clients talk to the first one."""

    def __init__(self, pace_of: PaceOf, folder: Path, locks: Sequence[int] = ()) -> None:
        super().__init__(folder, locks)
        self._pace_of = pace_of
        self._open = AsyncExitStack()

    async def start(
        self,
        model: Model,
        layout: Layout,
        platform: Platform,
        *,
        timeout_s: float,
        told: Told,
        port: int = 0,
    ) -> None:
        meta = read_json(self.folder / "run.json", RunMeta)
        for engine in layout.engines:
            pace = self._pace_of(meta, engine.group)
            _, port = await self._open.enter_async_context(serve(pace))
            argv = (sys.executable, "tests/golden_engine.py", *engine.args)
            running = Running(Launch(engine, argv, {}, port, None), self._process(engine.name))
            running.ready_s, running.kv_tokens, running.block_size = 0.0, KV_TOKENS, BLOCK
            self.engines.append(running)
        self.front = Front(self._process("proxy"), [], self.engines[0].launch.port)

    def _process(self, name: str) -> Process:
        return cast(Process, _Here(name, self.folder / f"{name}.log"))

    @property
    def pids(self) -> list[int]:
        """None: there is no process that would have to be gone afterwards."""
        return []

    async def stop(self) -> None:
        await self._open.aclose()


# ------------------------------------------------------------------------------------- workers


class _Worker(Worker):
    """A load worker of this process: a defect in it must end its crew, not the process."""

    def __init__(self, begin: Begin, out: _Lines, fail: Callable[[Exception], None]) -> None:
        super().__init__(begin, cast(asyncio.WriteTransport, out))
        self._fail = fail

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    async def leave(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sender.drain.close()


class _Lines:
    """A worker's standard output, heard at once."""

    def __init__(self, hear: Callable[[Report], None]) -> None:
        self._hear = hear

    def write(self, line: bytes) -> None:
        self._hear(_report(line))


class LocalCrew(Crew):
    """Workers in this process."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self._here: dict[int, _Worker] = {}

    async def _spawn(self, number: int) -> None:
        begin = Begin(worker=number, target=self._target, seed=self._seed)
        worker = _Worker(begin, _Lines(partial(self._hear, number)), self._failed)
        self._here[number] = worker
        worker.start(worker.watch_lag())
        worker.start(worker.tell_rates())
        worker.report(Ready())

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self._news.set()

    def order(self, worker: int, order: Order) -> None:
        self._here[worker].obey(_order(msgspec.json.encode(order)))

    async def _close(self, kill: bool) -> None:
        for worker in self._here.values():
            await worker.leave()
            worker.report(worker.lag())


# ---------------------------------------------------------------------------------------- both


async def no_calibration(*_: Any, **__: Any) -> None:
    return None


@contextmanager
def in_process(pace_of: PaceOf, locks: Path) -> Iterator[None]:
    """Campaigns that are run inside drive golden engines at the pace that `pace_of` names.

    The node may be of GPUs that this host has not. `locks` is where its devices are claimed.
    """
    nothing: Callable[..., list[Any]] = lambda *_: []  # noqa: E731
    instead: list[tuple[Any, str, Any]] = [
        (recorder, "Fleet", partial(GoldenFleet, pace_of)),
        (driver, "Crew", LocalCrew),
        (campaigns, "calibrate", no_calibration),
        (inspection, "preflight", nothing),
        (installed, "require", nothing),
        (devices, "require", nothing),
        (devices, "gpus", lambda: ()),
        (devices, "memory_used", lambda _: {}),
    ]
    with ExitStack() as stack:
        for owner, name, put in instead:
            stack.enter_context(mock.patch.object(owner, name, put))
        stack.enter_context(mock.patch.dict(os.environ, {claims.VARIABLE: str(locks)}))
        yield
