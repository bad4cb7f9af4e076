"""The answer in words: one sentence with its numbers and its confidence, and a terminal table.

Rules of this file: it says what the figures say and no more. An excluded figure is named as
such; one block is called indicative; where nothing was measured it says that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table
from rich.text import Text

from twolane.analysis.compare import Comparison, Outcome
from twolane.analysis.results import Results
from twolane.records import AnyCell, InterferenceCell
from twolane.report import otherwise
from twolane.report.decision import Decision, decide, within_null
from twolane.report.facts import Facts, Figure, descriptions, shown
from twolane.report.metrics import (
    GRID,
    INTERFERENCE,
    Metric,
    change,
    number,
    span,
    spoken,
    unit_for,
)

WORST, NULL, _, LOST, _, QUIET, LONG_TTFT = INTERFERENCE
_JUDGED: Mapping[Outcome, str] = {
    "A better": "better",
    "B better": "worse",
    "equal": "equal",
    "cannot tell": "not told apart",
    "indicative": "one block",
}
# Quiet speeds further apart than this shift whatever is reckoned from them, as tokens lost are.
_UNEQUAL = 1.2
# A null run that lost this share of what the prompt's run lost is no matter of rounding.
_RESTLESS = 0.1


@dataclass(frozen=True)
class Piece:
    """A run of words of the verdict: plain words, a figure, or the best figure."""

    text: str
    kind: Literal["words", "figure", "best"] = "words"


@dataclass(frozen=True)
class Verdict:
    """What a page opens with: what to run, the finding, what it costs, and how sure it is."""

    finding: tuple[Piece, ...]
    cost: str
    confidence: str
    excluded: str = ""
    caveats: str = ""
    decided: Decision = field(default_factory=lambda: Decision(""))

    @property
    def decision(self) -> str:
        return self.decided.sentence

    def __str__(self) -> str:
        finding = "".join(piece.text for piece in self.finding)
        parts = (self.decision, finding, self.cost, self.confidence, self.excluded, self.caveats)
        return " ".join(part for part in parts if part)


def verdict_sentence(results: Results) -> str:
    """The answer to the campaign's question with its numbers and its confidence, plain text."""
    return str(verdict(Facts(results)))


def verdict(facts: Facts) -> Verdict:
    cell = facts.interference
    if not facts.results.runs:
        return _nothing(facts, "No run can be read here, so there is no answer.")
    if cell is None:
        return _otherwise(facts)
    words = descriptions(facts.results.runs)
    figures = [facts.figure(cell, WORST.key, arm) for arm in facts.arms]
    seen = [figure for figure in figures if figure.value is not None]
    if not seen:
        return _nothing(facts, "No arm has a worst pause, so there is no answer yet.")
    decision = decide(facts, cell)
    best = next((figure for figure in seen if figure.arm == decision.arm), None)
    return Verdict(
        decided=decision,
        finding=_finding(facts, cell, seen, decision, words),
        cost=_cost(facts, cell, decision, words),
        confidence=_confidence(facts, cell, seen, best),
        excluded=" ".join(_excluded(facts)),
        caveats=" ".join(
            [*_unequal(facts, cell), *_restless(facts, cell), *_unfinished(facts), *facts.caveats]
        ),
    )


def _otherwise(facts: Facts) -> Verdict:
    """Of a campaign that asks something else, or that came to nothing yet."""
    told = otherwise.words(facts)
    if told is None:
        return _nothing(facts, "No run finished a cell with a figure, so there is no answer yet.")
    caveats = " ".join([*_unfinished(facts), *facts.caveats])
    excluded = " ".join(_excluded(facts))
    return Verdict((Piece(told.finding),), "", told.sure, excluded, caveats)


def _nothing(facts: Facts, why: str) -> Verdict:
    return Verdict((Piece(why),), "", "", caveats=" ".join(facts.caveats))


def _finding(
    facts: Facts,
    cell: InterferenceCell,
    seen: Sequence[Figure],
    decision: Decision,
    words: dict[str, str],
) -> tuple[Piece, ...]:
    readers = "the reader\u2019s" if cell.victims == 1 else "the readers\u2019"
    pieces = [
        Piece(f"While a {cell.prompt:,}-token prompt was prefilled, {readers} worst pause was ")
    ]
    for place, figure in enumerate(seen):
        pieces.append(Piece(_separator(place, len(seen))))
        won = decision.rival is not None and figure.arm == decision.arm
        pieces.append(Piece(_pause(figure.value, seen), "best" if won else "figure"))
        excluded = ", excluded" if figure.excluded else ""
        alone = _null(facts, cell, figure, seen)
        pieces.append(Piece(f" with {_with(words[figure.arm])}{excluded}{alone}"))
    pieces.append(Piece("."))
    return tuple(piece for piece in pieces if piece.text)


def _separator(place: int, count: int) -> str:
    if place == 0:
        return ""
    return " and " if place == count - 1 else ", "


def _with(words: str) -> str:
    """`two copies, budget 2,048` inside a list that has commas of its own."""
    if words.startswith("split"):
        return "the split"
    return words.replace(", budget", " at budget")


def _pause(value: float | None, seen: Sequence[Figure]) -> str:
    """A pause in the unit of all the pauses of the sentence."""
    return spoken(value, WORST.unit, beside=[figure.value for figure in seen])


def _null(facts: Facts, cell: AnyCell, figure: Figure, seen: Sequence[Figure]) -> str:
    """What client and machine add by themselves to one arm, from its own null run."""
    alone = facts.figure(cell, NULL.key, figure.arm).value
    if alone is None:
        return " (no null run)"
    if not within_null(facts, cell, figure):
        return f" (null run: {_pause(alone, seen)})"
    rider = "so no pause can be told from what client and machine add"
    return f" (its own null run: {_pause(alone, seen)}, {rider})"


def _cost(facts: Facts, cell: InterferenceCell, decision: Decision, words: dict[str, str]) -> str:
    """What the chosen arm pays, against the one that it was weighed with."""
    best, rival = decision.arm, decision.rival
    if best is None or rival is None:
        return ""
    asked = [_Cost(cell, LONG_TTFT, "the long prompt\u2019s first token")]
    if facts.grid is not None:
        asked.append(_Cost(facts.grid, GRID[0], "a short prompt\u2019s"))
        asked.append(_Cost(facts.grid, GRID[2], "throughput"))
    parts = [_change(facts, one, best, rival) for one in asked]
    told = [part for part in parts if part]
    if not told:
        return ""
    subject = _with(words[best])
    return f"Against {_with(words[rival])}, {subject} changed " + _listed(told) + "."


@dataclass(frozen=True)
class _Cost:
    cell: AnyCell
    metric: Metric
    words: str


def _change(facts: Facts, cost: _Cost, arm: str, rival: str) -> str | None:
    metric = cost.metric
    here = facts.figure(cost.cell, metric.key, arm)
    there = facts.figure(cost.cell, metric.key, rival)
    if here.value is None or not there.value or here.excluded or there.excluded:
        return None
    both = (there.value, here.value)
    before, after = (spoken(value, metric.unit, beside=both) for value in both)
    outcome = facts.versus(cost.cell, metric, arm, rival).outcome
    return f"{cost.words} from {before} to {after} ({_JUDGED[outcome]})"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _confidence(
    facts: Facts, cell: InterferenceCell, seen: Sequence[Figure], best: Figure | None
) -> str:
    if best is None:
        return "Every arm\u2019s figure is excluded by a reason code, so there is no verdict."
    others = [figure.arm for figure in seen if figure is not best and not figure.excluded]
    if not others:
        return (
            "Only one arm has this figure without a code, so there is nothing to compare it with."
        )
    if facts.blocks == 1:
        return "Indicative: one block shows no spread, so this is not a verdict."
    words = descriptions(facts.results.runs)
    told = [facts.versus(cell, WORST, best.arm, other) for other in others]
    parts = [_outcome(one, _with(words[one.b]), facts.reference) for one in told]
    by = "by the worst pause "
    said = f"Over {facts.blocks} blocks {_with(words[best.arm])} is {by}{_listed(parts)}."
    return f"{said} {_frailty(facts, cell, told)}"


def _frailty(facts: Facts, cell: AnyCell, told: Sequence[Comparison]) -> str:
    """What the verdicts rest on, and what they do not take into account."""
    floor = facts.floor(cell, WORST.key)
    alike = (
        f"no noise floor, since {facts.no_floor}"
        if floor is None
        else f"equal arms (A/A) were apart by {(floor - 1) * 100:.2g} % at most"
    )
    guess = "; how many more blocks would do is a guess" if any(o.more_blocks for o in told) else ""
    return (
        f"It rests on {facts.blocks} blocks; {alike}; each interval stands for itself and is not "
        f"corrected for the number of ratios on this page{guess}."
    )


def _excluded(facts: Facts) -> list[str]:
    """How much is left out and under which codes; the page says why."""
    coded = facts.coded()
    if not coded:
        return []
    codes = ", ".join(sorted({code.code for measured in coded for code in measured.codes}))
    return [f"Excluded: {len(coded)} of {len(facts.measured)} measured cells ({codes})."]


def _unequal(facts: Facts, cell: InterferenceCell) -> list[str]:
    """A warning where the readers were not read equally fast before the prompt came."""
    figures = [facts.figure(cell, QUIET.key, arm) for arm in facts.arms]
    speeds = {figure.arm: figure.value for figure in figures if figure.value}
    if not speeds or max(speeds.values()) <= _UNEQUAL * min(speeds.values()):
        return []
    told = _listed([f"{number(speed)} ({arm})" for arm, speed in speeds.items()])
    return [
        f"Beware: before the prompt came, the readers got {told} tokens/s, so something else "
        "differs too, such as how they share engines or other load on this machine; tokens lost "
        "are reckoned from these speeds."
    ]


def _restless(facts: Facts, cell: InterferenceCell) -> list[str]:
    """A warning where null runs lost a good part of what is claimed to be the prompt's doing."""
    lost = {arm: facts.figure(cell, LOST.key, arm) for arm in facts.arms}
    alone = {arm: facts.figure(cell, LOST.floor, arm).value or 0.0 for arm in facts.arms}
    much = [
        f"{number(alone[arm])} of {number(one.value)} ({arm})"
        for arm, one in lost.items()
        if one.value and not one.excluded and one.value > alone[arm] >= _RESTLESS * one.value
    ]
    if not much:
        return []
    return [
        f"Null runs lost tokens too, {_listed(much)}: that much of a loss is the machine\u2019s."
    ]


def _unfinished(facts: Facts) -> list[str]:
    """Runs that did not end well, so that a gap in the figures is not read as an answer."""
    open_ = [f"{run.arm} {run.meta.status}" for run in facts.results.runs if not run.finished]
    if not open_:
        return []
    return [f"Not finished: {len(open_)} of {len(facts.results.runs)} runs ({', '.join(open_)})."]


def _outcome(found: Comparison, other: str, reference: str) -> str:
    """What the blocks say of the best arm against one other, after `is`."""
    if found.outcome == "A better":
        return f"better than {other} ({_span(found, reference)})"
    if found.outcome == "B better":
        return f"worse than {other} ({_span(found, reference)})"
    if found.outcome == "equal":
        return f"equal to {other} within {found.margin * 100:g} %"
    return f"not to be told from {other} ({found.verdict.removeprefix('cannot tell, ')})"


def _span(found: Comparison, reference: str) -> str:
    """The ratio as the page's other ratios have it: never the reference arm's over another's."""
    if found.ratio is None or found.low is None or found.high is None:
        return "one block"
    if found.a == reference:
        low, high = span(1 / found.ratio, 1 / found.high, 1 / found.low)
        return f"whose pause is {change(1 / found.ratio)}, 95 % interval {low} to {high}"
    low, high = span(found.ratio, found.low, found.high)
    return f"{change(found.ratio)}, 95 % interval {low} to {high}"


# --------------------------------------------------------------------------------- terminal


def table(results: Results) -> Table:
    """Figures by cell and metric, one column an arm; excluded figures struck, codes beside."""
    facts = Facts(results)
    drawn = Table(pad_edge=False, box=None, header_style="bold")
    drawn.add_column("", min_width=32)
    for arm in facts.arms:
        drawn.add_column(arm, justify="right", no_wrap=True)
    drawn.add_column("", style="dim")
    for cell in facts.cells:
        if metrics := shown(cell):
            drawn.add_row(Text(cell.id, style="bold"))
            for metric in metrics:
                drawn.add_row(*_line(facts, cell, metric))
    return drawn


def _line(facts: Facts, cell: AnyCell, metric: Metric) -> list[Text]:
    figures = [facts.figure(cell, metric.key, arm) for arm in facts.arms]
    unit, factor = unit_for(metric.unit, [figure.value for figure in figures])
    return [Text(f"  {metric.label}"), *(_text(f, factor) for f in figures), Text(unit)]


def _text(figure: Figure, factor: float) -> Text:
    value = None if figure.value is None else figure.value * factor
    if not figure.excluded:
        return Text(number(value))
    codes = "\n".join(dict.fromkeys(code.code for code in figure.codes))
    return Text.assemble((number(value), "strike dim"), (f"\n{codes}", "yellow"))
