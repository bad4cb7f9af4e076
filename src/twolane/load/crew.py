"""The worker processes of one drive, seen from the driver.

Rules of this file: a worker that dies is noticed at once and ends every wait with WorkerLostError;
no wait can hang on a dead worker, and no worker outlives its crew.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

import twolane
from twolane import clock
from twolane.clock import NS
from twolane.load.orders import (
    Ask,
    Begin,
    Done,
    Fire,
    First,
    Lag,
    LoopEnded,
    Order,
    Prepare,
    Rates,
    Ready,
    Report,
    Sent,
    Stop,
    Target,
    Warm,
)
from twolane.load.worker import LINE_LIMIT
from twolane.records import Request

GOODBYE_S: Final = 5.0
"""How long a worker may take to report its lag and leave before it is killed."""

MOST_OF_A_TRACEBACK: Final = 2000


_report = msgspec.json.Decoder(Report).decode


class WorkerLostError(Exception):
    """A worker process ended before its work did; the text says which one and how."""


class Crew:
    """`size` workers that load `target`. Use as an async context manager.

    What they reported is in `ready`, `first`, `done` and `loops`; `until` waits for more.
    `record` receives every request when it ends, `tell` every rates report with its worker's
    number. `in_flight` are the requests that left and have not ended.
    """

    def __init__(
        self,
        size: int,
        target: Target,
        seed: int,
        record: Callable[[Request], None],
        tell: Callable[[int, Rates], None],
    ) -> None:
        self.size = size
        self._target = target
        self._seed = seed
        self._record = record
        self._tell = tell
        self._workers: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._lost: str | None = None
        self._failure: Exception | None = None
        self._closing = False
        self.begun = 0
        self.ready: set[int] = set()
        self.first: dict[int, int] = {}
        self.done: dict[int, Request] = {}
        self.in_flight: dict[int, Request] = {}
        self.warm = 0
        self.loops: list[LoopEnded] = []
        self.lags: list[Lag] = []

    async def __aenter__(self) -> Crew:
        try:
            for number in range(self.size):
                await self._spawn(number)
            await self.until(lambda: self.begun == self.size)
        except BaseException:
            await self._close(kill=True)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(kill=error is not None)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    # ------------------------------------------------------------------------------ orders

    def order(self, worker: int, order: Order) -> None:
        pipe = self._workers[worker].stdin
        assert pipe is not None
        pipe.write(msgspec.json.encode(order) + b"\n")

    async def prepare(self, worker: int, asks: Sequence[Ask]) -> list[int]:
        """Have the bodies made; returns their keys once they are ready."""
        keys = [ask.key for ask in asks]
        self.order(worker, Prepare(asks=list(asks)))
        await self.until(lambda: self.ready.issuperset(keys))
        return keys

    def fire(self, worker: int, keys: Sequence[int], at_ns: int) -> None:
        self.order(worker, Fire(keys=list(keys), at_ns=at_ns))

    def stop(self, worker: int, keys: Sequence[int]) -> None:
        self.order(worker, Stop(keys=list(keys)))

    # ------------------------------------------------------------------------------- waits

    async def until(self, true: Callable[[], bool], by_ns: int | None = None) -> bool:
        """Wait until `true()`, at most until `by_ns`; returns `true()`.

        Raises WorkerLostError as soon as a worker has died, and whatever `record` or `tell`
        raised.
        """
        while not true() or self._failure is not None:
            if self._failure is not None:
                raise self._failure
            if self._lost is not None:
                raise WorkerLostError(self._lost)
            left = None if by_ns is None else (by_ns - clock.now_ns()) / NS
            if left is not None and left <= 0:
                return False
            self._news.clear()
            # Not wait_for: in Python 3.11 it swallows a cancellation that meets its result.
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()
        return True

    def lost(self, why: str) -> list[Request]:
        """Records of the requests that were in flight when the crew ended."""
        now_ns = clock.now_ns()
        return [
            msgspec.structs.replace(r, first_ns=self.first.get(key), end_ns=now_ns, error=why)
            for key, r in self.in_flight.items()
        ]

    # -------------------------------------------------------------------------- processes

    async def _spawn(self, number: int) -> None:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "twolane.load.worker",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,  # its share of the cores is its own, not its parent's
            env=os.environ | {"PYTHONPATH": import_path()},
        )
        self._workers.append(worker)
        self._readers.append(asyncio.create_task(self._read(number, worker)))
        self.order(number, Begin(worker=number, target=self._target, seed=self._seed))

    async def _read(self, number: int, worker: asyncio.subprocess.Process) -> None:
        """Hear one worker out; how it ended is noted for whoever waits, never lost."""
        assert worker.stdout is not None
        assert worker.stderr is not None
        complaints = asyncio.create_task(worker.stderr.read())
        try:
            while (line := await worker.stdout.readline()).endswith(b"\n"):
                self._hear(number, _report(line))
        except Exception as error:  # of `record` and `tell` too: the driver must not go on
            self._failure = error
            self._news.set()
            worker.kill()
        code = await worker.wait()
        said = (await complaints).decode("utf-8", "replace")[-MOST_OF_A_TRACEBACK:].strip()
        if not self._closing:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._lost = f"load worker {number} died ({how})" + (f": {said}" if said else "")
        self._news.set()

    def _hear(self, number: int, report: Report) -> None:
        match report:
            case Ready(keys=[]):
                self.begun += 1
            case Ready():
                self.ready.update(report.keys)
            case First():
                self.first[report.key] = report.first_ns
            case Sent():
                self.in_flight[report.key] = report.request
            case Warm():
                self.warm += 1
            case Done():
                self.done[report.key] = report.request
                self.in_flight.pop(report.key, None)
                self._record(report.request)
            case Rates():
                self._tell(number, report)
            case LoopEnded():
                self.loops.append(report)
            case Lag():
                self.lags.append(report)
        self._news.set()

    async def _close(self, kill: bool) -> None:
        """Let the workers report and go, or kill them; either way they are gone afterwards."""
        self._closing = True
        for worker in self._workers:
            if kill and worker.returncode is None:
                worker.kill()
            elif worker.stdin is not None:
                worker.stdin.close()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.gather(*self._readers)
        except TimeoutError:
            for worker in self._workers:
                with suppress(ProcessLookupError):
                    worker.kill()
            await asyncio.gather(*self._readers, return_exceptions=True)


def import_path() -> str:
    """Where this very package is found, so that the worker runs the same one."""
    here = str(Path(twolane.__file__).parents[1])
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
