"""What verdicts are worth: campaigns on golden engines in worlds whose truth is known.

Each campaign is a real one (see golden_fleet.py): `campaign.run` drives every run's cell through
twolane's load client into a results folder, `comparison` reads that folder. What is drawn is the
engines' pace. Time to the first token and time per token each have, on the log scale,
    - a block's part, 5 % (standard deviation), shared by its runs: the machine's day;
    - a run's own part, 2.5 %: it was started once;
    - each answer's own part, 5 %, which leaves 1.3 % in the median of 24.
Together runs of one arm differ by 2.8 %. For comparison: real ones differed by 0.4 to 0.9 % on two
quiet CPU cores, and by 3 to 12 % on two H200s with a very small model.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from tests.golden_engine import Pace
from tests.golden_fleet import in_process

from twolane import campaign as campaigns
from twolane import comparison
from twolane.analysis.compare import Comparison, Point
from twolane.analysis.measures import wilson
from twolane.clock import NS, now_ns
from twolane.config import Campaign, load_campaign, parse_cell
from twolane.records import NeedleCell

ARMS: Final = ("first", "second")
CELL: Final = "c4 in64 out8 n24"
GATE: Final = NeedleCell(id="needle 400", prompt=400, depths=(0.5,))
TTFT_S: Final = 0.024
GAP_S: Final = 0.003

NODE: Final = """
node: {platform: gpu, groups: {GROUP_A: [0], GROUP_B: [1]}}
models:
  needle:
    path: builtin:needle
    layouts: {on_a: {gpus: $GROUP_A}, on_b: {gpus: $GROUP_B}}
"""
CAMPAIGN: Final = """
name: verdicts
models: node.yaml
model: needle
context: 4096
arms:
  first: {layout: on_a, budget: 2048}
  second: {layout: on_b, budget: SECOND}
cells: [CELL]
"""


@dataclass(frozen=True)
class World:
    """What is true: by which factor the second arm and group B are slower, and the noise."""

    name: str
    blocks: int = 5
    second: float = 1.0
    group_b: float = 1.0
    swapped: bool = True
    of_block: float = 0.05
    of_run: float = 0.025
    of_answer: float = 0.05
    cell: str = CELL
    ttft_s: float = TTFT_S
    gap_s: float = GAP_S

    @property
    def truth(self) -> str:
        """What must be said in it: `none` of the arms is better, the first is, or `confounded`."""
        if self.group_b != 1 and not self.swapped:
            return "confounded"
        return "first" if self.second > 1 else "none"


WORLDS: Final = {
    world.name: world
    for world in (
        World("aa3", blocks=3),
        World("aa5"),
        World("planted", second=1.1),
        World("swapped", group_b=1.1),
        World("not-swapped", group_b=1.1, swapped=False),
    )
}


@dataclass(frozen=True)
class Drawn:
    """One campaign's paces: the same for the same world, seed and number."""

    world: World
    seed: int
    number: int

    def pace(self, arm: str, block: int, group: str) -> Pace:
        world = self.world
        slow = (world.second if arm == ARMS[1] else 1.0) * (
            world.group_b if group == "GROUP_B" else 1.0
        )
        return Pace(
            ttft_s=world.ttft_s * slow * self._part("ttft", arm, block),
            gap_s=world.gap_s * slow * self._part("gap", arm, block),
            knows=True,
            jitter=world.of_answer,
            seed=self._dice("answers", arm, block).getrandbits(32),
        )

    def log_ratio(self, metric: str, block: int) -> list[float]:
        """Log-ratio second / first that was drawn for a measure; empty where none was."""
        part = {"ttft_p50_ms": "ttft_s", "tpot_p50_ms": "gap_s"}.get(metric)
        if part is None:
            return []
        swap = self.world.swapped and block % 4 in (1, 2)
        groups = ("GROUP_B", "GROUP_A") if swap else ("GROUP_A", "GROUP_B")
        first, second = (
            getattr(self.pace(arm, block, group), part)
            for arm, group in zip(ARMS, groups, strict=True)
        )
        return [math.log(second / first)]

    def _part(self, what: str, arm: str, block: int) -> float:
        of_block = self._dice(what, "", block).gauss(0.0, self.world.of_block)
        of_run = self._dice(what, arm, block).gauss(0.0, self.world.of_run)
        return math.exp(of_block + of_run)

    def _dice(self, *of: str | int) -> random.Random:
        return random.Random(repr((self.world.name, self.seed, self.number, *of)))


# ----------------------------------------------------------------------------------- one played


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One measure's verdict; `better` is the arm that is called better. `logs` are the log-ratios
    second / first of the blocks that hold a valid point of both, `drawn` what they were drawn to
    be, less the answers' own parts; of throughput, which is not drawn, there are none."""

    outcome: str
    better: str | None
    ratio: float | None
    confounded: tuple[str, ...]
    logs: list[float]
    drawn: list[float] = []


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign: its verdicts by measure, and the codes of its points."""

    world: str
    seed: int
    number: int
    seconds: float
    points: int
    codes: dict[str, int]
    judged: dict[str, Judged]


async def play(world: World, seed: int, number: int, folder: Path, *, again: int = 0) -> Played:
    """Run one campaign of `world` under `folder` and hold its arms against each other.

    Runs with coded points are done `again` so often at most, as with `--resume --redo`.
    """
    began = now_ns()
    drawn = Drawn(world, seed, number)
    campaign = _campaign(world, seed * 100_000 + number)
    with in_process(lambda meta, group: drawn.pace(meta.arm, meta.block, group), folder / "locks"):
        outcome = await campaigns.run(campaign, folder, lambda _: None)
        codes = _codes(comparison.compare_folders(outcome.folder))
        while codes and again:
            again -= 1
            outcome = await campaigns.run(
                campaign, folder, lambda _: None, continued=True, redo=list(codes)
            )
            codes = _codes(comparison.compare_folders(outcome.folder))
    if outcome.failed:
        raise RuntimeError(f"{outcome.failed[0].id}: {outcome.failed[0].error}")
    compared = comparison.compare_folders(outcome.folder)
    return Played(
        world=world.name,
        seed=seed,
        number=number,
        seconds=round((now_ns() - began) / NS, 2),
        points=len(compared.facts.measured),
        codes=_codes(compared),
        judged={
            row.metric.key: _judged(
                row.against[0], compared.facts.points(row.cell, row.metric.key), drawn
            )
            for row in compared.rows
            if row.metric.compared
        },
    )


def _campaign(world: World, seed: int) -> Campaign:
    campaign = _written(2048 if world.second == 1 else 256)
    return replace(
        campaign,
        blocks=world.blocks,
        swap_groups=world.swapped,
        seed=seed,
        gates=(GATE,),
        cells=(parse_cell(world.cell),),
    )


@cache
def _written(second: int) -> Campaign:
    """The campaign as YAML; where a difference is planted, the second arm has another budget."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "node.yaml").write_text(NODE)
        path = folder / "verdicts.yaml"
        path.write_text(CAMPAIGN.replace("SECOND", str(second)).replace("CELL", CELL))
        return load_campaign(path)


def _codes(compared: comparison.Compared) -> dict[str, int]:
    """How many points have each code."""
    coded = compared.facts.coded()
    return dict(Counter(name for one in coded for name in {code.code for code in one.codes}))


def _judged(one: Comparison, points: Sequence[Point], drawn: Drawn) -> Judged:
    value = {(p.arm, p.block): math.log(p.value) for p in points if p.valid and p.value}
    spoilt = {point.block for point in points if not point.valid}
    blocks = sorted({block for _, block in value} - spoilt)
    return Judged(
        outcome=one.outcome,
        better={"A better": one.a, "B better": one.b}.get(one.outcome),
        ratio=one.ratio,
        confounded=one.confounded,
        logs=[value[ARMS[1], block] - value[ARMS[0], block] for block in blocks],
        drawn=[ratio for block in blocks for ratio in drawn.log_ratio(one.metric, block)],
    )


# ------------------------------------------------------------------------------------ all of them


@dataclass(frozen=True)
class Share:
    """`count` of `n`, with Wilson's 95 % interval."""

    count: int
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.count, self.n) or (0.0, 1.0)

    def __str__(self) -> str:
        low, high = self.interval
        share = self.count / self.n if self.n else 0.0
        return f"{share:.1%} ({low:.1%} to {high:.1%})"

    def as_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {"count": self.count, "of": self.n, "low": low, "high": high}


@dataclass(frozen=True)
class Worth:
    """One measure over the campaigns of one world.

    `false` are campaigns that call a wrong arm better, `found` those that call the right one so.
    `spread` is how much runs of one arm differed (standard deviation), `ratio` the median estimate,
    `off` how far measured log-ratios were from the drawn ones: mean and standard deviation.
    """

    measure: str
    outcomes: Mapping[str, int]
    false: Share
    found: Share
    confounded: Share
    spread: float | None
    ratio: float | None
    off: tuple[float, float] | None


@dataclass(frozen=True)
class Summary:
    world: World
    campaigns: int
    points: int
    codes: Mapping[str, int]
    measures: tuple[Worth, ...]
    any_false: Share  # of the campaigns: in at least one measure

    @property
    def faults(self) -> list[str]:
        """What is not as it must be: more than 5 % false, under 90 % found, not all confounded."""
        return [fault for one in self.measures for fault in self._faults(one)]

    def _faults(self, one: Worth) -> list[str]:
        wrong = []
        if one.false.count > 0.05 * one.false.n:
            wrong.append(f"{self.world.name}: {one.measure} falsely better in {one.false}")
        if self.world.truth == "first" and one.found.count < 0.9 * one.found.n:
            wrong.append(f"{self.world.name}: {one.measure} found in {one.found}")
        if self.world.truth == "confounded" and one.confounded.count < one.confounded.n:
            wrong.append(f"{self.world.name}: {one.measure} confounded in {one.confounded}")
        return wrong


def summarise(world: World, played: Sequence[Played]) -> Summary:
    """What the campaigns of one world are worth; they must be of that world."""
    codes: Counter[str] = Counter()
    for one in played:
        codes.update(one.codes)
    names = list(dict.fromkeys(name for one in played for name in one.judged))
    right = {"first": ARMS[0]}.get(world.truth)
    falsely = [any(_false(judged, right) for judged in one.judged.values()) for one in played]
    return Summary(
        world,
        len(played),
        sum(one.points for one in played),
        codes,
        tuple(_worth(name, [one.judged[name] for one in played], right) for name in names),
        Share(sum(falsely), len(played)),
    )


def _false(judged: Judged, right: str | None) -> bool:
    return judged.better not in (None, right)


def _worth(name: str, judged: Sequence[Judged], right: str | None) -> Worth:
    n = len(judged)
    variances = [float(np.var(one.logs, ddof=1)) for one in judged if len(one.logs) > 1]
    logs = [math.log(one.ratio) for one in judged if one.ratio]
    return Worth(
        name,
        Counter(one.outcome for one in judged),
        Share(sum(_false(one, right) for one in judged), n),
        Share(sum(right is not None and one.better == right for one in judged), n),
        Share(sum(bool(one.confounded) and one.better is None for one in judged), n),
        math.sqrt(float(np.mean(variances)) / 2) if variances else None,
        math.exp(float(np.median(logs))) if logs else None,
        _off(judged),
    )


def _off(judged: Sequence[Judged]) -> tuple[float, float] | None:
    errors = [
        a - b for one in judged if one.drawn for a, b in zip(one.logs, one.drawn, strict=True)
    ]
    return (float(np.mean(errors)), float(np.std(errors))) if errors else None
