"""The table: one row a metric, one column an arm, each figure with its bar, ratio and codes.

Rules of this file: an excluded figure is struck, its bar hollow, its codes beside it, and it has
no ratio. Bars start at zero and are relative to the largest figure of their row.
"""

from __future__ import annotations

from twolane.analysis.compare import FORESEEABLE, Comparison
from twolane.records import AnyCell
from twolane.report.facts import Facts, Figure, point_id, shown, workload
from twolane.report.markup import Markup, el, join, scroll
from twolane.report.metrics import Metric, number, ratio, unit_for


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
            *(_number(one, metric, factor), _bar(one, largest), _beside(facts, cell, metric, one)),
            class_="slight" if _slight(facts, cell, metric, one) else None,
            id=point_id(facts, cell, metric.key, one.arm),
        )
        for one in figures
    ]
    return el("tr", head, cells)


def _slight(facts: Facts, cell: AnyCell, metric: Metric, one: Figure) -> bool:
    """Whether an arm's own null runs show as much."""
    floor = facts.unsure(cell, metric.floor, one.arm) if metric.floor else None
    return floor is not None and one.value is not None and one.value <= floor


def _number(one: Figure, metric: Metric, factor: float) -> Markup:
    whole = 0 if not metric.unit and one.value is not None and one.value % 1 == 0 else None
    text = number(None if one.value is None else one.value * factor, decimals=whole)
    return el("s", text, class_="value") if one.excluded else el("span", text, class_="value")


def _bar(one: Figure, largest: float) -> Markup | None:
    if one.value is None or largest <= 0 or largest == float("inf"):
        return None
    width = max(0.0, one.value) / largest * 100
    kind = "meter hollow" if one.excluded else "meter partly" if one.partly else "meter"
    return el("span", el("i", style=f"width:{width:.2f}%"), class_=kind)


def _beside(facts: Facts, cell: AnyCell, metric: Metric, one: Figure) -> Markup | None:
    """The lines under a figure: its codes, and how it stands to the reference arm."""
    codes = _codes(one) if one.codes else None
    if one.excluded or not metric.compared or len(facts.arms) < 2:
        return codes
    if one.arm == facts.reference:
        return join(codes, el("span", "reference", class_="versus"))
    return join(codes, against(facts, cell, metric, one))


def _codes(one: Figure) -> Markup:
    named = dict.fromkeys(code.code for code in one.codes)
    partly = el("small", f" {one.partly}") if one.partly else None
    return el("span", [el("a", code, href="#excluded") for code in named], partly, class_="codes")


def against(facts: Facts, cell: AnyCell, metric: Metric, one: Figure) -> Markup | None:
    """How an arm's figure stands to the reference arm's: ratio, interval, verdict."""
    found = facts.versus(cell, metric, one.arm, facts.reference)
    return versus(found, brief(found))


def brief(found: Comparison) -> str:
    """The verdict in the few words that have room under a figure."""
    words = {"A better": "better", "B better": "worse", "indicative": "one block"}
    if found.outcome != "cannot tell":
        return "barely " * found.barely + words.get(found.outcome, found.verdict)
    if found.confounded:
        return "cannot tell, confounded"
    if found.within_noise:
        return "within noise"
    if found.more_blocks is None:
        return f"cannot tell, >{FORESEEABLE} blocks"
    guess = f"{found.more_blocks} more block{'s' * (found.more_blocks != 1)}"
    return f"cannot tell, guess: {guess}"


def versus(found: Comparison, words: str) -> Markup | None:
    """A ratio with its interval and the verdict in the given words; the whole verdict on hover."""
    if found.ratio is None:
        return None
    changed = ratio(found.ratio)
    if found.low is None or found.high is None:
        return el("span", changed, class_="versus")
    low, high = ratio(found.low)[:-1], ratio(found.high)[:-1]
    between = el("span", f"[{low}, {high}]", class_="span")
    kind = {"A better": "better", "B better": "worse", "equal": "equal"}.get(
        found.outcome, "cannot"
    )
    said = f"median of {found.blocks} blocks\u2019 own ratios, 95 % interval; {found.verdict}"
    told = el("b", words, class_=kind)
    return el("span", changed, " ", between, " ", told, class_="versus", title=said)
