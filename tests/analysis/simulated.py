"""Simulated campaigns: requests with realistic noise and a known effect, through the real analysis.

The noise of every time: the run 2 % (it was started once); the block 5 %, shared by all of its runs
(the machine's day); each prompt 10 %, shared by the arms of a block, which get the same prompts;
each request 10 %; each gap 10 %; all lognormal. One request in fifty is three times as slow (a
hiccup). Over 64 requests that makes 2.8 % between runs of one arm. For comparison: runs of one arm
of the real engines differed by 0.4 to 0.9 % on two quiet CPU cores, and by 3 to 12 % on two H200s
with a very small model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twolane.analysis.compare import Comparison, Point, compare
from twolane.analysis.confounds import between, confounds
from twolane.analysis.results import Faults, Results, Run
from twolane.analysis.stats import summarise
from twolane.clock import MS
from twolane.records import EngineMeta, GridCell, Request, RunMeta

CELL = GridCell(id="c4 in64 out16 n64", users=4, prompt=64, output=16, requests=64)


@dataclass(frozen=True)
class World:
    """What is true: how much slower an arm and a group are, as factors, and the noise."""

    arms: Mapping[str, float] = field(default_factory=lambda: {"a": 1.0, "b": 1.0})
    groups: Mapping[int, float] = field(default_factory=dict)
    blocks: int = 5
    swapped: bool = True
    of_run: float = 0.02
    of_block: float = 0.05
    of_prompt: float = 0.10
    of_request: float = 0.10
    of_gap: float = 0.10
    hiccup: float = 0.02


@dataclass(frozen=True)
class Simulated:
    results: Results
    points: tuple[Point, ...]

    def verdict(self, metric: str) -> Comparison:
        mine = [point for point in self.points if point.metric == metric]
        found = between(confounds(self.results), "a", "b")
        return compare(mine, "a", "b", lower_is_better=True, confounded=found)


def campaign(world: World, seed: int) -> Simulated:
    rng = np.random.default_rng(seed)
    runs: list[Run] = []
    points: list[Point] = []
    for block in range(world.blocks):
        prompts = np.exp(rng.normal(0, world.of_prompt, CELL.requests or 0))
        prompts *= math.exp(rng.normal(0, world.of_block))
        arms = list(world.arms) if block % 2 == 0 else list(world.arms)[::-1]
        for arm in arms:
            device = _device(world, arm, block)
            slow = world.arms[arm] * world.groups.get(device, 1.0)
            run = _run(arm, block, len(runs), device)
            runs.append(run)
            of_run = math.exp(rng.normal(0, world.of_run))
            requests = _requests(world, prompts * slow * of_run, rng)
            values = summarise(CELL, requests, None)
            points += [
                Point(arm, block, run.id, CELL.id, name, value)
                for name, value in values.items()
                if name in ("ttft_p50_ms", "tpot_p50_ms", "worst_gap_p50_ms")
            ]
    return Simulated(Results(Path("none"), tuple(runs), Faults()), tuple(points))


def _device(world: World, arm: str, block: int) -> int:
    """As plan.py places them: one group an arm, swapped in blocks 1 and 2 of every four."""
    at = list(world.arms).index(arm)
    return (at + (world.swapped and block % 4 in (1, 2))) % 2


def _run(arm: str, block: int, order: int, device: int) -> Run:
    name = f"{arm}-{block}"
    engine = EngineMeta(
        name="e0", role="both", group="AB"[device], devices=[device],
        url="", argv=[], env={}, log="",
    )  # fmt: skip
    meta = RunMeta(
        id=name, campaign="simulated", arm=arm, model="m", layout="one", context=1, block=block,
        order=order, seed=block, started_at="", boot="", config={}, config_hash="", versions={},
        host={}, cells=[CELL], engines=[engine], status="done",
    )  # fmt: skip
    return Run(Path(name), meta, Faults())


def _requests(world: World, slow: NDArray[np.float64], rng: np.random.Generator) -> list[Request]:
    count, gaps = CELL.requests or 0, CELL.output - 1
    each = slow * np.exp(rng.normal(0, world.of_request, count))
    each *= np.where(rng.random(count) < world.hiccup, 3.0, 1.0)
    first = (200 * MS * each).astype(int)
    between_events = 20 * MS * each[:, None] * np.exp(rng.normal(0, world.of_gap, (count, gaps)))
    return [
        Request(
            id=f"r{i}", cell=CELL.id, role="grid", index=i, send_ns=0, due_ns=0,
            first_ns=int(first[i]), last_ns=int(first[i]) + sum(row), gaps_ns=row,
            output_tokens=gaps + 1,
        )
        for i, row in enumerate(between_events.astype(int).tolist())
    ]  # fmt: skip
