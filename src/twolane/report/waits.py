"""Every pause of the readers while the long prompt was prefilled, on one logarithmic axis.

Rules of this file: as in `timeline`: SVG marks stretched to the box, words in percent of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twolane.analysis.stats import median
from twolane.report.markup import Markup, details, el, scroll, table
from twolane.report.metrics import number, spoken
from twolane.report.timeline import Panel

WIDTH = 1000


@dataclass(frozen=True)
class LogAxis:
    low_ms: float
    high_ms: float

    @classmethod
    def over(cls, values_ms: Iterable[float]) -> LogAxis:
        """From a round value below all but the shortest twentieth, with room above the longest.

        Shorter ones stand at the left edge: only the long ones are of interest.
        """
        every = sorted(value for value in values_ms if value > 0) or [1.0, 10.0]
        return cls(_round_below(every[len(every) // 20]), every[-1] * 2.2)

    def share(self, value_ms: float) -> float:
        value = min(max(value_ms, self.low_ms), self.high_ms)
        return math.log(value / self.low_ms) / math.log(self.high_ms / self.low_ms)

    def percent(self, value_ms: float) -> str:
        return f"{self.share(value_ms) * 100:.3f}%"

    def ticks(self) -> list[float]:
        exponents = range(math.floor(math.log10(self.low_ms)), 9)
        every = (base * 10.0**e for e in exponents for base in (1, 3))
        return [value for value in every if self.low_ms <= value <= self.high_ms]


def _round_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(base * power for base in (1, 2, 5) if base * power <= value)


@dataclass(frozen=True)
class Row:
    """One arm's pauses, and what its null run showed."""

    arm: str
    words: str
    pauses_ms: tuple[float, ...]
    client_ms: float | None

    @property
    def worst_ms(self) -> float:
        return max(self.pauses_ms, default=0.0)


def rows(panels: Sequence[Panel], words: dict[str, str]) -> list[Row]:
    """One row an arm, in order, over all the shots given."""
    found = []
    for arm in dict.fromkeys(panel.arm for panel in panels):
        mine = [panel for panel in panels if panel.arm == arm]
        pauses = tuple(ms for p in mine if not p.null for ms in _pauses(p))
        alone = [ms for p in mine if p.null for ms in _pauses(p)]
        found.append(Row(arm, words[arm], pauses, max(alone, default=None)))
    return found


def _pauses(panel: Panel) -> list[float]:
    """Lengths in ms of the gaps that overlap the hit."""
    return [
        (step.end_s - step.start_s) * 1e3
        for strip in panel.strips
        for step in strip.steps
        if step.end_s > 0 and step.start_s < panel.hit_s
    ]


def figure(rows: Sequence[Row], threshold_ms: float) -> Markup:
    axis = LogAxis.over(ms for row in rows for ms in (*row.pauses_ms, row.client_ms or 0.0))
    return el(
        "div",
        [_drawn(row, axis, threshold_ms) for row in rows],
        _axis(axis),
        class_="waits",
    )


def _drawn(row: Row, axis: LogAxis, threshold_ms: float) -> Markup:
    said = (
        f"{row.arm}: {len(row.pauses_ms)} pauses, worst {spoken(row.worst_ms, 'ms')}, "
        f"client alone {spoken(row.client_ms, 'ms')}"
    )
    over = [ms for ms in row.pauses_ms if ms > threshold_ms]
    under = [ms for ms in row.pauses_ms if ms <= threshold_ms]
    client = el("path", d=_ticks([row.client_ms], axis), class_="client") if row.client_ms else None
    svg = el(
        "svg",
        el("title", said),
        el("path", d=_ticks(under, axis), class_="flowing"),
        el("path", d=_ticks(over, axis), class_="stalled"),
        client,
        viewBox=f"0 0 {WIDTH} 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
    )
    worst = el(
        "span",
        spoken(row.worst_ms, "ms"),
        class_="mark",
        style=f"left:{axis.percent(row.worst_ms)}",
    )
    limit = el("i", class_="limit", style=f"left:{axis.percent(threshold_ms)}")
    name = el("span", row.arm, class_="arm")
    return el("div", name, el("div", limit, svg, worst, class_="lane"), class_="row")


def _ticks(values: Iterable[float], axis: LogAxis) -> str:
    """One upright line a value; values that fall on the same thousandth of the axis share one."""
    places = sorted({round(axis.share(value) * WIDTH) for value in values})
    return "".join(f"M{place} 1V9" for place in places)


def _axis(axis: LogAxis) -> Markup:
    ticks = [
        el(
            "span",
            f"{t:g} ms" if t < 1000 else f"{t / 1000:g} s",
            style=f"left:{axis.percent(t)}",
        )
        for t in axis.ticks()
    ]
    return el("div", el("div", ticks, class_="ticks"), class_="axis", aria_hidden="true")


def as_table(rows: Sequence[Row], threshold_ms: float, summary: str) -> Markup:
    head = ("arm", "pauses", "median, ms", "worst, ms", "past the threshold", "client alone, ms")
    cells = [
        (
            row.arm,
            str(len(row.pauses_ms)),
            number(median(row.pauses_ms)),
            number(row.worst_ms),
            str(sum(ms > threshold_ms for ms in row.pauses_ms)),
            number(row.client_ms),
        )
        for row in rows
    ]
    return details(summary, scroll(table(head, cells, caption=summary), summary), class_="data")
