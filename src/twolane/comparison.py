"""`twolane compare`: arms held against each other in every measure and service level, as data.

Rules of this file: it chooses pairs and joins what `analysis` and the report's facts define, so
that the terminal, the JSON and the page cannot disagree; it computes no statistic of its own. The
same results give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twolane.analysis import foreign
from twolane.analysis.answers import Attained
from twolane.analysis.compare import Comparison, Point, compare, noise_floor
from twolane.analysis.confounds import between
from twolane.analysis.foreign import Foreign
from twolane.analysis.prefixes import Prefixes
from twolane.analysis.results import Results, load, together
from twolane.errors import QuestionError
from twolane.records import AnyCell, GridCell, TraceCell
from twolane.report.facts import Facts, Figure, figure_of, shown, vanish
from twolane.report.metrics import Metric

FORMAT = 1
"""Of the JSON: raised where a field changes its meaning or goes."""


@dataclass(frozen=True)
class Row:
    """One measure in one cell: every arm's figure, and every arm against its reference."""

    cell: AnyCell
    metric: Metric
    figures: tuple[Figure, ...]
    against: tuple[Comparison, ...]
    floor: float | None
    foreign: tuple[tuple[Foreign, float], ...] = ()


@dataclass(frozen=True)
class Compared:
    """Everything that `twolane compare` says."""

    facts: Facts
    rows: tuple[Row, ...]
    levels: tuple[Row, ...]  # the share of requests that met a service level
    declared: tuple[str, ...]
    foreign: tuple[Foreign, ...] = ()
    no_floor: str = ""  # why there are no `floors`, where there are none

    @property
    def floors(self) -> list[float]:
        """What equal arms were apart in a block at most, of each compared measure that knows it."""
        return [row.floor for row in self.rows if row.floor is not None and row.against]

    @property
    def answered(self) -> bool:
        """Whether a single pair could be held against each other."""
        return any(one.ratio is not None for row in self.rows for one in row.against)


def compare_folders(
    first: Path,
    second: Path | None = None,
    *,
    against: str | None = None,
    floor_from: Path | None = None,
    declared: Sequence[str] = (),
    recompute: bool = False,
) -> Compared:
    """The arms in `first`, with those in `second` beside them.

    `second` may be another results folder, whose arms are held against their namesakes, or the
    file of another client. `against` is the reference of all others, the first arm by default;
    `floor_from` a folder that holds an A/A of the same cells; `declared` are confounds that are
    meant to differ. Raises QuestionError where the question cannot be asked of these.
    """
    results = load(first)
    others: list[Foreign] = []
    if second is not None and foreign.is_foreign(second):
        others = foreign.load(second)
    elif second is not None:
        beside = load(second)
        _refuse_a_copy(results, beside, second)
        results = together(results, beside)
    facts = Facts(results, recompute=recompute)
    floors = Facts(load(floor_from)) if floor_from is not None else None
    pairs = _pairs(results, against)
    known = [one.what for one in facts.confounds]
    if unknown := [name for name in declared if name not in known]:
        raise QuestionError(
            f"nothing differs that is called {unknown[0]!r}",
            place="--factor",
            remedy=f"one of: {', '.join(known) or 'nothing differs at all'}",
        )
    work = _Work(facts, pairs, declared, floors, others)
    no_floor = facts.no_floor if floors is None else f"{floors.no_floor}, in {floor_from}"
    rows, levels = tuple(work.rows()), tuple(work.levels())
    return Compared(facts, rows, levels, tuple(declared), tuple(others), no_floor)


def _refuse_a_copy(results: Results, beside: Results, place: Path) -> None:
    """Runs held against themselves would be equal, and their noise floor 0."""
    known = {run.id: run.meta for run in results.runs}
    if same := [run.id for run in beside.runs if known.get(run.id) == run.meta]:
        raise QuestionError(
            f"it holds {len(same)} of the same runs, {same[0]} first: a run cannot be held against "
            "itself",
            place=str(place),
            remedy="name the results of another campaign, or one folder alone to compare its arms",
        )


def _pairs(results: Results, against: str | None) -> list[tuple[str, str]]:
    """Every arm with the one that it is held against."""
    arms = results.arms
    if against is not None and against not in arms:
        raise QuestionError(
            f"no arm {against!r}",
            place=str(results.folder),
            remedy=f"one of {', '.join(arms) or 'none: no run can be read'}",
        )
    pairs = []
    for arm in arms:
        namesake = arm.rpartition("@")[0]
        reference = against or (namesake if namesake in arms else arms[0])
        if arm != reference:
            pairs.append((arm, reference))
    return pairs


@dataclass(frozen=True)
class _Work:
    facts: Facts
    pairs: Sequence[tuple[str, str]]
    declared: Collection[str]
    floors: Facts | None
    others: Sequence[Foreign]

    def rows(self) -> Iterable[Row]:
        for cell in self.facts.cells:
            for metric in shown(cell):
                figures = tuple(self.facts.figure(cell, metric.key, a) for a in self.facts.arms)
                points = self.facts.points(cell, metric.key)
                yield self._row(cell, metric, figures, points)

    def _row(
        self, cell: AnyCell, metric: Metric, figures: tuple[Figure, ...], points: Sequence[Point]
    ) -> Row:
        floor = self._floor(cell, metric, points, ())
        pairs = self.pairs if metric.compared else ()
        against = tuple(
            compare(
                [] if metric.may_vanish and vanish(points, a, b) else points,
                *(a, b),
                lower_is_better=metric.lower_is_better,
                margin=self.facts.margin,
                confounded=between(self.facts.confounds, a, b, self.declared),
                floor=self._floor(cell, metric, points, (a, b)),
            )
            for a, b in pairs
        )
        told = ((one, one.values.get(metric.key)) for one in self.others if _like(one, cell))
        beside = tuple((one, value) for one, value in told if value is not None)
        return Row(cell, metric, figures, against, floor, beside)

    def _floor(
        self, cell: AnyCell, metric: Metric, points: Sequence[Point], besides: Collection[str]
    ) -> float | None:
        """Of the named A/A campaign, else of the A/A pairs in here besides the pair itself."""
        if self.floors is not None:
            return self.floors.floor(cell, metric.key)
        pairs = [pair for pair in self.facts.alike if set(pair) != set(besides)]
        return noise_floor(points, pairs)

    def levels(self) -> Iterable[Row]:
        """The share of the requests sent that met a level, in closed-loop cells."""
        found: dict[tuple[str, str], list[Attained]] = {}
        for one in self.facts.attained:
            if isinstance(one.measured.cell, GridCell):
                found.setdefault((one.measured.cell.id, one.slo.name), []).append(one)
        for (_, name), met in found.items():
            metric = Metric(
                f"met_{name}_share",
                f"Share of requests within service level {name}",
                "",
                "requests that met every limit / requests sent",
                lower_is_better=False,
            )
            points = [_point(one, metric.key) for one in met]
            figures = tuple(figure_of(points, arm) for arm in self.facts.arms)
            yield self._row(met[0].measured.cell, metric, figures, points)


def _like(one: Foreign, cell: AnyCell) -> bool:
    """Whether another client's run may stand beside a cell: as many users, where it tells them."""
    if isinstance(cell, GridCell):
        return one.users is None or one.users == cell.users
    return isinstance(cell, TraceCell)


def _point(one: Attained, key: str) -> Point:
    run, codes = one.measured.run, one.measured.codes
    return Point(run.arm, run.block, run.id, one.measured.cell.id, key, one.level.share, codes)


# ------------------------------------------------------------------------------------- as JSON


def as_json(compared: Compared) -> dict[str, Any]:
    """One object for a machine. Infinite values are null with `"never": true`."""
    facts = compared.facts
    results = facts.results
    return {
        "format": FORMAT,
        "results": str(results.folder),
        "campaign": results.campaign,
        "runs": len(results.runs),
        "blocks": len(results.blocks),
        "margin": facts.margin,
        "no_aa_floor": None if compared.floors else compared.no_floor,
        "arms": [
            {"arm": one.name, "kind": one.kind, "layout": one.layout, "budget": one.budget,
             "devices": one.devices, "factor": one.factor,
             "runs": len(results.of_arm(one.name))}
            for one in facts.layouts.values()
        ],
        "lost_arms": list(results.lost),
        "measures": [_row(facts, row) for row in compared.rows],
        "service_levels": [_row(facts, row) for row in compared.levels],
        "most_users": [
            {"arm": one.arm.name, "requests": one.shape, "service_level": one.slo,
             "users": one.users, "per_device": one.per_device, "fails_at": one.beyond,
             "levels": one.levels, "missing": one.missing}
            for one in facts.answers.capacities
        ],
        "budget_by_prefix": [_prefixes(one) for one in facts.prefixes],
        "confounds": [
            {"what": one.what, "severity": one.severity, "declared": one.what in compared.declared,
             "values": dict(one.values), "why": one.why}
            for one in facts.confounds
        ],
        "excluded": [
            {"run": one.run.id, "arm": one.run.arm, "block": one.run.block, "cell": one.cell.id,
             "codes": list(one.codes)}
            for one in facts.coded()
        ],
        "other_clients": [
            {"source": one.source, "tool": one.tool, "users": one.users, "requests": one.requests,
             "failed": one.failed, "recomputed": one.recomputed,
             "values": {name: _finite(value) for name, value in one.values.items()},
             "definitions_that_differ": list(one.differences)}
            for one in compared.foreign
        ],
        "caveats": facts.caveats,
        "faults": [
            {"path": bad.path.removeprefix(f"{results.folder}/"), "line": bad.line, "why": bad.why}
            for bad in results.faults
        ],
    }  # fmt: skip


def _prefixes(one: Prefixes) -> dict[str, Any]:
    """c*(p) inside prompts; `verdict` is false where weights are made up and all points coded."""
    return {
        "layout": one.layout,
        "readers": one.victims,
        "verdict": one.verdict,
        "left_out": list(one.why),
        "grid": [
            {"prefix": held.prefix, "limit_ms": held.limit_ms, "outcome": held.outcome,
             "budget": held.held, "gap_ms": held.gap_ms, "fails_at": held.exceeded,
             "estimate": held.estimate, "shares_entry_or_exit": held.edge,
             "gaps_ms": {str(budget): gap for budget, gap in held.gaps_ms}, "why": held.why}
            for held in one.grid
        ],
        "around_the_chunks": [
            {"arm": edges.arm.name, "budget": edges.arm.budget, "prompt": edges.prompt,
             "chunks": edges.chunks, "before_the_first_ms": edges.entry_ms,
             "first_ms": edges.first_ms, "with_the_first_token_ms": edges.exit_ms}
            for edges in one.edges
        ],
    }  # fmt: skip


def _row(facts: Facts, row: Row) -> dict[str, Any]:
    return {
        "cell": row.cell.id,
        "measure": row.metric.key,
        "label": row.metric.label,
        "unit": row.metric.unit,
        "better": "lower" if row.metric.lower_is_better else "higher",
        "aa_floor": row.floor,
        "figures": [_told(facts, row.metric, one) for one in row.figures],
        "comparisons": [_comparison(one) for one in row.against],
        "other_clients": [
            {"source": one.source, "value": _finite(value), "verdict": None}
            for one, value in row.foreign
        ],
    }


def _told(facts: Facts, metric: Metric, one: Figure) -> dict[str, Any]:
    value = _finite(one.value)
    layout = facts.layouts.get(one.arm)
    shared = metric.key == "throughput_tok_s" and value is not None and layout and layout.devices
    return {
        "arm": one.arm,
        "value": value,
        "never": one.value is not None and math.isinf(one.value),
        "runs": one.points,
        "excluded": one.excluded,
        "codes": list(dict.fromkeys(code.code for code in one.codes)),
    } | ({"per_device": (value or 0.0) / layout.devices} if shared and layout else {})


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "a": one.a,
        "b": one.b,
        "verdict": one.verdict,
        "outcome": one.outcome,
        "ratio": one.ratio,
        "low": one.low,
        "high": one.high,
        "blocks": one.blocks,
        "left_out": one.left_out,
        "more_blocks": one.more_blocks,
        "confounded": list(one.confounded),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
