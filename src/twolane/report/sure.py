"""How sure the first screen's decision is: a short list, and each entry in full.

Rules of this file: verdicts are `Facts.versus`'s; a short entry says nothing that its full one does
not. A warning names what would otherwise be read as the long prompt's doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twolane.analysis.compare import Comparison, Outcome
from twolane.records import AnyCell, InterferenceCell
from twolane.report.answer import listed
from twolane.report.facts import Facts, Figure, descriptions, inside
from twolane.report.metrics import INTERFERENCE, change, number, span

WORST, LOST, QUIET = INTERFERENCE[0], INTERFERENCE[3], INTERFERENCE[5]
# Quiet speeds further apart than this shift whatever is reckoned from them, as tokens lost are.
_UNEQUAL = 1.2
# A null run that lost this share of what the prompt's run lost is no matter of rounding.
_RESTLESS = 0.1


@dataclass(frozen=True)
class Note:
    """One entry: `short` for the first screen, `full` for the terminal and who opens it."""

    short: str
    in_full: str = ""

    @property
    def full(self) -> str:
        return self.in_full or self.short


def sure(
    facts: Facts, cell: InterferenceCell, seen: Sequence[Figure], best: Figure | None
) -> tuple[Note, ...]:
    """What the verdict rests on. Where there is none, why."""
    if best is None:
        return (
            Note("Every arm\u2019s figure is excluded by a reason code, so there is no verdict."),
        )
    others = [figure.arm for figure in seen if figure is not best and not figure.excluded]
    if not others:
        return (
            Note(
                "Only one arm has this figure without a code, so there is nothing to compare it "
                "with."
            ),
        )
    if facts.blocks == 1:
        return (Note("Indicative: one block shows no spread, so this is not a verdict."),)
    told = [facts.versus(cell, WORST, best.arm, other) for other in others]
    return (_judged(facts, best.arm, told), *_frailty(facts, cell, told))


_SHORT: tuple[tuple[tuple[Outcome, ...], str], ...] = (
    (("A better",), "better than"),
    (("B better",), "worse than"),
    (("equal",), "equal to"),
    (("cannot tell", "indicative"), "not told apart from"),
)


def _judged(facts: Facts, best: str, told: Sequence[Comparison]) -> Note:
    words = descriptions(facts.results.runs)
    parts = [_outcome(one, inside(words[one.b]), facts.reference) for one in told]
    full = (
        f"Over {facts.blocks} blocks {inside(words[best])} is by the worst pause {listed(parts)}."
    )
    short = [
        f"{said} {listed(arms)}"
        for outcomes, said in _SHORT
        if (arms := [one.b for one in told if one.outcome in outcomes])
    ]
    return Note(f"By the worst pause, {best} is {'; '.join(short)}.", full)


def _frailty(facts: Facts, cell: AnyCell, told: Sequence[Comparison]) -> tuple[Note, ...]:
    """What the verdicts rest on, and what they do not take into account."""
    floor = facts.floor(cell, WORST.key)
    alike = (
        f"no noise floor, since {facts.no_floor}"
        if floor is None
        else f"equal arms (A/A) were apart by {(floor - 1) * 100:.2g} % at most"
    )
    guess = "; how many more blocks would do is a guess" if any(o.more_blocks for o in told) else ""
    rest = (
        "; each interval stands for itself and is not corrected for the number of ratios on this "
        f"page{guess}"
    )
    said = f"It rests on {facts.blocks} blocks; {alike}"
    return (Note(f"{said}.", f"{said}{rest}."),)


def unequal(facts: Facts, cell: InterferenceCell) -> list[Note]:
    """A warning where the readers were not read equally fast before the prompt came."""
    figures = [facts.figure(cell, QUIET.key, arm) for arm in facts.arms]
    speeds = {figure.arm: figure.value for figure in figures if figure.value}
    if not speeds or max(speeds.values()) <= _UNEQUAL * min(speeds.values()):
        return []
    ends = " to ".join(number(end(speeds.values())) for end in (min, max))
    told = listed([f"{number(speed)} ({arm})" for arm, speed in speeds.items()])
    return [
        Note(
            f"Beware: before the prompt came, readers got {ends} tokens/s by arm, so something "
            "else differs too; it shifts tokens lost.",
            f"Beware: before the prompt came, the readers got {told} tokens/s, so something else "
            "differs too, such as how they share engines or other load on this machine; tokens "
            "lost are reckoned from these speeds.",
        )
    ]


def restless(facts: Facts, cell: InterferenceCell) -> list[Note]:
    """A warning where null runs lost a good part of what is claimed to be the prompt's doing."""
    lost = {arm: facts.figure(cell, LOST.key, arm) for arm in facts.arms}
    alone = {arm: facts.figure(cell, LOST.floor, arm).value or 0.0 for arm in facts.arms}
    much = {
        arm: alone[arm] / one.value
        for arm, one in lost.items()
        if one.value and not one.excluded and one.value > alone[arm] >= _RESTLESS * one.value
    }
    if not much:
        return []
    told = listed([f"{number(alone[arm])} of {number(lost[arm].value)} ({arm})" for arm in much])
    most = max(much, key=much.__getitem__)
    return [
        Note(
            f"Null runs lost tokens too: up to {much[most] * 100:.0f} % of a loss ({most}) is the "
            "machine\u2019s.",
            f"Null runs lost tokens too, {told}: that much of a loss is the machine\u2019s.",
        )
    ]


def warned(facts: Facts) -> tuple[Note, ...]:
    """Runs that did not end well, and what is lost, changed or without a seal."""
    notes = []
    open_ = [f"{run.arm} {run.meta.status}" for run in facts.results.runs if not run.finished]
    if open_:
        notes.append(
            f"Not finished: {len(open_)} of {len(facts.results.runs)} runs ({', '.join(open_)})."
        )
    return tuple(_cut(note) for note in [*notes, *facts.caveats])


def _cut(sentence: str) -> Note:
    """A sentence whose consequence, behind a semicolon, is folded away."""
    first, cut, _ = sentence.partition("; ")
    return Note(f"{first}.", sentence) if cut else Note(sentence)


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
