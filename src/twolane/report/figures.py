"""The table: one row a metric, one column an arm, each figure with its bar, ratio and codes.

Rules of this file: an excluded figure is struck, its bar hollow, its codes beside it, and it has
no ratio. Bars start at zero and are relative to the largest figure of their row.
"""

from __future__ import annotations

from twolane.analysis.compare import Comparison
from twolane.records import AnyCell
from twolane.report.facts import Facts, Figure, point_id, shown, workload
from twolane.report.markup import Markup, el, scroll
from twolane.report.metrics import Metric, change, number, span, unit_for


def figure(facts: Facts, words: dict[str, str]) -> Markup:
    bodies = [_body(facts, cell) for cell in facts.cells if shown(cell)]
    heads = [
        el("th", el("span", arm, class_="arm"), el("span", words[arm], class_="words"), scope="col")
        for arm in facts.arms
    ]
    caption = el("caption", "Figures of every arm", class_="unseen")
    head = el("thead", el("tr", el("td"), heads))
    # The label's column and room for a figure an arm: three arms fit a phone without scrolling.
    style = f"min-width:{5.6 + 5.1 * len(facts.arms):.1f}rem"
    whole = el("table", caption, head, bodies, class_="figures", style=style)
    label = "Figures of every arm"
    return scroll(whole, label)


def _body(facts: Facts, cell: AnyCell) -> Markup:
    span = len(facts.arms) + 1
    named = (workload(cell), " ", el("small", cell.id, class_="arm"))
    title = el("tr", el("th", *named, colspan=span, scope="rowgroup"), class_="cell")
    return el("tbody", title, [_row(facts, cell, metric) for metric in shown(cell)])


def _row(facts: Facts, cell: AnyCell, metric: Metric) -> Markup:
    figures = [facts.figure(cell, metric.key, arm) for arm in facts.arms]
    unit, factor = unit_for(metric.unit, [figure.value for figure in figures])
    largest = max((abs(f.value) for f in figures if f.value is not None), default=0.0)
    direction = "" if metric.lower_is_better else ", more is better"
    named = (metric.label, " ", el("small", unit + direction))
    head = el("th", *named, scope="row", title=metric.formula)
    cells = [
        el(
            "td",
            *(_number(one, factor), _bar(one, largest), _beside(facts, cell, metric, one)),
            class_="slight" if _slight(facts, cell, metric, one) else None,
            id=point_id(facts, cell, metric.key, one.arm),
        )
        for one in figures
    ]
    return el("tr", head, cells)


def _slight(facts: Facts, cell: AnyCell, metric: Metric, one: Figure) -> bool:
    """Whether an arm's own null run shows as much."""
    floor = facts.figure(cell, metric.floor, one.arm).value if metric.floor else None
    return floor is not None and one.value is not None and one.value <= floor


def _number(one: Figure, factor: float) -> Markup:
    text = number(None if one.value is None else one.value * factor)
    return el("s", text, class_="value") if one.excluded else el("span", text, class_="value")


def _bar(one: Figure, largest: float) -> Markup | None:
    if one.value is None or largest <= 0 or largest == float("inf"):
        return None
    width = max(0.0, one.value) / largest * 100
    kind = "meter hollow" if one.excluded else "meter"
    return el("span", el("i", style=f"width:{width:.2f}%"), class_=kind)


def _beside(facts: Facts, cell: AnyCell, metric: Metric, one: Figure) -> Markup | None:
    """The line under a figure: its codes, or how it stands to the reference arm."""
    if one.codes:
        codes = dict.fromkeys(code.code for code in one.codes)
        return el("span", [el("a", code, href="#excluded") for code in codes], class_="codes")
    if not metric.compared or len(facts.arms) < 2:
        return None
    if one.arm == facts.reference:
        return el("span", "reference", class_="versus")
    return _versus(facts.versus(cell, metric, one.arm, facts.reference), metric)


def _versus(found: Comparison, metric: Metric) -> Markup | None:
    if found.ratio is None:
        return None
    changed = change(found.ratio, shorter=metric.lower_is_better)
    if found.low is None or found.high is None:
        return el("span", changed, class_="versus")
    low, high = span(found.ratio, found.low, found.high)
    between = el("span", f"[{low}, {high}]", class_="span")
    words = found.verdict.replace("A better", "better").replace("B better", "worse")
    kind = words.split(maxsplit=1)[0].strip(",")
    return el("span", changed, " ", between, " ", el("b", words, class_=kind), class_="versus")
