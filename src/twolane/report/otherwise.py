"""The first words of campaigns that ask something else than what one long prompt does.

Rules of this file: without an interference cell the campaign's first cell is its question. It says
what was measured and how far that may be trusted, and recommends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twolane.records import AnyCell, FreshCell, GridCell, MixCell, NeedleCell, RampCell, TraceCell
from twolane.report.answer import first_up, listed
from twolane.report.decision import Decision, Line
from twolane.report.facts import Facts, Figure, shown, workload
from twolane.report.metrics import Metric, number, spoken

USUAL = "What does one long prompt do to everybody else\u2019s stream?"
_QUESTIONS: tuple[tuple[type, str], ...] = (
    (RampCell, "What becomes of conversations that grow?"),
    (GridCell, "How fast are requests served?"),
    (FreshCell, "How long does a new long prompt take?"),
    (MixCell, "How long do short requests wait beside long ones?"),
    (TraceCell, "How fast are requests served?"),
    (NeedleCell, "Does the model find what the prompt says?"),
)
_TOLD = {
    "ramp": "last_ttft_ms",
    "grid": "throughput_tok_s",
    "fresh": "ttft_ms",
    "mix": "ttft_p50_ms",
    "trace": "throughput_tok_s",
}
"""The one figure of a cell's kind that is told first."""


@dataclass(frozen=True)
class Words:
    """What the page begins with; `sure` is how far it may be trusted, a sentence each."""

    found: Decision
    sure: tuple[str, ...]


def question(facts: Facts) -> str:
    """The question over the page: the usual one, or that of the first cell of another kind."""
    cell = facts.interference or (facts.cells[0] if facts.cells else None)
    return next((words for kind, words in _QUESTIONS if isinstance(cell, kind)), USUAL)


def words(facts: Facts) -> Words | None:
    """None where no cell has a figure to tell."""
    for cell in facts.cells:
        told = _cell(facts, cell)
        if told is not None:
            return told
    return None


def told_first(cell: AnyCell) -> str:
    """The key of the figure that answers a cell of this kind."""
    return _TOLD.get(str(cell.__struct_config__.tag), "needles_missed")


def _cell(facts: Facts, cell: AnyCell) -> Words | None:
    key = told_first(cell)
    metric = next((one for one in shown(cell) if one.key == key), None)
    if metric is None:
        return None
    figures = [facts.figure(cell, key, arm) for arm in facts.arms]
    seen = [one for one in figures if one.value is not None]
    if not seen:
        return None
    named = [("Cached", _cached(facts, cell)), (metric.label, _figures(facts, cell, metric, seen))]
    lines = [Line(of, words) for of, words in named if words]
    first = _needles(facts, cell)
    if not first and lines:
        of, words = lines[0].of, lines.pop(0).words
        first = f"{of[0].lower()}{of[1:]} {words}"
    found = Decision(f"{first_up(workload(cell))}: {first}", tuple(lines))
    return Words(found, _sure(facts, cell, metric, seen))


def _clean_values(facts: Facts, cell: AnyCell, key: str) -> list[float]:
    mine = [one for one in facts.measured if one.cell.id == cell.id]
    clean = [one for one in mine if not one.codes] or mine
    return [value for one in clean if (value := one.values.get(key)) is not None]


def _needles(facts: Facts, cell: AnyCell) -> str:
    """`all 40 needles were found`, of cells that ask for them."""
    if not isinstance(cell, (RampCell, NeedleCell)):
        return ""
    missed = round(sum(_clean_values(facts, cell, "needles_missed")))
    asked = round(
        sum(_clean_values(facts, cell, "turns" if isinstance(cell, RampCell) else "requests"))
    )
    if not asked:
        return ""
    where = ", one a turn" if isinstance(cell, RampCell) else ""
    found = f"{missed} of {asked} needles missed" if missed else f"all {asked} needles found"
    return f"{found}{where}"


def _cached(facts: Facts, cell: AnyCell) -> str:
    """Whether a conversation's history was cached as it must be, by the code that would say no."""
    if not isinstance(cell, RampCell):
        return ""
    shares = _clean_values(facts, cell, "cached_share")
    if not shares:
        return ""
    coded = [one for one in facts.coded() if one.cell.id == cell.id]
    wrong = any(code.code == "CACHE" for one in coded for code in one.codes)
    how = "not as expected" if wrong else "as expected in every turn"
    return f"{how} ({number(min(shares) * 100)} % of all prompt tokens)"


def _figures(facts: Facts, cell: AnyCell, metric: Metric, seen: Sequence[Figure]) -> str:
    if metric.key == "needles_missed":
        return ""
    beside = [one.value for one in seen]
    parts = [
        f"{spoken(one.value, metric.unit, beside=beside)}"
        f"{f' with {one.arm}' if len(seen) > 1 else ''}{', excluded' if one.excluded else ''}"
        for one in seen
    ]
    return f"{listed(parts)}{_usual(facts, cell, seen)}"


def _usual(facts: Facts, cell: AnyCell, seen: Sequence[Figure]) -> str:
    """Beside the longest turn, the median one, where there is one arm."""
    if not isinstance(cell, RampCell) or len(seen) > 1:
        return ""
    usual = facts.figure(cell, "ttft_ms", seen[0].arm).value
    return "" if usual is None else f", of the median turn {spoken(usual, 'ms')}"


def _sure(facts: Facts, cell: AnyCell, metric: Metric, seen: Sequence[Figure]) -> tuple[str, ...]:
    clean = [one for one in seen if not one.excluded]
    if not clean:
        return ("Every arm\u2019s figure is excluded by a reason code, so there is no verdict.",)
    if facts.blocks == 1:
        return ("Indicative: one block shows no spread, so this is not a verdict.",)
    if len(clean) == 1:
        alone = (
            "Only one arm has this figure without a code, so there is nothing to compare it with."
        )
        return (*_spread(facts, cell, metric), alone)
    first, *others = clean
    told = [facts.versus(cell, metric, one.arm, first.arm) for one in others]
    verdicts = "; ".join(
        f"{one.a} against {one.b}: "
        f"{one.verdict.replace('A better', 'better').replace('B better', 'worse')}"
        for one in told
    )
    by = f"{metric.label[0].lower()}{metric.label[1:]}"
    return (f"Over {facts.blocks} blocks, by {by}: {verdicts}.",)


def _spread(facts: Facts, cell: AnyCell, metric: Metric) -> tuple[str, ...]:
    values = sorted(_clean_values(facts, cell, metric.key))
    if len(values) < 2:
        return ()
    low, high = (spoken(v, metric.unit, beside=values) for v in (values[0], values[-1]))
    return (f"{metric.label}: {low} to {high} over {len(values)} blocks.",)
