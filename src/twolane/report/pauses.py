"""The bars of the first screen: worst pause, time stalled and tokens lost, one row an arm.

Rules of this file: ratios are those of the table, over the campaign's first arm, and stand with
their interval and verdict; a bar is hollow where a reason code spoils it. A tick is the arm's own
null run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twolane.records import InterferenceCell
from twolane.report.facts import Facts, Figure, over_blocks, point_id, vanish
from twolane.report.figures import brief, versus
from twolane.report.losses import LOST, STALLED
from twolane.report.markup import Markup, el, join
from twolane.report.metrics import INTERFERENCE, Metric, spoken

WORST, NULL, NULL_LOST = INTERFERENCE[0], INTERFERENCE[1].key, INTERFERENCE[4].key


@dataclass(frozen=True)
class Measure:
    """One group of bars; `null` is the key of what the null run shows of it."""

    metric: Metric
    title: str
    null: str


MEASURES = (
    Measure(WORST, "worst pause", NULL),
    Measure(STALLED, "time stalled", "null_stalled_s"),
    Measure(LOST, "tokens lost", NULL_LOST),
)


def bars(facts: Facts, cell: InterferenceCell, won: str | None) -> Markup | None:
    """The worst pauses; `won` is the arm that was chosen, if one was."""
    drawn = _group(facts, cell, MEASURES[0], won)
    return el("figure", drawn, class_="pauses", id="verdict") if drawn else None


def losses(facts: Facts, cell: InterferenceCell) -> Markup | None:
    """Time stalled and tokens lost, and how all of these bars are to be read."""
    groups = [one for m in MEASURES[1:] if (one := _group(facts, cell, m, None)) is not None]
    if not groups:
        return None
    note = el("p", _note(facts, cell), class_="note")
    return el("figure", el("div", groups, class_="pair"), note, class_="pauses losses")


def _note(facts: Facts, cell: InterferenceCell) -> str:
    """How the bars are to be read; what none of them shows is not explained."""
    told = [
        "The tick in a bar is the arm\u2019s own null run: what client and machine add when no "
        "prompt is sent."
    ]
    if any((facts.figure(cell, STALLED.key, arm).value or 0) > 0 for arm in facts.arms):
        told.append(
            "A stall is a pause over 50 ms and over three times the reader\u2019s usual gap; they "
            "are summed for the reader that had most."
        )
    if facts.blocks < 2:
        return " ".join(told)
    if facts.answers.limits:
        told.append(
            "Bars are medians; answers about budgets, below, go by the longest pause of all blocks."
        )
    clean = [arm for arm in facts.arms if not facts.figure(cell, WORST.key, arm).excluded]
    if len(clean) > 1:
        told.append(
            f"A ratio to {facts.reference} is taken in each block, and the median of them shown "
            "with its 95 % interval, so it can differ from the quotient of the two bars."
        )
    return " ".join(told)


def over(facts: Facts, figures: Sequence[Figure]) -> str:
    """How the runs of an arm became one figure."""
    return "one block" if facts.blocks == 1 else f"median of {over_blocks(figures)}"


def _group(facts: Facts, cell: InterferenceCell, one: Measure, won: str | None) -> Markup | None:
    figures = [facts.figure(cell, one.metric.key, arm) for arm in facts.arms]
    seen = [figure for figure in figures if figure.value is not None]
    if not seen:
        return None
    whose = "The reader\u2019s" if cell.victims == 1 else "The readers\u2019"
    while_ = f" while a {cell.prompt:,}-token prompt was prefilled" if one.metric is WORST else ""
    caption = f"{whose} {one.title}{while_}"
    rows = [_row(facts, cell, one, figure, seen, won=figure.arm == won) for figure in seen]
    head = el("figcaption", caption, el("small", f", {over(facts, seen)}"))
    return el("div", head, rows, class_="group")


def _row(
    facts: Facts,
    cell: InterferenceCell,
    one: Measure,
    figure: Figure,
    seen: Sequence[Figure],
    *,
    won: bool,
) -> Markup:
    metric = one.metric
    beside = [other.value or 0.0 for other in seen]
    value, most = figure.value or 0.0, max(beside) if max(beside) > 0 else 1.0
    null = facts.figure(cell, one.null, figure.arm).value
    words = facts.captions[figure.arm]
    told = spoken(value, metric.unit, beside=beside)
    alone = "" if null is None else f", null run {spoken(null, metric.unit, beside=beside)}"
    codes = list(dict.fromkeys(code.code for code in figure.codes))
    left_out = ", excluded" if figure.excluded else ""
    said = f"{figure.arm}, {words}: {one.title} {told}{alone}{left_out}"
    named = join(" ", el("small", words)) if metric is WORST else None
    tick = None if null is None else el("i", class_="tick", style=f"left:{_share(null, most)}")
    return el(
        "div",
        el("span", el("b", figure.arm, class_="arm"), named, class_="who"),
        el(
            "span",
            el("span", class_="fill", style=f"width:{_share(value, most)}"),
            tick,
            class_="track",
            role="img",
            aria_label=said,
            title=said,
        ),
        el(
            "span",
            el(
                "a",
                el("s", told) if figure.excluded else told,
                href=f"#{point_id(facts, cell, metric.key, figure.arm)}",
                class_="much",
            ),
            [el("a", code, href="#excluded", class_="code") for code in codes],
            _stands(facts, cell, metric, figure),
            class_="told",
        ),
        class_="pause"
        + " excluded" * figure.excluded
        + " partly" * bool(figure.partly)
        + " best" * (won and metric is WORST),
    )


def _share(value: float, most: float) -> str:
    return f"{min(max(value / most, 0.002), 1.0) * 100:.2f}%"


def _stands(facts: Facts, cell: InterferenceCell, metric: Metric, one: Figure) -> Markup | None:
    """How it stands to the reference arm, or why that is not said."""
    if len(facts.arms) < 2 or one.excluded:
        return None
    partly = f", {one.partly}" if one.partly else fewer(facts, cell, metric, one)
    if one.arm == facts.reference:
        return el("span", f"reference{partly}", class_="versus")
    compared = facts.versus(cell, metric, one.arm, facts.reference)
    found = versus(compared, brief(compared).partition(",")[0])
    if found is None and vanish(facts.points(cell, metric.key), one.arm, facts.reference):
        nothing = f"no ratio: 0 {metric.unit} in a block"
        if any((p.value or 0) < 0 for p in facts.points(cell, metric.key)):
            nothing = f"no ratio: less than 0 {metric.unit} in a block"
        return el("span", f"{nothing}{partly}", class_="versus")
    more = el("span", partly.removeprefix(", "), class_="versus") if partly else None
    return join(found, more)


def fewer(facts: Facts, cell: InterferenceCell, metric: Metric, one: Figure) -> str:
    """`, 2 of 3 blocks` behind an arm that has fewer blocks than others."""
    most = max(facts.figure(cell, metric.key, arm).blocks for arm in facts.arms)
    return f", {one.blocks} of {most} blocks" if one.blocks < most else ""
