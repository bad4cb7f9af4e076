"""The first screen: what to run and what that costs, how sure that is, and what was left out.

Rules of this file: a reader who stops here must be right, and has it read in 20 seconds. Words
are `decision`'s, `text`'s and `sure`'s, bars are `pauses`'s; what the figures hold for stands under
the question.
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.report import glossary, left_out, otherwise, pauses
from twolane.report.decision import Decision, Line
from twolane.report.facts import Facts
from twolane.report.markup import Markup, details, el, join
from twolane.report.metrics import day
from twolane.report.scope import scope
from twolane.report.sure import Note
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
    lines = [el("p", el("b", line.of), " ", _said(line)) for line in decided.lines]
    return el("div", el("p", f"{decided.headline}."), lines, class_=f"decision {decided.strength}")


def _said(line: Line) -> Markup | str:
    if len(line.parts) == 1 and not line.command:
        return line.words
    parts = [el("span", part, " ", class_="say") for part in line.parts]
    return el("span", parts, el("code", line.command) if line.command else None)


def _finding(facts: Facts, told: Verdict) -> Markup | None:
    cell, decided = facts.interference, told.decided
    won = decided.arm if decided.strength in ("settled", "indicative") else None
    drawn = pauses.bars(facts, cell, won) if cell else None
    if drawn is not None:
        return drawn
    said = [piece.text for piece in told.finding]
    return el("p", said, class_="finding", id="verdict") if said else None


def _boxes(facts: Facts, told: Verdict) -> Markup:
    notes = [*told.sure, *told.warned]
    boxes = el(
        "div",
        _box("How sure", _sure(notes), "confidence") if notes else None,
        _box("Left out", left_out.left_out(facts), _kind(facts)) if facts.measured else None,
        class_="boxes",
    )
    return glossary.annotated(boxes)


def _sure(notes: Sequence[Note]) -> Markup:
    """A short list; what its entries leave unsaid is folded away."""
    more = [el("p", note.full) for note in notes if note.full != note.short]
    folded = details("In full", more, class_="data") if more else None
    return join(el("ul", [el("li", el("p", note.short)) for note in notes]), folded)


def _box(title: str, inside: Markup, kind: str) -> Markup:
    return el("section", el("h2", title), inside, class_=f"box {kind}")


def _kind(facts: Facts) -> str:
    return "left-out" if facts.coded() else "nothing-left-out"
