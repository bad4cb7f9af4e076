"""What the report says, before it is words or pictures: figures by arm, verdicts, shots.

Rules of this file: it chooses and joins what `analysis` found and computes nothing of its own. A
figure of an arm is the median over its runs whose point carries no reason code; where all carry
one it is the median of those, and is marked as excluded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from twolane import seal
from twolane.analysis import stats
from twolane.analysis.answers import Answers, Attained, answers, attained, busiest, gap_limits_ms
from twolane.analysis.arms import Arm, alike, arms
from twolane.analysis.arms import budget as budget_of
from twolane.analysis.compare import (
    MARGIN,
    Comparison,
    Equality,
    Point,
    compare,
    greedy_equality,
    noise_floor,
    why_no_floor,
)
from twolane.analysis.confounds import Confound, between, confounds
from twolane.analysis.points import Measured, measure
from twolane.analysis.prefixes import Prefixes, prefixes, shots
from twolane.analysis.results import Results, Run
from twolane.analysis.standing import caveats
from twolane.records import (
    AnyCell,
    Code,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    RunMeta,
    TraceCell,
)
from twolane.report.metrics import BY_KIND, NARROW, Metric, spoken


@dataclass(frozen=True)
class Figure:
    """One metric of one arm in one cell. `excluded` figures enter no verdict, `codes` say why."""

    arm: str
    value: float | None
    points: int
    codes: tuple[Code, ...] = ()
    excluded: bool = False
    measured: int = 0  # points with a value, coded ones too
    blocks: int = 0  # that `value` is the median over

    @property
    def partly(self) -> str:
        """`2 of 3 runs clean` where a code has taken some of the runs, else nothing."""
        if not self.codes or self.excluded:
            return ""
        return f"{self.points} of {self.measured} runs clean"


@dataclass(frozen=True)
class Facts:
    """Everything that is shown of `results`."""

    results: Results
    recompute: bool = False  # take every value from the requests, whatever was written down

    @cached_property
    def measured(self) -> list[Measured]:
        return measure(self.results, recompute=self.recompute)

    @cached_property
    def _points(self) -> dict[tuple[str, str], list[Point]]:
        """By cell and metric."""
        found: dict[tuple[str, str], list[Point]] = {}
        for measured in self.measured:
            for point in measured.points():
                found.setdefault((point.cell, point.metric), []).append(point)
        return found

    @cached_property
    def equalities(self) -> list[Equality]:
        return greedy_equality(self.results)

    @cached_property
    def confounds(self) -> list[Confound]:
        return confounds(self.results)

    @cached_property
    def caveats(self) -> list[str]:
        """What is lost, damaged, unsealed or unreadable, in sentences."""
        return caveats(self.results, self.measured)

    @cached_property
    def answers(self) -> Answers:
        return answers(self.results, self.measured, self.confounds, self.margin, self.attained)

    @cached_property
    def prefixes(self) -> list[Prefixes]:
        """c*(p) inside prompts, where engines' logs tell their iterations."""
        return prefixes(shots(self.measured), self.layouts, gap_limits_ms(self.results))

    @cached_property
    def attained(self) -> list[Attained]:
        """How far every run's cells met the campaign's service levels."""
        return attained(self.results, self.measured)

    @cached_property
    def layouts(self) -> dict[str, Arm]:
        """What each arm that started is made of."""
        return arms(self.results.runs)

    @cached_property
    def alike(self) -> list[tuple[str, str]]:
        """Pairs of arms that are told to run in the same way (A/A)."""
        return alike(self.layouts.values())

    @cached_property
    def cells(self) -> list[AnyCell]:
        """Cells that some run was driven through, in the order they first came."""
        return list({measured.cell.id: measured.cell for measured in self.measured}.values())

    @property
    def arms(self) -> tuple[str, ...]:
        return self.results.arms

    @cached_property
    def captions(self) -> dict[str, str]:
        """Each arm in words; of arms that run alike (A/A) the second says so."""
        twins = {b: f"{a} again, for the noise (A/A)" for a, b in reversed(self.alike)}
        return captions(self.results.runs) | twins

    @property
    def reference(self) -> str:
        """The arm that the others are held against: the one that the campaign names first."""
        return self.arms[0]

    @property
    def margin(self) -> float:
        given = self.results.runs[0].meta.config.get("margin") if self.results.runs else None
        return float(given) if isinstance(given, (int, float)) and 0 < given < 1 else MARGIN

    @property
    def interference(self) -> InterferenceCell | None:
        """The campaign's question: the interference cell with the longest prompt, the first of
        several. Shorter ones have their figures below; a budget that holds there may not here."""
        found = [cell for cell in self.cells if isinstance(cell, InterferenceCell)]
        return max(found, key=lambda cell: cell.prompt, default=None)

    @property
    def grid(self) -> GridCell | None:
        return busiest(self.cells)

    def figure(self, cell: AnyCell, metric: str, arm: str) -> Figure:
        return figure_of(self.points(cell, metric), arm)

    def versus(self, cell: AnyCell, metric: Metric, arm: str, reference: str) -> Comparison:
        """`arm` (A) against `reference` (B) over the blocks."""
        points = self.points(cell, metric.key)
        # Without the blocks that have no ratio the others would be a choice.
        vanishing = metric.may_vanish and vanish(points, arm, reference)
        return compare(
            [] if vanishing else points,
            arm,
            reference,
            lower_is_better=metric.lower_is_better,
            margin=self.margin,
            confounded=between(self.confounds, arm, reference),
            floor=self.floor(cell, metric.key, besides={arm, reference}),
        )

    def floor(self, cell: AnyCell, metric: str, *, besides: Collection[str] = ()) -> float | None:
        """What equal arms were apart in a block at most, as a ratio; None without such arms."""
        pairs = [pair for pair in self.alike if set(pair) != set(besides)]
        return noise_floor(self.points(cell, metric), pairs)

    def unsure(self, cell: AnyCell, metric: str, arm: str) -> float:
        """How far an arm's own null runs lie from 0 in a measure of theirs (`Metric.floor`), at
        most: what lies closer to 0, or two figures to each other, is nobody's doing."""
        values = [p.value for p in self.points(cell, metric) if p.arm == arm and not p.codes]
        return max((abs(value) for value in values if value is not None), default=0.0)

    def stalled(self, cell: InterferenceCell, arm: str) -> str:
        """`1 of 2 readers` that stalled with an arm in its first clean run; empty if unknown."""
        if (cell.id, arm) not in self._stalled:
            self._stalled[cell.id, arm] = _stalled(self, cell, arm)
        return self._stalled[cell.id, arm]

    @cached_property
    def _stalled(self) -> dict[tuple[str, str], str]:
        return {}

    @property
    def no_floor(self) -> str:
        """Why there is no noise floor, where there is none."""
        return why_no_floor(self.alike)

    def points(self, cell: AnyCell, metric: str) -> list[Point]:
        """Of every run and arm."""
        return self._points.get((cell.id, metric), [])

    def coded(self) -> list[Measured]:
        """Cells that enter no verdict."""
        return [measured for measured in self.measured if measured.codes]

    def codes(self, run: Run, cell: AnyCell) -> list[str]:
        """The reason codes of one cell of one run, each once."""
        mine = [m for m in self.coded() if m.run.id == run.id and m.cell.id == cell.id]
        return list(dict.fromkeys(code.code for measured in mine for code in measured.codes))

    @property
    def blocks(self) -> int:
        return len(self.results.blocks)


def _stalled(facts: Facts, cell: InterferenceCell, arm: str) -> str:
    run = next((r for r in facts.results.of_arm(arm) if not facts.codes(r, cell)), None)
    if run is None:
        return ""
    shots = stats.victims(run.requests("victim", "aggressor", "null", cell=cell.id))
    found = stats.stalled_readers(shots)
    return f"{found[0]} of {found[1]} reader{'s' * (found[1] != 1)}" if found else ""


def figure_of(points: Iterable[Point], arm: str) -> Figure:
    """The figure of `arm` in points of one cell and one metric."""
    mine = [p for p in points if p.arm == arm]
    clean = [p.value for p in mine if not p.codes and p.value is not None]
    codes = {(code.code, code.why): code for p in mine for code in p.codes}
    excluded = not clean and any(p.value is not None for p in mine)
    used = [p for p in mine if p.value is not None and (excluded or not p.codes)]
    return Figure(
        arm,
        stats.median([p.value for p in used if p.value is not None]),
        len(used),
        tuple(codes.values()),
        excluded,
        measured=sum(p.value is not None for p in mine),
        blocks=len({p.block for p in used}),
    )


def vanish(points: Iterable[Point], *arms: str) -> bool:
    """Whether some clean figure of the arms is zero or less, so that they have no ratio."""
    mine = [p for p in points if p.arm in arms and not p.codes]
    return any(p.value is not None and p.value <= 0 for p in mine)


def shown(cell: AnyCell) -> tuple[Metric, ...]:
    """The metrics shown of a cell of this kind."""
    return BY_KIND.get(str(cell.__struct_config__.tag), ())


def point_id(facts: Facts, cell: AnyCell, metric: str, arm: str) -> str:
    """The place on the page of one arm's figure, to be linked to: stable for the same results."""
    place = next((i for i, one in enumerate(facts.cells, 1) if one.id == cell.id), 0)
    return f"p-{slug(arm)}-{place}-{metric.replace('_', '-')}"


def slug(name: str) -> str:
    """A name as part of an id. No two names have the same: others than words get a digest."""
    plain = "".join(c if c.isalnum() else "-" for c in name)
    simple = name.replace("_", "").isalnum()
    return plain if simple else f"{plain}.{seal.of_bytes(name.encode())[:6]}"


def anchor(name: str) -> str:
    """A name as an id: itself where it is a word, as folders of runs are."""
    return name if re.fullmatch(r"\w[\w.:-]*", name, re.ASCII) else slug(name)


def excluded_id(facts: Facts, one: Measured) -> str:
    """The place on the page of a coded cell's reasons."""
    return f"x-{facts.coded().index(one) + 1}"


# ----------------------------------------------------------------------------------- wording


def users_of(cell: GridCell | None) -> str:
    """The load of a closed loop, to stand behind what was measured in it."""
    if cell is None:
        return ""
    users = f"{cell.users} user{'s' * (cell.users != 1)}"
    return f" of {cell.prompt:,} tokens, {users}"


def floor_range(facts: Facts, cell: AnyCell, metric: Metric) -> str:
    """What the arms' own null runs show of a measure: `15 to 19 ms`."""
    figures = [facts.figure(cell, metric.key, arm).value for arm in facts.arms]
    values = [value for value in figures if value is not None]
    low, high = (spoken(end(values), metric.unit, beside=values) for end in (min, max))
    return high if low == high else f"{low.partition(NARROW)[0]} to {high}"


def over_blocks(figures: Iterable[Figure]) -> str:
    """How many blocks figures are medians over: `3 blocks`, `2 to 3 blocks`."""
    counts = sorted({one.blocks for one in figures if one.value is not None}) or [0]
    least, most = counts[0], counts[-1]
    some = f"{least}" if least == most else f"{least} to {most}"
    return f"{some} block{'s' * (most != 1)}"


def workload(cell: AnyCell) -> str:
    """A cell in words."""
    match cell:
        case InterferenceCell():
            readers = f"{_count(cell.victims)} reader{'s' * (cell.victims != 1)}".capitalize()
            words = f"{readers}, then one prompt of {cell.prompt:,} tokens"
        case GridCell():
            sizes = f"prompts of {cell.prompt:,}, answers of {cell.output:,} tokens"
            words = f"{cell.users} user{'s' * (cell.users != 1)}, {sizes}"
        case FreshCell():
            words = f"New prompts of {cell.prompt:,} tokens, one at a time"
        case RampCell():
            users = f"{_count(cell.users)} conversation{'s' * (cell.users != 1)}".capitalize()
            words = f"{users} growing to {cell.prompt:,} tokens in {cell.turns} turns"
        case MixCell():
            long = f", {cell.share:.0%} of {cell.prompt:,}" if cell.share else ""
            words = f"{cell.rate:g} requests a second of {cell.short:,} tokens{long}"
        case TraceCell():
            words = f"{cell.requests:,} requests of {Path(cell.path).name}"
        case NeedleCell():
            words = cell.id
    return words


def describe(meta: RunMeta) -> str:
    """An arm in words, from the engines as they ran: `two copies, budget 2,048`.

    The budget is held to its number by a no-break space.
    """
    roles = [engine.role for engine in meta.engines]
    if not roles:
        return meta.layout
    budget = budget_of(meta.engines)
    if "prefill" in roles or "decode" in roles:
        split = f"split, {roles.count('prefill')} prefill + {roles.count('decode')} decode"
        return f"{split}, budget\N{NO-BREAK SPACE}{budget:,}" if budget else split
    copies = "one engine" if len(roles) == 1 else f"{_count(len(roles))} copies"
    return f"{copies}, budget\N{NO-BREAK SPACE}{budget:,}" if budget else copies


def captions(runs: Iterable[Run]) -> dict[str, str]:
    """Each arm in words, to stand beside its name: two may read alike."""
    words: dict[str, str] = {}
    for run in runs:
        words.setdefault(run.arm, describe(run.meta))
    return words


def descriptions(runs: Iterable[Run]) -> dict[str, str]:
    """Each arm in words; its bare name where two arms would read alike."""
    words = captions(runs)
    return {
        arm: text if list(words.values()).count(text) == 1 else arm for arm, text in words.items()
    }


def inside(words: str) -> str:
    """`two copies, budget 2,048` inside a list that has commas of its own."""
    if words.startswith("split"):
        return "the split"
    return words.replace(", budget", " at budget")


def layout(arm: Arm) -> str:
    """An arm's layout without its knobs: `two copies`, `one engine`, `the split`."""
    if arm.split:
        return "the split"
    return "one engine" if arm.engines == 1 else f"{_count(arm.engines)} copies"


def _count(n: int) -> str:
    small = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
    return small[n] if n < len(small) else str(n)
