"""Which arm to run, by rules, and what that costs.

Rules of this file: of the arms without a reason code the one with the shortest worst pause is
chosen, unless the next best is as good (within `NEAR`, or not to be told from its own null run)
and has the better throughput. With fewer than two such arms, where a code is the reason, the run
cannot answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from twolane.records import AnyCell, Code, InterferenceCell
from twolane.report.facts import Facts, Figure
from twolane.report.gates import CODES
from twolane.report.metrics import GRID, INTERFERENCE, Metric, change, spoken

NEAR: Final = 1.25
"""Worst pauses up to this multiple of each other are as good."""
NULL_REACH: Final = 1.5
"""A worst pause up to this multiple of its own null run's cannot be told from it."""

WORST, NULL, LONG_TTFT = INTERFERENCE[0], INTERFERENCE[1], INTERFERENCE[-1]
SHORT_TTFT, THROUGHPUT = GRID[0], GRID[-1]


@dataclass(frozen=True)
class Decision:
    """The first sentence; `arm` is chosen against `rival`, or None where nothing is."""

    sentence: str
    arm: str | None = None
    rival: str | None = None


def decide(facts: Facts, cell: InterferenceCell) -> Decision:
    """The decision that the figures of `cell` allow; an empty sentence where none is asked for."""
    figures = [facts.figure(cell, WORST.key, arm) for arm in facts.arms]
    clean = sorted((f for f in figures if f.value is not None and not f.excluded), key=_value)
    spoiled = [f for f in figures if f.excluded]
    if len(clean) < 2:
        alone = clean[0].arm if clean else None
        why = _in_words([code for figure in spoiled for code in figure.codes])
        return Decision(f"This run cannot answer: {why}." if spoiled else "", alone)
    chosen, rival, why = _choice(facts, cell, clean[0], clean[1])
    costs = _costs(facts, cell, chosen.arm, rival.arm)
    sentence = f"On this evidence run {chosen.arm}: {why}, and {costs}."
    return Decision(f"{sentence}{_sureness(facts, cell, chosen, rival)}", chosen.arm, rival.arm)


def _value(figure: Figure) -> float:
    return figure.value or 0.0


def within_null(facts: Facts, cell: AnyCell, figure: Figure) -> bool:
    """Whether an arm's worst pause cannot be told from that of its own null run."""
    alone = facts.figure(cell, NULL.key, figure.arm).value
    return alone is not None and figure.value is not None and figure.value <= NULL_REACH * alone


def _choice(
    facts: Facts, cell: InterferenceCell, best: Figure, following: Figure
) -> tuple[Figure, Figure, str]:
    """The chosen arm, the other, and why, after the chosen arm's name."""
    both = (best.value, following.value)
    short, long = (spoken(value, WORST.unit, beside=both) for value in both)
    near = _value(following) <= NEAR * _value(best)
    if not (near or within_null(facts, cell, following)) or not _faster(facts, following, best):
        return best, following, f"it has the shortest worst pause ({short} against {long})"
    like = f"within {NEAR:g} times" if near else "no more than its own null run shows, like"
    why = f"its worst pause ({long}) is {like} the shortest ({short} with {best.arm})"
    return following, best, f"{why} and its throughput is better"


def _faster(facts: Facts, one: Figure, other: Figure) -> bool:
    ratio = _ratio(facts, facts.grid, THROUGHPUT, one.arm, other.arm)
    return ratio is not None and ratio > 1


def _costs(facts: Facts, cell: InterferenceCell, arm: str, rival: str) -> str:
    asked = (
        (cell, LONG_TTFT, "first token of the long prompt"),
        (facts.grid, SHORT_TTFT, "short prompts"),
        (facts.grid, THROUGHPUT, "throughput"),
    )
    worse: list[str] = []
    better: list[str] = []
    for where, metric, words in asked:
        ratio = _ratio(facts, where, metric, arm, rival)
        if ratio is None or abs(ratio - 1) <= facts.margin:
            continue
        bad = (ratio > 1) == metric.lower_is_better
        (worse if bad else better).append(f"{words} {_told(ratio, metric)}")
    return _weighed(worse, better, rival)


def _told(ratio: float, metric: Metric) -> str:
    return change(ratio, shorter=metric.lower_is_better)


def _weighed(worse: Sequence[str], better: Sequence[str], rival: str) -> str:
    told = f"costs, against {rival}: {', '.join(worse)}" if worse else ""
    gained = f"gains{'' if worse else f', against {rival}'}: {', '.join(better)}" if better else ""
    return "; it ".join(filter(None, (told, gained))) or "costs nothing that was measured"


def _ratio(
    facts: Facts, cell: AnyCell | None, metric: Metric, arm: str, rival: str
) -> float | None:
    """The ratio of two figures that are not excluded."""
    if cell is None:
        return None
    here, there = (facts.figure(cell, metric.key, one) for one in (arm, rival))
    if here.excluded or there.excluded or here.value is None or not there.value:
        return None
    return here.value / there.value


def _sureness(facts: Facts, cell: AnyCell, chosen: Figure, rival: Figure) -> str:
    if facts.blocks == 1:
        return " Indicative: one block."
    found = facts.versus(cell, WORST, chosen.arm, rival.arm)
    return f" Not settled: {found.verdict}." if found.outcome == "cannot tell" else ""


def _in_words(codes: Sequence[Code]) -> str:
    return "; ".join(dict.fromkeys(_worded(codes)))


def _worded(codes: Sequence[Code]) -> Iterator[str]:
    """Each code's meaning; its own words where this version does not know it."""
    for code in codes:
        yield CODES.get(code.code, code.why)
