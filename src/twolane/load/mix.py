"""An open loop: requests are sent when they fall due, whether or not the server keeps up.

Rules of this file: every moment is drawn from the seed beforehand, and all bodies are bytes
before the first one. Short requests are sent and read by worker VICTIMS, long ones by OTHERS.
Arrivals begin before the window does, and those do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from twolane import arrivals, clock
from twolane.clock import NS
from twolane.load.crew import Crew
from twolane.load.orders import Ask
from twolane.load.workloads import LEAD_NS, OTHERS, VICTIMS, Outcome, Say
from twolane.records import MixCell, Role

WARM_SHARE: Final = 0.2
"""Warm-up as a share of the window: long enough that in-flight has settled for answers of up to
a fifth of it, and the steadiness of the window is checked besides."""


@dataclass(frozen=True, slots=True)
class Due:
    """One request and when it is to be sent, nanoseconds after the first moment."""

    ask: Ask
    at_ns: int
    worker: int


async def run(cell: MixCell, crew: Crew, prefix: str, say: Say, *, seed: int) -> Outcome:
    """All of the schedule, and every answer to it."""
    warm_ns = round(cell.seconds * WARM_SHARE * NS)
    window = (warm_ns, warm_ns + round(cell.seconds * NS))
    return await send_all(schedule(cell, prefix, seed), window, crew, say)


async def send_all(
    planned: Sequence[Due], window: tuple[int, int], crew: Crew, say: Say
) -> Outcome:
    """Send each request at its moment; `window` is in nanoseconds after the first moment."""
    say("making prompts", None, None)
    for worker in (OTHERS, VICTIMS):
        if asks := [due.ask for due in planned if due.worker == worker]:
            await crew.prepare(worker, asks)
    begin_ns = clock.now_ns() + LEAD_NS
    for due in planned:
        crew.fire(due.worker, [due.ask.key], begin_ns + due.at_ns)
    for phase, until_ns in zip(("warm-up", "window"), window, strict=True):
        say(phase, len(crew.done), len(planned))
        await crew.until(lambda: len(crew.done) == len(planned), begin_ns + until_ns)
    say("tail", len(crew.done), len(planned))
    await crew.until(lambda: len(crew.done) == len(planned))
    return Outcome((begin_ns + window[0], begin_ns + window[1]))


def schedule(cell: MixCell, prefix: str, seed: int) -> list[Due]:
    """Every request of the cell in the order of its moment."""
    seconds = cell.seconds * (1 + WARM_SHARE)
    moments = arrivals.due_ns("poisson", cell.rate, seconds, seed=seed)
    warm_ns = round(cell.seconds * WARM_SHARE * NS)
    is_long = np.random.default_rng([seed, 1]).random(len(moments)) < cell.share
    numbered = enumerate(zip(moments, is_long.tolist(), strict=True))
    return [
        Due(_ask(cell, prefix, key, warm=at < warm_ns, big=big), at, OTHERS if big else VICTIMS)
        for key, (at, big) in numbered
    ]


def _ask(cell: MixCell, prefix: str, key: int, *, warm: bool, big: bool) -> Ask:
    role: Role = "warmup" if warm else "long" if big else "short"
    return Ask(
        key=key,
        id=f"{prefix}-{role}-{key}",
        cell=cell.id,
        role=role,
        index=key,
        prompt=cell.prompt if big else cell.short,
        output=cell.output,
    )
