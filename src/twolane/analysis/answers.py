"""The questions that a campaign is run for, each with its answer and what is missing for a better.

Rules of this file: it asks `frontier`, `capacity` and `crossover` over everything that a results
folder holds, and decides nothing itself. Every answer is typed; words are the report's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twolane.analysis.arms import arms
from twolane.analysis.capacity import Capacity, Level, Slo, capacity, levels, readers, slos
from twolane.analysis.compare import MARGIN
from twolane.analysis.confounds import Confound
from twolane.analysis.crossover import Alone, Cost, Crossover, alone, costs, crossovers
from twolane.analysis.evidence import Evidence
from twolane.analysis.frontier import (
    GAP,
    GAP_LIMITS_MS,
    BudgetLimit,
    Place,
    budget_limits,
    frontier,
)
from twolane.analysis.points import Measured
from twolane.analysis.results import Results
from twolane.records import AnyCell, GridCell, InterferenceCell

READERS = tuple(
    Slo(f"no pause over {limit:g} ms", gap_ms=limit, share=1.0) for limit in GAP_LIMITS_MS
)


@dataclass(frozen=True)
class Frontier:
    """Every arm's pause against the long prompt's first token, in one interference cell."""

    cell: InterferenceCell
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Answers:
    frontiers: tuple[Frontier, ...]
    limits: tuple[BudgetLimit, ...]
    alone: tuple[Alone, ...]
    crossovers: tuple[Crossover, ...]
    costs: tuple[Cost, ...]
    capacities: tuple[Capacity, ...]


def evidence(
    results: Results,
    measured: Iterable[Measured],
    differences: Sequence[Confound] = (),
    margin: float = MARGIN,
) -> Evidence:
    points = [point for one in measured for point in one.points()]
    return Evidence(points, arms(results.runs), margin, differences)


def answers(
    results: Results,
    measured: Sequence[Measured],
    differences: Sequence[Confound] = (),
    margin: float = MARGIN,
    met: Sequence[Attained] | None = None,
) -> Answers:
    """Every answer that `results` allow; `met` is `attained`'s, where the caller has it already."""
    known = evidence(results, measured, differences, margin)
    cells: list[AnyCell] = list({one.cell.id: one.cell for one in measured}.values())
    shots = [cell for cell in cells if isinstance(cell, InterferenceCell)]
    grid = busiest(cells)
    return Answers(
        frontiers=tuple(Frontier(c, tuple(frontier(known, c, grid))) for c in shots),
        limits=tuple(budget_limits(known, cells)),
        alone=tuple(alone(known, c, limit) for c in shots for limit in GAP_LIMITS_MS),
        crossovers=tuple(crossovers(known, cells)),
        costs=tuple(cost for c in shots for cost in costs(known, c, grid)),
        capacities=tuple(_capacities(attained(results, measured) if met is None else met, known)),
    )


def busiest(cells: Iterable[AnyCell]) -> GridCell | None:
    """The closed loop with most users, the first of several: what a layout costs is told there."""
    grids = [cell for cell in cells if isinstance(cell, GridCell)]
    return max(grids, key=lambda cell: cell.users, default=None)


Key = tuple[str, str, str]
"""An arm, a shape of request, a service level."""


@dataclass(frozen=True)
class Attained:
    """How far one run's cell met one service level."""

    measured: Measured
    shape: str
    slo: Slo
    level: Level


def attained(results: Results, measured: Iterable[Measured]) -> list[Attained]:
    """Every closed-loop and interference cell under every service level; reads the requests of the
    closed-loop ones, once."""
    asked = slos(results.runs[0].meta.config) if results.runs else ()
    return [Attained(one, *found) for one in measured for found in _levels(one, asked)]


def gap_limits_ms(results: Results) -> tuple[float, ...]:
    """The limits on a reader's pause that a campaign is asked about: ours and its own."""
    own = slos(results.runs[0].meta.config) if results.runs else ()
    return tuple(sorted({*GAP_LIMITS_MS, *(one.gap_ms for one in own if one.gap_ms is not None)}))


def _capacities(met: Iterable[Attained], known: Evidence) -> Iterable[Capacity]:
    levels: dict[Key, list[Level]] = {}
    by_name: dict[str, Slo] = {}
    for one in met:
        levels.setdefault((one.measured.run.arm, one.shape, one.slo.name), []).append(one.level)
        by_name[one.slo.name] = one.slo
    for (arm, shape, name), runs in levels.items():
        if arm in known.arms:
            yield capacity(by_name[name], known.arms[arm], shape, runs)


def _levels(one: Measured, asked: Sequence[Slo]) -> Iterable[tuple[str, Slo, Level]]:
    cell, codes = one.cell, tuple(dict.fromkeys(code.code for code in one.codes))
    if isinstance(cell, InterferenceCell):
        gap = one.values.get(GAP)
        shape = f"readers beside a prompt of {cell.prompt:,}"
        for slo in READERS if gap is not None else ():
            yield shape, slo, readers(cell.victims, gap or 0.0, slo, codes)
    elif isinstance(cell, GridCell):
        pauses = any(slo.gap_ms is not None for slo in asked)
        requests = one.run.requests("grid", cell=cell.id, gaps=pauses)
        shape = f"prompts of {cell.prompt:,}, answers of {cell.output:,}"
        for slo, found in zip(asked, levels(cell.users, requests, asked, codes), strict=True):
            yield shape, slo, found
