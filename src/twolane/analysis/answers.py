"""The questions that a campaign is run for, each with its answer and what is missing for a better.

Rules of this file: it asks `frontier`, `capacity` and `crossover` over everything that a results
folder holds, and decides nothing itself. Every answer is typed; words are the report's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twolane.analysis.arms import arms
from twolane.analysis.capacity import Capacity, Level, Slo, capacity, level, readers, slos
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
) -> Answers:
    """Every answer that `results` allow; requests of closed-loop cells are read once."""
    known = evidence(results, measured, differences, margin)
    cells: list[AnyCell] = list({one.cell.id: one.cell for one in measured}.values())
    shots = [cell for cell in cells if isinstance(cell, InterferenceCell)]
    grid = next((cell for cell in cells if isinstance(cell, GridCell)), None)
    return Answers(
        frontiers=tuple(Frontier(c, tuple(frontier(known, c, grid))) for c in shots),
        limits=tuple(budget_limits(known, cells)),
        alone=tuple(alone(known, c, limit) for c in shots for limit in GAP_LIMITS_MS),
        crossovers=tuple(crossovers(known, cells)),
        costs=tuple(cost for c in shots for cost in costs(known, c, grid)),
        capacities=tuple(_capacities(results, measured, known)),
    )


Key = tuple[str, str, str]
"""An arm, a shape of request, a service level."""


def _capacities(
    results: Results, measured: Iterable[Measured], known: Evidence
) -> Iterable[Capacity]:
    asked = slos(results.runs[0].meta.config) if results.runs else ()
    levels: dict[Key, list[Level]] = {}
    by_name = {slo.name: slo for slo in (*asked, *READERS)}
    for one in measured:
        for shape, slo, found in _levels(one, asked):
            levels.setdefault((one.run.arm, shape, slo.name), []).append(found)
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
        requests = list(one.run.requests("grid", cell=cell.id, gaps=pauses))
        shape = f"prompts of {cell.prompt:,}, answers of {cell.output:,}"
        for slo in asked:
            yield shape, slo, level(cell.users, requests, slo, codes)
