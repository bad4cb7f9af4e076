"""Ratios with their intervals: each compared figure of each arm against the reference, one axis.

Rules of this file: comparisons are `Facts.versus`'s. The shaded middle is the equivalence margin; a
dot without a bar is one block. A figure that enters no verdict has no ratio and is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twolane.analysis.compare import Comparison
from twolane.records import AnyCell
from twolane.report.facts import Facts, point_id, shown, workload
from twolane.report.markup import Markup, el, join
from twolane.report.metrics import Metric, ratio

MOST = 64.0  # ratios further out stand at the edge
APART = 0.12  # of the axis between two ticks
_ROUND = (1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50)


@dataclass(frozen=True)
class Row:
    cell: AnyCell
    metric: Metric
    arm: str
    found: Comparison
    ratio: float

    @property
    def ends(self) -> tuple[float, float]:
        low, high = self.found.low or self.ratio, self.found.high or self.ratio
        return max(low, 1 / MOST), min(high, MOST)

    @property
    def kind(self) -> str:
        outcome = self.found.outcome
        words = {"A better": "better", "B better": "worse", "equal": "equal"}
        return words.get(outcome, "open")


def rows(facts: Facts) -> list[Row]:
    return list(_rows(facts))


def _rows(facts: Facts) -> Iterator[Row]:
    for cell in facts.cells:
        for metric in shown(cell):
            for arm in facts.arms:
                if metric.compared and arm != facts.reference:
                    found = facts.versus(cell, metric, arm, facts.reference)
                    if found.ratio is not None and math.isfinite(found.ratio):
                        yield Row(cell, metric, arm, found, found.ratio)


def section(facts: Facts) -> Markup | None:
    found = rows(facts)
    if not found:
        return None
    reach = max(max(1 / low, high) for low, high in (row.ends for row in found))
    axis = math.log(max(reach, 1 + 2 * facts.margin)) * 1.06
    lede = (
        f"How many times {facts.reference}\u2019s figure, on a logarithmic axis: left is less. A "
        f"bar is the 95 % interval over blocks, the middle the margin of {facts.margin * 100:g} %. "
        "Green is better and red worse by verdict; grey cannot be told, or is one block."
    )
    return join(
        el("h3", "Ratios with their intervals"),
        el("p", lede, class_="lede"),
        el("div", [_group(facts, cell, found, axis) for cell in _cells(found)], _ticks(axis),
           class_="ratios"),
    )  # fmt: skip


def _cells(found: Sequence[Row]) -> list[AnyCell]:
    return list({row.cell.id: row.cell for row in found}.values())


def _group(facts: Facts, cell: AnyCell, found: Sequence[Row], axis: float) -> Markup:
    mine = [row for row in found if row.cell.id == cell.id]
    return el("div", el("h4", workload(cell)), [_row(facts, row, axis) for row in mine])


def _share(value: float, axis: float) -> float:
    return min(max(0.5 + math.log(value) / axis / 2, 0.0), 1.0)


def _pc(value: float, axis: float) -> str:
    return f"{_share(value, axis) * 100:.2f}%"


def _row(facts: Facts, row: Row, axis: float) -> Markup:
    low, high = row.ends
    told = ratio(row.ratio)
    between = f", 95 % interval {ratio(low)} to {ratio(high)}" if row.found.low else ""
    said = f"{row.metric.label}, {row.arm}: {told}{between}, {row.found.verdict}"
    edge = 1 + facts.margin
    left, right = _share(1 / edge, axis), _share(edge, axis)
    start, end = _share(low, axis), _share(high, axis)
    return el(
        "div",
        el("span", row.metric.label, " ", el("small", row.arm, class_="arm"), class_="who"),
        el(
            "span",
            el("i", class_="margin", style=_span(left, right)),
            el("i", class_="span", style=_span(start, end)) if row.found.low else None,
            el("i", class_="dot", style=f"left:{_pc(row.ratio, axis)}"),
            class_="lane",
            role="img",
            aria_label=said,
            title=said,
        ),
        el(
            "a",
            told,
            href=f"#{point_id(facts, row.cell, row.metric.key, row.arm)}",
            class_="much",
        ),
        class_=f"ratio {row.kind}",
    )


def _span(left: float, right: float) -> str:
    return f"left:{left * 100:.2f}%;width:{max(right - left, 0.001) * 100:.2f}%"


def _ticks(axis: float) -> Markup:
    """1 and round values on both sides that lie far enough apart for a phone."""
    chosen = [1.0]
    for value in _ROUND[1:]:
        near = _share(value, axis) - _share(chosen[-1], axis) < APART
        if not near and _share(value, axis) < 1 - APART / 3:
            chosen.append(value)
    both = sorted({*chosen, *(1 / v for v in chosen)})
    spans = [el("span", f"{v:.2g}\u00d7", style=f"left:{_pc(v, axis)}") for v in both]
    return el("div", el("div", spans, class_="ticks"), class_="axis", aria_hidden="true")
