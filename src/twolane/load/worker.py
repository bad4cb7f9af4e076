"""One load worker: `python -m twolane.load.worker PARENT_PID`, orders in, reports out.

Rules of this file: the worker's only duty is to be on time. It runs its own event loop in its
own process, with the collector off, at raised priority where that is allowed, and it measures
how late its own timers are. It dies with its parent: by the kernel's signal, or when its stdin
ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import signal
import sys
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec
import uvloop

from twolane import clock
from twolane.clock import MS, NS
from twolane.load.closed_loop import Loop
from twolane.load.orders import (
    Begin,
    ClosedLoop,
    Count,
    Done,
    Enough,
    Fire,
    First,
    Lag,
    Order,
    Prepare,
    Rates,
    Ready,
    Report,
    Sent,
    Stop,
    Warm,
)
from twolane.load.sender import Prepared, Sender, prepare
from twolane.records import Request

LINE_LIMIT: Final = 1 << 30
"""Longest order or report, bytes: a batch of million-token prompts fits."""

LAG_PERIOD_S: Final = 0.02
RATES_PERIOD_S: Final = 0.5
PRIORITY: Final = 1
NICENESS: Final = -10
PR_SET_PDEATHSIG: Final = 1


class Worker:
    def __init__(self, begin: Begin, out: asyncio.WriteTransport) -> None:
        self._out = out
        self._seed = begin.seed
        self._sender = Sender(begin.target, begin.worker, self._sent)
        self._prepared: dict[int, Prepared] = {}
        self._loop: Loop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._late_ns: list[int] = []

    def report(self, report: Report) -> None:
        self._out.write(msgspec.json.encode(report) + b"\n")

    def obey(self, order: Order) -> None:
        match order:
            case Prepare():
                self._prepare(order)
            case Fire():
                for key in order.keys:
                    self.start(self._fire(self._prepared.pop(key), order.at_ns))
            case Stop():
                for key in order.keys:
                    self._sender.stop(key)
            case ClosedLoop():
                self._sender.drain.rests = True
                self._loop = Loop(order, self._sender, self._seed, self._done, self._warm)
                self.start(self._run_loop(self._loop))
            case Count():
                self._running().count_from(order.at_ns)
            case Enough():
                self._running().stop()
            case Begin():
                raise ValueError("a worker begins once")

    def _running(self) -> Loop:
        assert self._loop is not None
        return self._loop

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A defect in a task must end the worker, since nobody waits for the task."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            sys.excepthook(type(error), error, error.__traceback__)
            sys.stderr.flush()
            os._exit(1)

    def _prepare(self, order: Prepare) -> None:
        for ask in order.asks:
            self._prepared[ask.key] = prepare(ask, self._sender.target, self._seed)
        self.report(Ready(keys=[ask.key for ask in order.asks]))

    async def _fire(self, prepared: Prepared, at_ns: int) -> None:
        key = prepared.ask.key

        def first(stamp_ns: int) -> None:
            self.report(First(key=key, first_ns=stamp_ns))

        request, connection = await self._sender.send(prepared, at_ns, on_first=first)
        if connection is not None:
            connection.abort()
        self._done(key, request)

    async def _run_loop(self, loop: Loop) -> None:
        self.report(await loop.run())

    def _sent(self, key: int, request: Request) -> None:
        self.report(Sent(key=key, request=request))

    def _warm(self) -> None:
        self.report(Warm())

    def _done(self, key: int, request: Request) -> None:
        self.report(Done(key=key, request=request))

    # ----------------------------------------------------------------- watching itself

    async def tell_rates(self) -> None:
        """Report twice a second, over the last second."""
        past: deque[tuple[int, dict[int, int]]] = deque([(clock.now_ns(), {})], maxlen=2)
        while True:
            await asyncio.sleep(RATES_PERIOD_S)
            now_ns = clock.now_ns()
            counts = {key: stream.received for key, stream in sorted(self._sender.open.items())}
            then_ns, before = past[0]
            seconds = (now_ns - then_ns) / NS
            self.report(
                self._rates({k: (n - before.get(k, 0)) / seconds for k, n in counts.items()})
            )
            past.append((now_ns, counts))

    def _rates(self, rate: dict[int, float]) -> Rates:
        if self._loop is not None:
            return Rates(
                rates=[sum(rate.values())],
                done=self._loop.completed,
                total=self._loop.quota,
                phase=self._loop.phase,
            )
        streams = self._sender.open
        return Rates(rates=[r for key, r in rate.items() if streams[key].ask.role == "victim"])

    async def watch_lag(self) -> None:
        """Measure how much later than asked a timer comes back."""
        while True:
            due = clock.now_ns() + round(LAG_PERIOD_S * NS)
            await asyncio.sleep(LAG_PERIOD_S)
            self._late_ns.append(max(0, clock.now_ns() - due))

    def lag(self) -> Lag:
        late = sorted(self._late_ns) or [0]
        return Lag(p99_ms=late[len(late) * 99 // 100] / MS, worst_ms=late[-1] / MS)


class _Flushed(asyncio.BaseProtocol):
    """Knows when everything written has left, or never will."""

    def __init__(self) -> None:
        self._lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()

    async def wait(self) -> None:
        await self._lost.wait()


async def serve() -> None:
    """Obey orders until stdin ends, then report the lag."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    out, flushed = await loop.connect_write_pipe(_Flushed, sys.stdout)
    decode = msgspec.json.Decoder(Order).decode
    begin = decode(await lines.readline())
    if not isinstance(begin, Begin):
        raise TypeError(f"the first order is {type(begin).__name__}, not Begin")
    worker = Worker(begin, out)
    worker.start(worker.watch_lag())
    worker.start(worker.tell_rates())
    worker.report(Ready())
    while line := await lines.readline():
        worker.obey(decode(line))
    worker.report(worker.lag())
    out.close()
    await flushed.wait()


def main() -> None:
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what a Ctrl-C means
    _be_prompt()
    _open_many_files()
    gc.collect()
    gc.freeze()
    gc.disable()
    uvloop.run(serve())


def _be_prompt() -> None:
    """Run before engines that keep every core busy, where the system allows it.

    Only the real-time class does that: niceness counts within one session (autogroups), and
    engines have sessions of their own. Ten microseconds an event leave them their cores. Where
    neither is allowed, the lag that is reported shows what it cost.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def _open_many_files() -> None:
    """A stream is a socket: take as many as this system gives a process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        raise SystemExit(1)


if __name__ == "__main__":
    main()
