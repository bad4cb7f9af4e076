"""The first screen: what to run, how sure that is, what it costs, and what was left out.

Rules of this file: a reader who stops here must be right. Words are `text`'s and `decision`'s; a
bar is one arm's worst pause beside its own null run's, hollow where a reason code spoils it.
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.analysis.points import Measured
from twolane.records import InterferenceCell
from twolane.report.decision import NULL, WORST, Decision
from twolane.report.facts import Facts, Figure, descriptions, excluded_id, point_id
from twolane.report.markup import Markup, el
from twolane.report.metrics import day, spoken
from twolane.report.text import Verdict

MOST_LEFT_OUT = 2


def opening(facts: Facts, told: Verdict) -> Markup:
    results = facts.results
    first = results.runs[0].meta if results.runs else None
    when = f" \N{MIDDLE DOT} {day(first.started_at)}" if first else ""
    return el(
        "header",
        el("p", el("b", "twolane"), f" \N{MIDDLE DOT} {results.campaign}{when}", class_="brand"),
        el("h1", "What does one long prompt do to everybody else\u2019s stream?"),
        _decision(told.decided),
        _finding(facts, told),
        _boxes(facts, told),
        class_="opening",
    )


def _decision(decided: Decision) -> Markup | None:
    if not decided.headline:
        return None
    reason = f"{decided.reason}." if decided.reason else None
    kind = f"decision {decided.strength}"
    return el(
        "div", el("p", f"{decided.headline}."), el("p", reason) if reason else None, class_=kind
    )


def _finding(facts: Facts, told: Verdict) -> Markup:
    cell = facts.interference
    figures = [facts.figure(cell, WORST.key, arm) for arm in facts.arms] if cell else []
    seen = [one for one in figures if one.value is not None]
    if cell is None or not seen:
        return el("p", [piece.text for piece in told.finding], class_="finding", id="verdict")
    return _bars(facts, cell, seen, told.decided)


def _bars(
    facts: Facts, cell: InterferenceCell, seen: Sequence[Figure], decided: Decision
) -> Markup:
    whose = "The reader\u2019s" if cell.victims == 1 else "The readers\u2019"
    caption = f"{whose} worst pause while a {cell.prompt:,}-token prompt was prefilled"
    nulls = [facts.figure(cell, NULL.key, one.arm).value for one in seen]
    beside = [one.value or 0.0 for one in seen]
    chosen = decided.strength in ("settled", "indicative")
    rows = [
        _bar(facts, cell, one, null, beside, won=one.arm == decided.arm and chosen)
        for one, null in zip(seen, nulls, strict=True)
    ]
    note = (
        "The tick in a bar is the arm\u2019s own null run: what client and machine add when no "
        "prompt is sent."
    )
    return el(
        "figure",
        el("figcaption", caption),
        rows,
        el("p", note, class_="note") if any(null is not None for null in nulls) else None,
        class_="pauses",
        id="verdict",
    )


def _bar(
    facts: Facts,
    cell: InterferenceCell,
    one: Figure,
    null: float | None,
    beside: Sequence[float],
    *,
    won: bool,
) -> Markup:
    value, most = one.value or 0.0, max(beside) or 1.0
    words = descriptions(facts.results.runs)[one.arm]
    told = spoken(value, WORST.unit, beside=beside)
    alone = "" if null is None else f", null run {spoken(null, WORST.unit, beside=beside)}"
    codes = list(dict.fromkeys(code.code for code in one.codes)) if one.excluded else []
    said = f"{one.arm}, {words}: worst pause {told}{alone}{', excluded' if codes else ''}"
    tick = None if null is None else el("i", class_="tick", style=_left(null / most))
    return el(
        "div",
        el("span", el("b", one.arm, class_="arm"), " ", el("small", words), class_="who"),
        el(
            "span",
            el("span", class_="fill", style=f"width:{max(value / most, 0.002) * 100:.2f}%"),
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
                el("s", told) if codes else told,
                href=f"#{point_id(facts, cell, WORST.key, one.arm)}",
                class_="much",
            ),
            [el("a", code, href="#excluded", class_="code") for code in codes],
            class_="told",
        ),
        class_="pause" + " excluded" * bool(codes) + " best" * won,
    )


def _left(share: float) -> str:
    return f"left:{min(share, 1.0) * 100:.2f}%"


def _boxes(facts: Facts, told: Verdict) -> Markup:
    sure = " ".join(part for part in (told.confidence, told.caveats) if part)
    return el(
        "div",
        _box("How sure", el("p", sure), "confidence") if sure else None,
        _box("Left out", _left_out(facts), _kind(facts)) if facts.measured else None,
        _box("What it costs", el("p", told.cost), "cost") if told.cost else None,
        class_="boxes",
    )


def _box(title: str, inside: Markup, kind: str) -> Markup:
    return el("section", el("h2", title), inside, class_=f"box {kind}")


def _kind(facts: Facts) -> str:
    return "left-out" if facts.coded() else "nothing-left-out"


def _left_out(facts: Facts) -> Markup:
    """The excluded points by name, so that none is missed; the rest of them further down."""
    coded = facts.coded()
    if not coded:
        return el("p", f"Nothing: none of {len(facts.measured)} measured cells has a reason code.")
    more = len(coded) - MOST_LEFT_OUT
    rest = el("p", el("a", f"and {more} more", href="#excluded")) if more > 0 else None
    head = f"{len(coded)} of {len(facts.measured)} measured cells enter no verdict:"
    items = [el("li", _point(facts, one)) for one in coded[:MOST_LEFT_OUT]]
    return el("div", el("p", head), el("ul", items), rest)


def _point(facts: Facts, one: Measured) -> list[Markup | str]:
    code = one.codes[0]
    return [
        el("b", one.run.arm, class_="arm"),
        f", block {one.run.block + 1}, {one.cell.id}: ",
        el("a", code.code, href=f"#{excluded_id(facts, one)}"),
        f", {code.why}",
    ]
