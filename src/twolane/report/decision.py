"""Which arm to run, by rules, and what that costs.

Rules of this file: of the arms without a reason code the one with the shortest worst pause is
chosen, unless the next best is as good (within `NEAR`, or not to be told from its own null run) and
has the better throughput. With fewer than two such arms, where a code is the reason, the run cannot
answer. It says "Run" only where every other arm without a code can be told from the chosen one; one
block is indicative, and what blocks do not settle it cannot tell. Of equal arms (A/A) the first
alone is asked. Where time stalled or tokens lost are better with another arm, the first words say
so; where by verdict, or where blocks overlap or cells disagree, nobody leads. What it costs is held
against the best arm of the other layout, since that is what one chooses between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from twolane.analysis.compare import Comparison
from twolane.records import AnyCell, InterferenceCell
from twolane.report import again, codes, losses, transfers, unproven
from twolane.report.answer import listed
from twolane.report.facts import Facts, Figure, floor_range, users_of
from twolane.report.metrics import GRID, INTERFERENCE, Metric, spoken

NEAR: Final = 1.25
"""Worst pauses up to this multiple of each other are as good."""
NULL_REACH: Final = 1.5
"""A worst pause up to this multiple of its own null run's cannot be told from it."""
_MANY = 4  # arms whose figures are not all named in a line: the bars beside it have them
PAUSE, STILL = "Worst pause", "Still lost"

WORST, NULL, LONG_TTFT = INTERFERENCE[0], INTERFERENCE[1], INTERFERENCE[-1]
SHORT_TTFT, THROUGHPUT = GRID[0], GRID[-1]


Strength = Literal["settled", "indicative", "open", "spoiled", "none"]


@dataclass(frozen=True)
class Line:
    """One line of evidence under the decision; `of` names what it is about.

    Its `words` may be of several `parts`, a line of text each; `command` is to be typed.
    """

    of: str
    words: str
    command: str = ""

    @property
    def parts(self) -> list[str]:
        return self.words.split("\n")

    def __str__(self) -> str:
        told = f"{self.of}: {'. '.join(self.parts)}"
        return f"{told}: {self.command}" if self.command else f"{told}."


@dataclass(frozen=True)
class Decision:
    """What to run and why; `arm` is chosen against `rival`, or None where nothing is.

    `strength` is how much of a recommendation it is.
    """

    headline: str
    lines: tuple[Line, ...] = ()
    strength: Strength = "none"
    arm: str | None = None
    rival: str | None = None

    @property
    def sentence(self) -> str:
        return " ".join([f"{self.headline}.", *map(str, self.lines)]) if self.headline else ""

    def line(self, of: str) -> str:
        """The words of one line; empty where there is none."""
        return next((". ".join(line.parts) for line in self.lines if line.of == of), "")


def decide(facts: Facts, cell: InterferenceCell) -> Decision:
    """The decision that the figures of `cell` allow; an empty sentence where none is asked for."""
    figures = [facts.figure(cell, WORST.key, arm) for arm in facts.arms]
    clean = sorted((f for f in figures if f.value is not None and not f.excluded), key=_value)
    spoiled = [f for f in figures if f.excluded]
    if len(clean) < 2:
        alone = clean[0].arm if clean else None
        return _spoiled(facts, spoiled, alone) if spoiled else Decision("", arm=alone)
    clean = _once(facts, clean)
    chosen, rival, why = _choice(facts, cell, clean[0], clean[1])
    others = [one for one in clean if one is not chosen]
    strength, headline, doubts = _opening(facts, cell, chosen, others)
    if strength == "open" and (against := _undecided(facts, cell, chosen, others)):
        why = against
    else:
        why = "; ".join(filter(None, (why, *_also(facts, cell, chosen, rival, others))))
    unjudged = " and ".join(one.arm for one in spoiled)
    rest = f"; {unjudged} could not be judged" if unjudged else ""
    other = _alternative(facts, chosen, others)
    told = (
        Line(PAUSE, why),
        Line("KV transfer", transfers.cause(facts, cell)),
        Line(STILL, losses.sentence(facts, cell, chosen.arm, other)),
        _costs(facts, cell, chosen.arm, other),
        Line("To settle it", doubts, _settling(facts, cell, chosen, others)),
    )
    lines = tuple(line for line in told if line.words)
    return Decision(headline + rest, lines, strength, chosen.arm, rival.arm)


def _alternative(facts: Facts, chosen: Figure, others: Sequence[Figure]) -> str:
    """The arm of the other layout with the shortest worst pause, else of the same one."""
    split = _split(facts, chosen.arm)
    other = [one for one in others if _split(facts, one.arm) != split]
    return min(other or others, key=_value).arm


def _split(facts: Facts, arm: str) -> bool:
    """Whether it is known to be one; of an arm without engines on record nothing is."""
    known = facts.layouts.get(arm)
    return known is not None and known.split


def _also(
    facts: Facts, cell: InterferenceCell, chosen: Figure, rival: Figure, others: Sequence[Figure]
) -> tuple[str, str]:
    """The other layout's pause, where the next best is of the same; and what would do as well."""
    other = _alternative(facts, chosen, others)
    seen = [facts.figure(cell, WORST.key, arm).value for arm in facts.arms]
    pause = spoken(facts.figure(cell, WORST.key, other).value, WORST.unit, beside=seen)
    return (
        "" if other == rival.arm else f"{pause} with {other}",
        _enough(facts, cell, chosen.arm),
    )


def _enough(facts: Facts, cell: InterferenceCell, chosen: str) -> str:
    """What would do without the split that was chosen, where a longer pause is no matter."""
    mine = (one for one in facts.answers.alone if one.cell == cell)
    found = next((one for one in mine if one.arm is not None and one.arm.name != chosen), None)
    if found is None or found.arm is None or not _split(facts, chosen):
        return ""
    return f"if {found.limit_ms:g} ms will do, so will {found.arm.name}"


def _undecided(
    facts: Facts, cell: InterferenceCell, chosen: Figure, others: Sequence[Figure]
) -> str:
    """The blocks' own pauses, where the chosen arm's are among those of an arm that is not told
    from it, or another cell has it the other way round; else empty."""
    found = [one for one in others if _unsettled(facts.versus(cell, WORST, chosen.arm, one.arm))]
    rival = min(found, key=_value, default=None)
    if rival is None:
        return ""
    mine, theirs = (_clean(facts, cell, one.arm) for one in (chosen, rival))
    other = [
        where
        for c in _other_cells(facts, cell)
        if (where := _reversed(facts, c, chosen.arm, rival.arm))
    ]
    if max(mine) < min(theirs) and not other:
        return ""
    seen = [*mine, *theirs]
    blocks = [
        f"{listed([spoken(value, WORST.unit, beside=seen) for value in values])} with {arm}"
        for values, arm in ((mine, chosen.arm), (theirs, rival.arm))
    ]
    where = f"; the other way round {listed(other[: _MANY - 1])}" if other else ""
    return f"by block, {', '.join(blocks)}{where}"


def _clean(facts: Facts, cell: AnyCell, arm: str) -> list[float]:
    points = sorted(facts.points(cell, WORST.key), key=lambda p: p.block)
    return [p.value for p in points if p.arm == arm and not p.codes and p.value is not None]


def _other_cells(facts: Facts, cell: InterferenceCell) -> list[InterferenceCell]:
    return [one for one in facts.cells if isinstance(one, InterferenceCell) and one != cell]


def _reversed(facts: Facts, cell: InterferenceCell, arm: str, rival: str) -> str:
    """Where it is, with both figures, if the rival's pause is the shorter one there."""
    mine, theirs = (facts.figure(cell, WORST.key, one) for one in (arm, rival))
    if mine.excluded or theirs.excluded or _value(mine) <= _value(theirs) or not theirs.value:
        return ""
    asked = facts.interference
    both = [_value(mine), _value(theirs)]
    told = [spoken(value, WORST.unit, beside=both) for value in both]
    figures = f"({told[0]} with {arm}, {told[1]} with {rival})"
    if asked is not None and cell.victims != asked.victims:
        return f"beside {cell.victims} reader{'s' * (cell.victims != 1)} {figures}"
    return f"at {cell.prompt:,} tokens {figures}"


def _unsettled(found: Comparison) -> bool:
    return found.outcome in ("cannot tell", "indicative")


def _spoiled(facts: Facts, spoiled: Sequence[Figure], alone: str | None) -> Decision:
    """Fewer than two arms are without a code: why there is no verdict, and what to do about it."""
    struck = {code.code: code for figure in reversed(spoiled) for code in figure.codes}
    if unproven.made_up(facts) and set(struck) == {unproven.NEEDLE}:
        headline, told = "Figures, not a verdict: the weights are made up", _range(spoiled)
    else:
        headline = f"This run cannot answer: {'; '.join(code.why for code in struck.values())}"
        told = ""
    remedies = [word for code in struck if (word := _remedy(facts, code))]
    lines = [Line(PAUSE, told)] if told else []
    lines += [Line("What to do", "; ".join(remedies))] if remedies else []
    return Decision(headline, tuple(lines), strength="spoiled", arm=alone)


def _range(spoiled: Sequence[Figure]) -> str:
    """The pauses of made-up weights, which are real; of many arms the ends."""
    figures = sorted((one for one in spoiled if one.value is not None), key=_value)
    values = [one.value for one in figures]
    parts = [f"{spoken(one.value, WORST.unit, beside=values)} with {one.arm}" for one in figures]
    return ", ".join(parts) if len(parts) < _MANY else f"{parts[0]} to {parts[-1]}"


def _once(facts: Facts, clean: list[Figure]) -> list[Figure]:
    """Of arms that run alike (A/A) the first alone, unless nothing else is there to choose."""
    names = losses.distinct(facts, [one.arm for one in clean])
    return [one for one in clean if one.arm in names]


def _remedy(facts: Facts, code: str) -> str:
    if without := unproven.remedy(facts, [code]):
        return without
    metas = [run.meta for run in facts.results.runs]
    return codes.remedy(code, again.command(metas[0], [code], among=metas))


def _opening(
    facts: Facts, cell: InterferenceCell, chosen: Figure, others: Sequence[Figure]
) -> tuple[Strength, str, str]:
    """How much of a recommendation it is, the words for that, and what is in doubt."""
    against = losses.ahead(facts, cell, chosen.arm)
    strength, headline, doubts = _pauses(facts, cell, chosen, others)
    if told := [one for one in against if one.told]:
        others_lead = " and ".join(f"by {one.measure} {one.arm}" for one in told)
        leads = "leads" if _shortest(chosen, others) else "is as good as any"
        disagree = f"The measures disagree: by the worst pause {chosen.arm} {leads}, {others_lead}"
        return "open", disagree, doubts
    alone = " if only the worst pause counts"
    if not _shortest(chosen, others):
        alone = "" if strength == "open" else " if only worst pause and throughput count"
    elif strength == "open":
        alone = "" if headline.startswith("No winner") else " by the worst pause alone"
    return strength, headline + alone * bool(against), doubts


def _pauses(
    facts: Facts, cell: AnyCell, chosen: Figure, others: Sequence[Figure]
) -> tuple[Strength, str, str]:
    """The same by the worst pause alone."""
    if facts.blocks == 1:
        return "indicative", f"Indicative, from one block: run {chosen.arm}", ""
    found = [facts.versus(cell, WORST, chosen.arm, other.arm) for other in others]
    unsettled = [one for one in found if _unsettled(one)]
    if not unsettled:
        return "settled", f"Run {chosen.arm}", ""
    if isinstance(cell, InterferenceCell) and _undecided(facts, cell, chosen, others):
        rival = min((one for one in others if one.arm in {c.b for c in unsettled}), key=_value)
        both = [_value(chosen), _value(rival)]
        mine, theirs = (spoken(value, WORST.unit, beside=both) for value in both)
        told = f"{mine} with {chosen.arm} and {theirs} with {rival.arm}"
        return "open", f"No winner yet: {told} are not told apart", _doubts(unsettled)
    leads = f"So far {chosen.arm} leads"
    if not _shortest(chosen, others):
        leads += ", as good as the shortest worst pause and with the better throughput"
    return "open", f"Cannot tell yet. {leads}", _doubts(unsettled)


def _shortest(chosen: Figure, others: Sequence[Figure]) -> bool:
    return all(_value(chosen) <= _value(one) for one in others)


def _doubts(unsettled: Sequence[Comparison]) -> str:
    """What would settle each, those with the same answer together."""
    by_words: dict[str, list[str]] = {}
    for one in unsettled:
        by_words.setdefault(_doubt(one), []).append(one.b)
    told = "; ".join(f"against {listed(arms)} {words}" for words, arms in by_words.items())
    guess = [one.blocks for one in unsettled if one.more_blocks]
    return f"{told} (a guess from {max(guess)})" if guess else told


def _settling(
    facts: Facts, cell: InterferenceCell, chosen: Figure, others: Sequence[Figure]
) -> str:
    """The command that measures the blocks which are missing; empty where none would help."""
    metas = [run.meta for run in facts.results.runs]
    found = [facts.versus(cell, WORST, chosen.arm, other.arm) for other in others]
    more = [one.more_blocks or 0 for one in found if one.outcome == "cannot tell"]
    once = any(one.outcome == "indicative" for one in found)
    further = max([*more, int(once and not facts.results.absent)], default=0)
    if not further and not (once and facts.results.absent):
        return ""
    return again.with_more_blocks(metas, facts.blocks + further)


def _doubt(found: Comparison) -> str:
    if found.outcome == "indicative":
        return "only one block has both"
    return found.verdict.removeprefix("cannot tell, ")


def _value(figure: Figure) -> float:
    return figure.value or 0.0


def within_null(facts: Facts, cell: AnyCell, figure: Figure) -> bool:
    """Whether an arm's worst pause cannot be told from that of its own null run."""
    alone = facts.figure(cell, NULL.key, figure.arm).value
    return alone is not None and figure.value is not None and figure.value <= NULL_REACH * alone


def _choice(
    facts: Facts, cell: InterferenceCell, best: Figure, following: Figure
) -> tuple[Figure, Figure, str]:
    """The chosen arm, the other, and what its worst pause is beside the other's."""
    seen = [facts.figure(cell, WORST.key, arm).value for arm in facts.arms]  # as the bars have it
    short, long = (spoken(one.value, WORST.unit, beside=seen) for one in (best, following))
    near = _value(following) <= NEAR * _value(best)
    if not (near or within_null(facts, cell, following)) or not _faster(facts, following, best):
        what = "the shortest"
        if within_null(facts, cell, best):
            what = f"about what the machine adds with no prompt ({floor_range(facts, cell, NULL)})"
        return best, following, f"{short}, {what}; {long} with {following.arm}"
    like = f"within {NEAR:g} times" if near else "no more than its own null run shows, like"
    why = f"{long}, {like} the shortest ({short} with {best.arm})"
    return following, best, f"{why}, and the better throughput"


def _faster(facts: Facts, one: Figure, other: Figure) -> bool:
    """Whether the blocks say so; in a campaign of one, whether it is more than the margin."""
    if facts.grid is None:
        return False
    found = facts.versus(facts.grid, THROUGHPUT, one.arm, other.arm)
    if found.outcome == "indicative":
        return facts.blocks == 1 and found.ratio is not None and found.ratio > 1 + facts.margin
    return found.outcome == "A better"


def _costs(facts: Facts, cell: InterferenceCell, arm: str, rival: str) -> Line:
    asked = (
        (cell, LONG_TTFT, "first token of the long prompt"),
        (facts.grid, SHORT_TTFT, f"short prompts{users_of(facts.grid)}"),
        (facts.grid, THROUGHPUT, "throughput"),
    )
    worse: list[str] = []
    better: list[str] = []
    unknown: list[str] = []
    for where, metric, words in asked:
        ratio = _ratio(facts, where, metric, arm, rival)
        if where is None or ratio is None:
            continue
        outcome = facts.versus(where, metric, arm, rival).outcome
        told = f"{words} ({_both(facts, where, metric, arm, rival)}{_once_only(facts, outcome)})"
        if outcome == "cannot tell":
            unknown.append(told)
        elif abs(ratio - 1) > facts.margin:
            bad = (ratio > 1) == metric.lower_is_better
            (worse if bad else better).append(told)
    return _weighed(worse, better, unknown, rival)


def _once_only(facts: Facts, outcome: str) -> str:
    return ", one block" if outcome == "indicative" and facts.blocks > 1 else ""


def _both(facts: Facts, cell: AnyCell, metric: Metric, arm: str, rival: str) -> str:
    """Both figures; beside them the best of the rival's layout, where that is another arm's."""
    split = _split(facts, rival)
    like = [one for one in losses.distinct(facts, facts.arms) if _split(facts, one) == split]
    seen = {one: facts.figure(cell, metric.key, one) for one in (arm, *like, rival)}
    clean = {one: f.value for one, f in seen.items() if f.value is not None and not f.excluded}
    mine, theirs = (spoken(clean[one], metric.unit, beside=clean.values()) for one in (arm, rival))
    best = (min if metric.lower_is_better else max)(
        (one for one in clean if one != arm), key=clean.__getitem__
    )
    better = clean[best] != clean[rival] and abs(clean[best] / clean[rival] - 1) > facts.margin
    also = f"; {spoken(clean[best], metric.unit, beside=clean.values())} with {best}"
    return f"{mine} against {theirs}{also if better else ''}"


def _weighed(
    worse: Sequence[str], better: Sequence[str], unknown: Sequence[str], rival: str
) -> Line:
    parts = [", ".join(worse)] if worse else []
    if better:
        parts.append(f"{'gains ' if worse else ''}{', '.join(better)}")
    if unknown:
        parts.append(f"cannot tell {listed(unknown)}")
    if not parts:
        return Line(f"Costs against {rival}", "nothing that was measured")
    of = "Costs" if worse else "Gains" if better else "Costs"
    return Line(f"{of} against {rival}", "; ".join(parts))


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
