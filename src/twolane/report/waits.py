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
from twolane.report.timeline import Panel, Strip

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
    """One arm's pauses, those past their own stream's threshold apart, and its null run's worst.

    `threshold_ms` is the largest of the streams' thresholds.
    """

    arm: str
    flowing_ms: tuple[float, ...]
    stalled_ms: tuple[float, ...]
    threshold_ms: float
    client_ms: float | None
    excluded: bool = False  # drawn hollow, since a reason code spoils it

    @property
    def pauses_ms(self) -> tuple[float, ...]:
        return self.flowing_ms + self.stalled_ms

    @property
    def worst_ms(self) -> float:
        return max(self.pauses_ms, default=0.0)


def rows(panels: Sequence[Panel]) -> list[Row]:
    """One row an arm, in order, over all the shots given."""
    return [
        _row([p for p in panels if p.arm == arm]) for arm in dict.fromkeys(p.arm for p in panels)
    ]


def _row(panels: Sequence[Panel]) -> Row:
    strips = [(panel, strip) for panel in panels if not panel.null for strip in panel.strips]
    pauses = [(ms, strip.threshold_ms) for panel, strip in strips for ms in _pauses(panel, strip)]
    alone = [ms for p in panels if p.null for strip in p.strips for ms in _pauses(p, strip)]
    return Row(
        arm=panels[0].arm,
        flowing_ms=tuple(ms for ms, threshold in pauses if ms <= threshold),
        stalled_ms=tuple(ms for ms, threshold in pauses if ms > threshold),
        threshold_ms=max((strip.threshold_ms for _, strip in strips), default=0.0),
        client_ms=max(alone, default=None),
        excluded=all(panel.codes for panel in panels),
    )


def _pauses(panel: Panel, strip: Strip) -> list[float]:
    """Lengths in ms of the gaps that overlap the hit."""
    return [
        (step.end_s - step.start_s) * 1e3
        for step in strip.steps
        if step.end_s > 0 and step.start_s < panel.hit_s
    ]


def figure(rows: Sequence[Row]) -> Markup:
    axis = LogAxis.over(ms for row in rows for ms in (*row.pauses_ms, row.client_ms or 0.0))
    return el(
        "div",
        [_drawn(row, axis, [one.worst_ms for one in rows]) for row in rows],
        _axis(axis),
        class_="waits",
    )


def _drawn(row: Row, axis: LogAxis, beside: list[float]) -> Markup:
    worst, alone = (spoken(ms, "ms", beside=beside) for ms in (row.worst_ms, row.client_ms))
    said = f"{row.arm}: {len(row.pauses_ms)} pauses, worst {worst}, null run {alone}"
    client = el("path", d=_ticks([row.client_ms], axis), class_="client") if row.client_ms else None
    svg = el(
        "svg",
        el("title", said),
        el("path", d=_ticks(row.flowing_ms, axis), class_="flowing"),
        el("path", d=_ticks(row.stalled_ms, axis), class_="stalled"),
        client,
        viewBox=f"0 0 {WIDTH} 10",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
    )
    mark = el(
        "span",
        worst,
        class_="mark",
        style=f"left:{axis.percent(row.worst_ms)}",
    )
    limit = el("i", class_="limit", style=f"left:{axis.percent(row.threshold_ms)}")
    name = el("span", row.arm, class_="arm")
    return el(
        "div",
        name,
        el("div", limit, svg, mark, class_="lane"),
        class_="row excluded" if row.excluded else "row",
    )


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
            class_="minor" if f"{t:e}".startswith("3") else None,
        )
        for t in axis.ticks()
    ]
    return el("div", el("div", ticks, class_="ticks"), class_="axis", aria_hidden="true")


def as_table(rows: Sequence[Row], summary: str) -> Markup:
    head = (
        "arm",
        "pauses",
        "median, ms",
        "worst, ms",
        "stalls",
        "threshold, ms",
        "null run, ms",
    )
    cells = [
        (
            row.arm,
            str(len(row.pauses_ms)),
            number(median(row.pauses_ms)),
            number(row.worst_ms),
            str(len(row.stalled_ms)),
            number(row.threshold_ms),
            number(row.client_ms),
        )
        for row in rows
    ]
    return details(summary, scroll(table(head, cells, caption=summary), summary), class_="data")
