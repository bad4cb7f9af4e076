"""The table: one row a metric, one column an arm, each figure with its bar, ratio and codes.

Rules of this file: an excluded figure is struck, its bar hollow, its codes beside it, and it has
no ratio. Bars start at zero and are relative to the largest figure of their row.
"""

from __future__ import annotations

from twolane.analysis.compare import Comparison
from twolane.records import AnyCell
from twolane.report.facts import Facts, Figure, shown
from twolane.report.markup import Markup, el
from twolane.report.metrics import Metric, number, ratio, unit_for


def figure(facts: Facts, words: dict[str, str]) -> Markup:
    bodies = [_body(facts, cell) for cell in facts.cells if shown(cell)]
    heads = [
        el("th", el("span", arm, class_="arm"), el("span", words[arm], class_="words"), scope="col")
        for arm in facts.arms
    ]
    caption = el("caption", "Figures of every arm", class_="unseen")
    head = el("thead", el("tr", el("td"), heads))
    whole = el("table", caption, head, bodies, class_="figures")
    label = "Figures of every arm"
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=label)


def _body(facts: Facts, cell: AnyCell) -> Markup:
    span = len(facts.arms) + 1
    title = el("tr", el("th", cell.id, colspan=span, scope="rowgroup"), class_="cell")
    return el("tbody", title, [_row(facts, cell, metric) for metric in shown(cell)])


def _row(facts: Facts, cell: AnyCell, metric: Metric) -> Markup:
    figures = [facts.figure(cell, metric.key, arm) for arm in facts.arms]
    unit, factor = unit_for(metric.unit, [figure.value for figure in figures])
    largest = max((abs(f.value) for f in figures if f.value is not None), default=0.0)
    head = el("th", metric.label, " ", el("small", unit), scope="row", title=metric.formula)
    cells = [
        el("td", _number(one, factor), _bar(one, largest), _beside(facts, cell, metric, one))
        for one in figures
    ]
    return el("tr", head, cells)


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
    return _versus(facts.versus(cell, metric, one.arm, facts.reference))


def _versus(found: Comparison) -> Markup | None:
    if found.ratio is None:
        return None
    if found.low is None or found.high is None:
        return el("span", ratio(found.ratio), class_="versus")
    span = f"{ratio(found.ratio)} [{ratio(found.low)[:-1]}, {ratio(found.high)[:-1]}]"
    words = found.verdict.replace("A better", "better").replace("B better", "worse")
    kind = words.split(maxsplit=1)[0].strip(",")
    return el("span", span, " ", el("b", words, class_=kind), class_="versus")
