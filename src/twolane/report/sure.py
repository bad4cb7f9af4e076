"""How sure the first screen's decision is: a short list, and each entry in full.

Rules of this file: verdicts are `Facts.versus`'s; a short entry says nothing that its full one does
not. A warning names what would otherwise be read as the long prompt's doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from twolane.analysis.compare import Comparison, Outcome
from twolane.analysis.confounds import Confound
from twolane.records import AnyCell, InterferenceCell
from twolane.report import again
from twolane.report.answer import first_up, listed
from twolane.report.decision import within_null
from twolane.report.facts import Facts, Figure, descriptions, inside
from twolane.report.losses import STALLED
from twolane.report.metrics import INTERFERENCE, Metric, change, number, span

WORST, LOST, QUIET = INTERFERENCE[0], INTERFERENCE[3], INTERFERENCE[5]
# Quiet speeds further apart than this shift whatever is reckoned from them, as tokens lost are.
_UNEQUAL = 1.2
# Null runs that show this share of some arm's loss are no matter of rounding.
_RESTLESS = 0.1


FEWEST_BLOCKS: Final = 3
"""For a verdict worth its name: of equal spread, Student's t makes an interval of two blocks 3.6
times as wide as one of three."""


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
        short = "Indicative: one block shows no spread, so this is not a verdict."
        command = again.with_more_blocks([r.meta for r in facts.results.runs], FEWEST_BLOCKS)
        return (Note(short, f"{short} `{command}` adds the blocks for one."),)
    told = [facts.versus(cell, WORST, best.arm, other) for other in others]
    floored = within_null(facts, cell, best)
    return (
        _judged(facts, best.arm, told, floored=floored),
        *_frailty(facts, cell, told),
        *_circumstances(facts),
    )


_SHORT: tuple[tuple[tuple[Outcome, ...], str], ...] = (
    (("A better",), "better than"),
    (("B better",), "worse than"),
    (("equal",), "equal to"),
)


def _judged(facts: Facts, best: str, told: Sequence[Comparison], *, floored: bool) -> Note:
    words = descriptions(facts.results.runs)
    same = len({one.blocks for one in told}) == 1
    parts = [
        _outcome(one, inside(words[one.b]), facts.reference)
        + ("" if same else f" over {_blocks(one.blocks)}")
        for one in told
        if not _open(one)
    ]
    open_ = [f"{inside(words[one.b])} ({_lacks(one)})" for one in told if _open(one)]
    over = f"Over {_blocks(told[0].blocks)} " if same else ""
    short = [
        f"{said} {listed(arms)}"
        for outcomes, said in _SHORT
        if (arms := [one.b for one in told if one.outcome in outcomes])
    ]
    unsure = [one.b for one in told if _open(one)]
    brief = [f"{best} is {'; '.join(short)}"] if short else []
    brief += [f"cannot tell {best} from {listed(unsure)}"] if unsure else []
    full = [f"{inside(words[best])} is by the worst pause {listed(parts)}"] if parts else []
    full += [f"cannot tell {inside(words[best])} from {listed(open_)}"] if open_ else []
    floor = (
        " How many times shorter partly measures what the machine adds by itself."
        if floored and parts
        else ""
    )
    return Note(
        f"By the worst pause, {'; '.join(brief)}.{floor}",
        f"{first_up(over + '; '.join(full))}.{floor}",
    )


def _lacks(found: Comparison) -> str:
    """The blocks of a pair that is not told apart, and how many more would do."""
    if found.outcome == "indicative":
        return _blocks(found.blocks)
    return f"{_blocks(found.blocks)}; {found.verdict.removeprefix('cannot tell, ')}"


def _open(found: Comparison) -> bool:
    return found.outcome in ("cannot tell", "indicative")


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count != 1)}"


def _frailty(facts: Facts, cell: AnyCell, told: Sequence[Comparison]) -> tuple[Note, ...]:
    """What the verdicts rest on, and what they do not take into account."""
    guess = "; how many more blocks would do is a guess" if any(o.more_blocks for o in told) else ""
    rest = (
        "; each interval stands for itself and is not corrected for the number of ratios on this "
        f"page{guess}"
    )
    said = f"It rests on {_rests(told)}; {_alike(facts, cell)}"
    return (Note(f"{said}.", f"{said}{rest}."),)


def _rests(told: Sequence[Comparison]) -> str:
    """The blocks of the pairs in question: an arm may lack some."""
    by_blocks: dict[int, list[str]] = {}
    for one in told:
        by_blocks.setdefault(one.blocks, []).append(one.b)
    if len(by_blocks) == 1:
        return _blocks(told[0].blocks)
    return listed([f"{_blocks(n)} against {listed(arms)}" for n, arms in by_blocks.items()])


def _alike(facts: Facts, cell: AnyCell) -> str:
    """How far equal arms were apart, by measure, with the pairs and their blocks."""
    measures: tuple[tuple[Metric, str], ...] = (
        (WORST, "worst pause"), (STALLED, "time stalled"), (LOST, "tokens lost")
    )  # fmt: skip
    floors = [
        f"{(floor - 1) * 100:.2g} % in {name}"
        for metric, name in measures
        if (floor := facts.floor(cell, metric.key)) is not None
    ]
    if not floors:
        return f"no noise floor, since {facts.no_floor}"
    pairs = [facts.versus(cell, WORST, b, a) for a, b in facts.alike]
    named = listed([f"{one.a} against {one.b}, {_blocks(one.blocks)}" for one in pairs])
    return f"equal arms (A/A: {named}) were apart by at most {listed(floors)}"


def _circumstances(facts: Facts) -> tuple[Note, ...]:
    """Severe differences, and who else was on the host: not only in the list of all differences."""
    severe = [one for one in facts.confounds if one.severity == "severe"]
    parts = []
    for words, mine in (
        ("between arms", [one.what for one in severe if _separates(facts, one)]),
        ("between blocks", [one.what for one in severe if not _separates(facts, one)]),
    ):
        if mine:
            parts.append(f"{listed(mine)} differ{'s' * (len(mine) == 1)} {words}")
    runs = facts.results.runs
    beside = sum(bool(run.meta.host.get("beside")) for run in runs)
    if beside:
        parts.append(f"another campaign ran on this host beside {beside} of {len(runs)} runs")
    return (Note(f"Beware: {'; '.join(parts)}."),) if parts else ()


def _separates(facts: Facts, one: Confound) -> bool:
    return any(one.separates(a, b) for a, b in combinations(facts.arms, 2))


def unequal(facts: Facts, cell: InterferenceCell) -> list[Note]:
    """A warning where the readers were not read equally fast before the prompt came."""
    figures = [facts.figure(cell, QUIET.key, arm) for arm in facts.arms]
    speeds = {figure.arm: figure.value for figure in figures if figure.value}
    if not speeds or max(speeds.values()) <= _UNEQUAL * min(speeds.values()):
        return []
    slowest, fastest = (end(speeds, key=speeds.__getitem__) for end in (min, max))
    told = listed([f"{number(speed)} ({arm})" for arm, speed in speeds.items()])
    return [
        Note(
            f"Beware: the arms did not start equal ({slowest} slowest, {number(speeds[slowest])} "
            f"tokens/s; {fastest} {number(speeds[fastest])}): read tokens lost with care.",
            f"Beware: before the prompt came, the readers got {told} tokens/s, so something else "
            "differs too, such as how they share engines or other load on this machine; tokens "
            "lost are reckoned from these speeds.",
        )
    ]


def restless(facts: Facts, cell: InterferenceCell) -> list[Note]:
    """A warning where null runs say that tokens lost may be wrong by a good part of some loss."""
    clean = [facts.figure(cell, LOST.key, arm) for arm in facts.arms]
    lost = [abs(one.value) for one in clean if one.value and not one.excluded]
    points = [p for p in facts.points(cell, LOST.floor) if not p.codes and p.value is not None]
    alone = [p.value for p in points if p.value is not None]
    if not lost or not alone or max(map(abs, alone)) < _RESTLESS * min(lost):
        return []
    low, high = (number(end(alone), decimals=0) for end in (min, max))
    return [
        Note(
            f"Null runs, scaled to the prefill\u2019s length, give {low} to {high}: tokens lost is "
            "uncertain by about that."
        )
    ]


def warned(facts: Facts) -> tuple[Note, ...]:
    """Runs that did not end well, and what is lost, changed or without a seal."""
    return tuple(map(_cut, facts.caveats))


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
    raise ValueError(found.outcome)


def _span(found: Comparison, reference: str) -> str:
    """The ratio as the page's other ratios have it: never the reference arm's over another's."""
    if found.ratio is None or found.low is None or found.high is None:
        return "one block"
    if found.a == reference:
        low, high = span(1 / found.ratio, 1 / found.high, 1 / found.low)
        return f"whose pause is {change(1 / found.ratio)}, 95 % interval {low} to {high}"
    low, high = span(found.ratio, found.low, found.high)
    return f"{change(found.ratio)}, 95 % interval {low} to {high}"
