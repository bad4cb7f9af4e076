"""What the client alone adds, measured before a campaign: the smallest stall it can resolve.

Rules of this file: the planned cell's own choreography, bodies and worker processes, against a
server whose writes are known. A gap that is longer where it was read than where it was written
was made by the client or by the machine. Tokens come at 50 a second and stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from twolane.analysis.measures import event_times_ns, percentile
from twolane.clock import MS
from twolane.load.crew import import_path
from twolane.load.driver import Target, drive
from twolane.records import AnyCell, GridCell, InterferenceCell, MixCell, Request

PHASE_S: Final = 0.5
"""Seconds of each phase: 25 tokens a stream, and the whole of it within some three seconds."""

SHORT_OUTPUT: Final = 16
CONTEXT: Final = 1 << 30

_log = msgspec.json.Decoder(dict[str, list[int]]).decode


@dataclass(frozen=True, slots=True)
class Resolution:
    """`stall_ms` is the longest that any gap grew between write and read, `late_*_ms` how long
    after its write an event was stamped, over `events` events."""

    cell: str
    stall_ms: float
    late_p50_ms: float
    late_p99_ms: float
    events: int

    def __str__(self) -> str:
        return (
            f"smallest stall that can be resolved here: {self.stall_ms:.1f} ms "
            f"({self.cell}; events are stamped {self.late_p50_ms:.2f} ms after their write, "
            f"p99 {self.late_p99_ms:.2f} ms)"
        )


async def calibrate(cells: Sequence[AnyCell], *, seed: int = 0) -> Resolution | None:
    """The worst resolution over the planned `cells`; None where nothing could be driven."""
    found = [await _one(cell, seed) for cell in _shortened(cells)]
    return max((r for r in found if r is not None), key=lambda r: r.stall_ms, default=None)


def _shortened(cells: Sequence[AnyCell]) -> list[AnyCell]:
    """The heaviest interference cell and the heaviest load, made short."""
    shots = [cell for cell in cells if isinstance(cell, InterferenceCell)]
    loads = [cell for cell in cells if isinstance(cell, GridCell)]
    mixes = [cell for cell in cells if isinstance(cell, MixCell)]
    chosen: list[AnyCell] = []
    if shots:
        heaviest = max(shots, key=lambda cell: (cell.prompt, cell.victims))
        short = {"quiet_s": PHASE_S, "recovery_s": PHASE_S, "null_s": PHASE_S, "shots": 1}
        chosen.append(msgspec.structs.replace(heaviest, **short))
    if loads:
        grid = max(loads, key=lambda cell: (cell.users, cell.prompt))
        short_grid = {"output": SHORT_OUTPUT, "requests": None, "seconds": 2 * PHASE_S}
        chosen.append(msgspec.structs.replace(grid, **short_grid))
    if mixes:
        mix = max(mixes, key=lambda cell: (cell.prompt, cell.rate))
        chosen.append(msgspec.structs.replace(mix, output=SHORT_OUTPUT, seconds=2 * PHASE_S))
    return chosen


async def _one(cell: AnyCell, seed: int) -> Resolution | None:
    seen: list[Request] = []
    async with _echo() as port:
        target = Target("127.0.0.1", port, "echo", context=CONTEXT)
        await drive(cell, target, seed=seed, record=seen.append, progress=lambda _: None)
        written = await asyncio.to_thread(_read_log, port)
    return resolution(cell.id, seen, written)


def resolution(
    cell: str, seen: Sequence[Request], written: Mapping[str, Sequence[int]]
) -> Resolution | None:
    """Compare arrivals with writes, by request id; None if no stream had two events."""
    late: list[int] = []
    grown: list[int] = []
    for request in seen:
        times = zip(written.get(request.id, ()), event_times_ns(request), strict=False)
        waits = [arrived - left for left, arrived in times]
        late += waits
        grown += [after - before for before, after in pairwise(waits)]
    if not grown:
        return None
    return Resolution(
        cell=cell,
        stall_ms=max(grown) / MS,
        late_p50_ms=(percentile(late, 50) or 0) / MS,
        late_p99_ms=sorted(late)[len(late) * 99 // 100] / MS,
        events=len(late),
    )


@contextlib.asynccontextmanager
async def _echo() -> AsyncIterator[int]:
    """The echo engine in a process of its own; its port."""
    engine = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "twolane.load.echo",
        str(os.getpid()),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is twolane's to handle
        env=os.environ | {"PYTHONPATH": import_path()},
    )
    assert engine.stdout is not None
    try:
        yield int(await engine.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            engine.kill()
        await engine.wait()


def _read_log(port: int) -> dict[str, list[int]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/log", timeout=10) as answer:
        return _log(answer.read())
