"""The budget frontier: worst pause against what an arm costs, the split on the same axes.

Rules of this file: places are `analysis.frontier`'s. Arms that differ in the budget alone are
joined by a line; a coded arm is hollow and joined to nothing; whiskers span the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from twolane.analysis.answers import Frontier
from twolane.analysis.evidence import Seen
from twolane.analysis.frontier import GAP, GAP_LIMITS_MS, Place
from twolane.report.facts import Facts, point_id, workload
from twolane.report.markup import Markup, details, el, join, scroll, table
from twolane.report.metrics import number, spoken
from twolane.report.plot import Box, Line, Mark, Scale, Spot, milliseconds

OPEN = 3  # frontiers that are shown at once; more are folded away


def section(facts: Facts) -> Markup | None:
    """One figure an interference cell; None where fewer than two arms can be placed."""
    found = [one for one in facts.answers.frontiers if len(one.places) > 1]
    if not found:
        return None
    lede = (
        "Both axes are logarithmic. Lower is a shorter pause. Further left the long prompt waits "
        "less; further right more tokens are made. A line joins arms that differ in the token "
        "budget alone, a diamond is a split. Hollow is coded and decides nothing; half filled, "
        "some of its runs are coded and left out. Whiskers span the runs."
    )
    drawn = [_figure(facts, one, again=one is not found[0]) for one in found]
    beside = el("div", drawn[1:OPEN], class_="plots") if len(drawn) > 1 else None
    folded = el("div", drawn[OPEN:], class_="plots")
    rest = details(f"{len(drawn) - OPEN} more", folded) if len(drawn) > OPEN else None
    return join(el("p", lede, class_="lede"), drawn[0], beside, rest)


def _figure(facts: Facts, one: Frontier, *, again: bool) -> Markup:
    """Throughput is that of the one grid cell: against the first cell's pauses it is told once."""
    gaps = [v for place in one.places for v in _values(place.gap)]
    y = Scale.over([*gaps, *GAP_LIMITS_MS])
    axes = AXES[:1] if again else AXES
    boxes = [
        _box(facts, one, y, axis) for axis in axes if any(axis.of(p).middle for p in one.places)
    ]
    return el(
        "div",
        el("h3", workload(one.cell)),
        el("div", boxes, class_="plots"),
        _as_table(one),
        class_="frontier",
    )


def _values(seen: Seen) -> tuple[float, ...]:
    return seen.values or seen.spoiled


@dataclass(frozen=True)
class Axis:
    """What a pause is held against."""

    of: Callable[[Place], Seen]
    title: str
    unit: str


AXES = (
    Axis(lambda place: place.ttft, "first token of the long prompt", "ms"),
    Axis(lambda place: place.throughput, "throughput, tokens/s", "tokens/s"),
)


def _box(facts: Facts, one: Frontier, y: Scale, axis: Axis) -> Markup:
    title, unit = axis.title, axis.unit
    if unit != "ms" and facts.grid is not None:
        title = f"{title}, {facts.grid.users} user{'s' * (facts.grid.users != 1)}"
    known = [(p, x) for p in one.places if (x := axis.of(p).middle) and p.gap.middle]
    said = f"Worst pause against {title}, {len(known)} arms, {workload(one.cell)}"
    more = "" if unit == "ms" else ", more is better"
    return Box(
        x=Scale.over([x for _, x in known]),
        y=y,
        x_title=f"{title}{more}",
        y_title="worst pause of a reader",
        x_words=_words(unit),
        y_words=_words("ms"),
        said=said,
        spots=[_spot(facts, one, place, x, unit) for place, x in known],
        lines=_lines(known, {b for _, b in facts.alike}),
        marks=[Mark(limit, f"{limit:g} ms") for limit in GAP_LIMITS_MS],
    ).drawn()


def _words(unit: str) -> Callable[[float], str]:
    return milliseconds if unit == "ms" else lambda v: f"{v:,.0f}"


def _spot(facts: Facts, one: Frontier, place: Place, x: float, unit: str) -> Spot:
    arm, gap = place.arm, place.gap.middle or 0.0
    codes = f", {_left_out(place)}: {', '.join(place.gap.codes)}" if place.gap.codes else ""
    budget = f", budget {arm.budget:,}" if arm.budget else ""
    tip = (
        f"{arm.name}{budget}, {arm.devices} device{'s' * (arm.devices != 1)}: "
        f"worst pause {spoken(gap, 'ms')}, {spoken(x, unit)}{codes}"
    )
    kind = f"{'split' if arm.split else 'budget'}{_coded(place)}"
    values = _values(place.gap)
    return Spot(
        x,
        gap,
        arm.name,
        tip,
        f"#{point_id(facts, one.cell, GAP, arm.name)}",
        kind,
        (min(values), max(values)),
    )


def _coded(place: Place) -> str:
    """How a point is drawn whose runs carry codes: all of them, or some."""
    if not place.clean:
        return " hollow"
    return " partly" if place.gap.spoiled else ""


def _left_out(place: Place) -> str:
    runs = len(place.gap.values), len(place.gap.spoiled)
    return f"{runs[1]} of {sum(runs)} runs left out" if place.clean else "excluded"


def _lines(known: Sequence[tuple[Place, float]], twins: Collection[str]) -> list[Line]:
    """Clean aggregated arms that differ in the budget alone, by budget; of arms that run alike
    (A/A) the first alone."""
    series: dict[tuple[str, tuple[str, ...]], list[tuple[float, float]]] = {}
    for place, x in known:
        arm = place.arm
        if not arm.split and arm.budget and place.clean and arm.name not in twins:
            points = series.setdefault((arm.layout, arm.others), [])
            points.append((x, place.gap.middle or 0.0))
    return [Line(points) for points in series.values() if len(points) > 1]


def _as_table(one: Frontier) -> Markup:
    head = (
        "arm",
        "budget",
        "devices",
        "worst pause, ms",
        "first token of the long prompt, ms",
        "throughput, tokens/s",
        "efficient",
        "codes",
    )
    rows = [
        (
            place.arm.name,
            f"{place.arm.budget:,}" if place.arm.budget else "\N{EN DASH}",
            str(place.arm.devices),
            _told(place.gap),
            _told(place.ttft),
            _told(place.throughput),
            "yes" if place.efficient else "no",
            f"{', '.join(place.gap.codes)} ({_left_out(place)})" if place.gap.codes else "",
        )
        for place in one.places
    ]
    summary = "In numbers, one figure a run"
    caption = f"The frontier in numbers: {workload(one.cell)}"
    inside = table(head, rows, caption=caption, class_="cards")
    return details(summary, scroll(inside, caption), class_="data")


def _told(seen: Seen) -> str:
    return ", ".join(number(v) for v in _values(seen)) or "\N{EN DASH}"
