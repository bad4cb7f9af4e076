"""Time stalled and tokens lost of the readers: what a short worst pause leaves to be said.

Rules of this file: verdicts are `Facts.versus`'s. A chunked prefill cuts one long pause into many
short ones, by which a reader may gain nothing: so these two are told beside the worst pause, and
an arm that is ahead in them is named, whether the blocks tell the two apart or not. Tokens lost are
reckoned from a quiet speed: what null runs show of them is how far they may be wrong, and two arms
no further apart are not told apart by them, whatever the blocks say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twolane.analysis.measures import STALL_FLOOR_NS
from twolane.clock import MS
from twolane.records import InterferenceCell
from twolane.report.facts import Facts, Figure
from twolane.report.metrics import INTERFERENCE, Metric, spoken

STALLED, LOST = INTERFERENCE[2], INTERFERENCE[3]
WORST, AFTER, LONG_TTFT = INTERFERENCE[0], INTERFERENCE[-2], INTERFERENCE[-1]
_NAMES = {STALLED.key: "time stalled", LOST.key: "tokens lost"}


@dataclass(frozen=True)
class Ahead:
    """An arm that is ahead of the chosen one in a measure; `told` if the blocks say so.

    `lower` is an arm, with its value, that has less still and that the blocks do not tell apart.
    """

    metric: Metric
    arm: str
    value: float
    told: bool
    lower: tuple[str, float] | None = None

    @property
    def measure(self) -> str:
        return _NAMES[self.metric.key]


def ahead(facts: Facts, cell: InterferenceCell, chosen: str) -> list[Ahead]:
    """The best arm ahead of the chosen one, of each measure that has one."""
    found = (_ahead(facts, cell, metric, chosen) for metric in (STALLED, LOST))
    return [one for one in found if one is not None]


def distinct(facts: Facts, names: Sequence[str]) -> list[str]:
    """Of arms that run alike (A/A) the first alone, unless fewer than two would be left."""
    twins = {b for a, b in facts.alike if a in names}
    once = [name for name in names if name not in twins]
    return once if len(once) > 1 else list(names)


def _ahead(facts: Facts, cell: InterferenceCell, metric: Metric, chosen: str) -> Ahead | None:
    mine = facts.figure(cell, metric.key, chosen)
    if mine.value is None or mine.excluded or within_null(facts, cell, metric, mine):
        return None
    names = distinct(facts, [chosen, *(arm for arm in facts.arms if arm != chosen)])
    others = [facts.figure(cell, metric.key, arm) for arm in names if arm != chosen]
    less = {
        one.arm: one.value
        for one in others
        if one.value is not None and not one.excluded and _less(one.value, mine.value, facts.margin)
    }
    told = [
        arm
        for arm, value in less.items()
        if facts.versus(cell, metric, chosen, arm).outcome == "B better"
        and mine.value - value > _unsure(facts, cell, metric, (chosen, arm))
    ]
    best = min(told or less, key=less.__getitem__, default=None)
    if best is None:
        return None
    least = min(less, key=less.__getitem__)
    lower = (least, less[least]) if less[least] < less[best] else None
    return Ahead(metric, best, less[best], bool(told), lower)


def _unsure(facts: Facts, cell: InterferenceCell, metric: Metric, arms: Sequence[str]) -> float:
    if not metric.floor:
        return 0.0
    return max(facts.unsure(cell, metric.floor, arm) for arm in arms)


def _less(other: float, mine: float, margin: float) -> bool:
    """Whether it is less by more than the margin."""
    return mine > 0 and max(other, 0.0) * (1 + margin) < mine


def within_null(facts: Facts, cell: InterferenceCell, metric: Metric, one: Figure) -> bool:
    """Whether an arm's own null runs show as much."""
    if not metric.floor or one.value is None:
        return False
    return one.value <= facts.unsure(cell, metric.floor, one.arm)


def sentence(facts: Facts, cell: InterferenceCell, chosen: str, beside: str = "") -> str:
    """What a reader still loses with the chosen arm, and who is ahead in that; may be empty. How
    many stall is told of the arm `beside` it too: of copies only the busy one's readers do."""
    stalled, lost = (facts.figure(cell, metric.key, chosen) for metric in (STALLED, LOST))
    if stalled.value is None or stalled.excluded:
        return ""
    parts = [_stalls(facts, cell, chosen, stalled.value, beside)]
    if lost.value is not None and not lost.excluded:
        parts.append(_loses(facts, cell, lost))
    parts += _afterwards(facts, cell, chosen)
    others = [_told(facts, one) for one in ahead(facts, cell, chosen)]
    return "; ".join([", ".join(parts), *others])


def _stalls(facts: Facts, cell: InterferenceCell, arm: str, seconds: float, beside: str) -> str:
    """A sum of stalls, which is not to be read as one."""
    if seconds <= 0:
        return "no reader stalled"
    took = facts.figure(cell, LONG_TTFT.key, arm)
    during = f" (the prompt took {spoken(took.value, 'ms')})" if took.value else " in all"
    who = (facts.stalled(cell, arm) or "a reader") if cell.victims > 1 else "the reader"
    which = "; the worse" if cell.victims == 2 else "; the worst"
    theirs = facts.stalled(cell, beside).removesuffix(" readers") if beside else ""
    differ = bool(theirs) and not who.startswith(theirs)
    also = f" ({theirs} with {beside})" if differ and cell.victims > 1 else ""
    subject = f"{who} stalled{also}{which if cell.victims > 1 else ''}"
    return f"{subject} for {spoken(seconds, 's')}{during}"


def _afterwards(facts: Facts, cell: InterferenceCell, arm: str) -> list[str]:
    """A stall after the long prompt's first token that is longer than any pause before it."""
    worst, after = (facts.figure(cell, metric.key, arm).value for metric in (WORST, AFTER))
    if worst is None or after is None or not _less(worst, after, facts.margin):
        return []
    if after < STALL_FLOOR_NS / MS:
        return []
    return [f"and a pause of {spoken(after, 'ms')} after its first token, longer than any before"]


def _loses(facts: Facts, cell: InterferenceCell, lost: Figure) -> str:
    if within_null(facts, cell, LOST, lost):
        return "no more tokens lost than its null runs show"
    value = lost.value or 0.0
    return f"{spoken(value, 'tokens')} lost" if value > 0 else "no tokens lost"


def _told(facts: Facts, one: Ahead) -> str:
    verdict = "by verdict" if one.told else "one block" if facts.blocks == 1 else "cannot tell"
    less = "less time stalled" if one.metric is STALLED else "fewer tokens lost"
    value = spoken(max(one.value, 0.0), one.metric.unit)
    also = ""
    if one.lower is not None:
        name, least = one.lower
        also = f"; {name} {spoken(max(least, 0.0), one.metric.unit)}, cannot tell"
    return f"{less} with {one.arm} ({value}, {verdict}{also})"
