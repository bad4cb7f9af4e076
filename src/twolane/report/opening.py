"""The first screen: what to run, how sure that is, what it changes, and what was left out.

Rules of this file: a reader who stops here must be right. Words are `text`'s and `decision`'s, bars
are `pauses`'s; what the figures hold for stands under the question.
"""

from __future__ import annotations

from twolane.report import glossary, left_out, otherwise, pauses
from twolane.report.decision import Decision
from twolane.report.facts import Facts
from twolane.report.markup import Markup, el
from twolane.report.metrics import day
from twolane.report.scope import scope
from twolane.report.text import Verdict


def opening(facts: Facts, told: Verdict) -> Markup:
    results = facts.results
    first = results.runs[0].meta if results.runs else None
    when = f" \N{MIDDLE DOT} {day(first.started_at)}" if first else ""
    return el(
        "header",
        el("p", el("b", "twolane"), f" \N{MIDDLE DOT} {results.campaign}{when}", class_="brand"),
        el("h1", otherwise.question(facts)),
        el("p", holds, class_="scope") if (holds := scope(facts)) else None,
        _decision(told.decided),
        _finding(facts, told),
        _boxes(facts, told),
        pauses.losses(facts, facts.interference) if facts.interference else None,
        class_="opening",
    )


def _decision(decided: Decision) -> Markup | None:
    if not decided.headline:
        return None
    parts = (decided.headline, decided.still, decided.reason)
    said = [el("p", f"{part}.") for part in parts if part]
    return el("div", said, class_=f"decision {decided.strength}")


def _finding(facts: Facts, told: Verdict) -> Markup:
    cell, decided = facts.interference, told.decided
    won = decided.arm if decided.strength in ("settled", "indicative") else None
    drawn = pauses.bars(facts, cell, won) if cell else None
    if drawn is not None:
        return drawn
    return el("p", [piece.text for piece in told.finding], class_="finding", id="verdict")


def _boxes(facts: Facts, told: Verdict) -> Markup:
    sure = " ".join(part for part in (told.confidence, told.caveats) if part)
    boxes = el(
        "div",
        _box("How sure", el("p", sure), "confidence") if sure else None,
        _box("Left out", left_out.left_out(facts), _kind(facts)) if facts.measured else None,
        _box("What else it changes", el("p", told.cost), "cost") if told.cost else None,
        class_="boxes",
    )
    return glossary.annotated(boxes)


def _box(title: str, inside: Markup, kind: str) -> Markup:
    return el("section", el("h2", title), inside, class_=f"box {kind}")


def _kind(facts: Facts) -> str:
    return "left-out" if facts.coded() else "nothing-left-out"
