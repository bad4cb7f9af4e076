"""Whether results hold the answer that their campaign was run for, in the last line of a command.

Rules of this file: the question is the longest interference cell; a campaign without one asks by
any of its cells. It is answered by two arms whose figure may be used, or by the one there is: who
leads by how much, and how sure that is, is no matter here. "Cannot tell" is an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twolane.analysis.standing import answerable
from twolane.records import AnyCell
from twolane.report import codes, otherwise, unproven
from twolane.report.answer import listed
from twolane.report.facts import Facts, Figure, shown
from twolane.report.metrics import INTERFERENCE, Metric


def unanswered(facts: Facts, again: str) -> str:
    """What is missing, why, and what to do, with `again` as the command that goes on; empty where
    nothing is."""
    if not answerable(facts.measured):
        return _told(
            facts,
            "every point has a reason code: there is nothing to answer from",
            (code.code for one in facts.coded() for code in one.codes),
            again,
        )
    asked = _asked(facts)
    found = [[facts.figure(cell, metric.key, arm) for arm in facts.arms] for cell, metric in asked]
    if not asked or any(_enough(figures) for figures in found):
        return ""
    cell, metric = asked[0]
    figures = found[0]
    struck = [code.code for one in figures if one.excluded for code in one.codes]
    name = metric.label[0].lower() + metric.label[1:]
    return _told(facts, f"{name} in {cell.id} {listed(_lacking(figures))}", struck, again)


def _asked(facts: Facts) -> list[tuple[AnyCell, Metric]]:
    if facts.interference is not None:
        return [(facts.interference, INTERFERENCE[0])]
    return [
        (cell, metric)
        for cell in facts.cells
        for metric in shown(cell)
        if metric.key == otherwise.told_first(cell)
    ]


def _enough(figures: Sequence[Figure]) -> bool:
    return sum(_usable(one) for one in figures) >= min(2, len(figures))


def _usable(figure: Figure) -> bool:
    return figure.value is not None and not figure.excluded


def _lacking(figures: Iterable[Figure]) -> list[str]:
    """`is spoilt for a and b (BUSY)`, `was not measured for c`."""
    whose: dict[str, list[str]] = {}
    for one in figures:
        if not _usable(one):
            named = ", ".join(dict.fromkeys(code.code for code in one.codes))
            whose.setdefault(named, []).append(one.arm)
    return [
        f"is spoilt for {listed(arms)} ({named})"
        if named
        else f"was not measured for {listed(arms)}"
        for named, arms in whose.items()
    ]


def _told(facts: Facts, what: str, struck: Iterable[str], again: str) -> str:
    named = dict.fromkeys(struck)
    redo = f"{again} {' '.join(f'--redo {code}' for code in named)}".rstrip()
    told = [word for code in named if (word := codes.remedy(code, redo))]
    todo = unproven.remedy(facts, named) or "; ".join(told) or redo
    return f"no answer to what this was run for: {what}\n  remedy: {todo}"
