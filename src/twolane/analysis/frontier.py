"""What a token budget buys: the frontier of pause against wait, and the largest budget that holds.

Rules of this file: pure functions of points and arms. A point with a reason code is placed on the
frontier, marked, and decides nothing. An arm's figure is the median over its clean runs; whether
a budget *keeps* a limit is asked of each of them, since a pause that happened is a pause.

c*(p), the largest budget that keeps a reader's pause under tau at a prompt of p tokens, is read
from what was measured: the largest budget that kept it, and the smallest above it that did not.
Between two measured budgets it is estimated on a straight line, since a step's time is linear in
its chunk: gap = o + T_decode + c * (a + b * p).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

from twolane.analysis.arms import Arm
from twolane.analysis.evidence import Evidence, Seen
from twolane.records import AnyCell, InterferenceCell

GAP, TTFT, THROUGHPUT = "worst_gap_ms", "aggressor_ttft_ms", "throughput_tok_s"
GAP_LIMITS_MS: Final = (100.0, 250.0)
"""The limits that every campaign is asked about. 100 ms is about what still feels instant [Nielsen,
Usability Engineering, 1993]; 250 ms is seen as a hitch."""
FLAT_SHARE: Final = 0.1
"""Where a budget at least twice as large changes the pause by less than a tenth, the budget is not
what makes it."""


# ----------------------------------------------------------------------------------- frontier


@dataclass(frozen=True)
class Place:
    """One arm on the frontier of one interference cell. `efficient`: no clean arm is better in the
    pause and in the first token at once."""

    arm: Arm
    gap: Seen
    ttft: Seen
    throughput: Seen
    efficient: bool = False

    @property
    def clean(self) -> bool:
        return self.gap.clean


def frontier(evidence: Evidence, cell: InterferenceCell, grid: AnyCell | None) -> list[Place]:
    """Every arm that has a pause in `cell`, aggregated ones by budget, then the splits."""
    places = [
        Place(
            arm,
            evidence.seen(arm, cell, GAP),
            evidence.seen(arm, cell, TTFT),
            evidence.seen(arm, grid, THROUGHPUT),
        )
        for arm in evidence.arms.values()
    ]
    known = [place for place in places if place.gap.middle is not None]
    marked = [replace(place, efficient=_efficient(place, known)) for place in known]
    return sorted(marked, key=lambda p: (p.arm.split, p.arm.budget or 0, p.arm.name))


def _efficient(place: Place, among: Sequence[Place]) -> bool:
    beaten = any(_beats(other, place) for other in among if other is not place)
    return place.clean and place.ttft.clean and not beaten


def _beats(one: Place, other: Place) -> bool:
    """Whether `one`, clean, is no worse in both and better in one."""
    pairs = [(one.gap, other.gap), (one.ttft, other.ttft)]
    if not all(mine.clean and theirs.clean for mine, theirs in pairs):
        return False
    both = [(mine.middle or 0.0, theirs.middle or 0.0) for mine, theirs in pairs]
    return all(a <= b for a, b in both) and any(a < b for a, b in both)


# ---------------------------------------------------------------------------------------- c*

Holds = Literal["held", "bracketed", "none measured", "none would", "cannot tell"]


@dataclass(frozen=True)
class BudgetLimit:
    """c*(p) of one layout at one prompt length for one limit.

    `held` is the largest measured budget that kept it, `exceeded` the smallest measured one above
    that did not, `estimate` the budget between them on a straight line. `outcome`: "held" (every
    measured budget kept it), "bracketed", "none measured" (the smallest did not keep it), "none
    would" (nor would a smaller one: `floor_ms`, what is left of the pause at budget 0, is over the
    limit, or the pause does not depend on the budget), "cannot tell".
    """

    layout: str
    devices: int
    prompt: int
    victims: int
    limit_ms: float
    outcome: Holds
    runs: int
    held: int | None = None
    exceeded: int | None = None
    estimate: float | None = None
    floor_ms: float | None = None
    gaps_ms: tuple[tuple[int, float], ...] = ()  # worst pause by measured budget
    coded: tuple[int, ...] = ()  # budgets whose every point carries a code
    missing: str = ""


def budget_limits(
    evidence: Evidence, cells: Iterable[AnyCell], limits_ms: Sequence[float] = GAP_LIMITS_MS
) -> list[BudgetLimit]:
    """c*(p) for each aggregated layout, interference cell and limit, shortest prompt first."""
    found = [
        _limit(evidence, cell, same, limit)
        for cell in cells
        if isinstance(cell, InterferenceCell)
        for same in by_layout(evidence.aggregated)
        for limit in limits_ms
    ]
    return sorted(found, key=lambda one: (one.layout, one.victims, one.prompt, one.limit_ms))


def by_layout(arms: Iterable[Arm]) -> list[list[Arm]]:
    """Arms that differ in their budget alone together, the smallest budget first."""
    groups: dict[tuple[str, tuple[str, ...]], list[Arm]] = {}
    for arm in arms:
        if arm.budget is not None:
            groups.setdefault((arm.layout, arm.others), []).append(arm)
    return [sorted(group, key=lambda arm: arm.budget or 0) for group in groups.values()]


def _limit(
    evidence: Evidence, cell: InterferenceCell, group: Sequence[Arm], limit_ms: float
) -> BudgetLimit:
    measured = [(arm.budget or 0, evidence.seen(arm, cell, GAP)) for arm in group]
    clean = _worst_by_budget(measured)
    coded = tuple(budget for budget, one in measured if not one.clean and one.spoiled)
    ruled = rule(clean, limit_ms)
    return BudgetLimit(
        layout=group[0].layout,
        devices=group[0].devices,
        prompt=cell.prompt,
        victims=cell.victims,
        limit_ms=limit_ms,
        outcome=ruled.outcome,
        runs=min((len(one.values) for _, one in measured if one.clean), default=0),
        held=ruled.held,
        exceeded=ruled.exceeded,
        estimate=ruled.estimate,
        floor_ms=ruled.floor_ms,
        gaps_ms=tuple(clean),
        coded=coded,
        missing=_missing(clean, ruled.outcome, coded),
    )


def _worst_by_budget(measured: Iterable[tuple[int, Seen]]) -> list[tuple[int, float]]:
    """The worst pause of any clean run by budget; of two arms with one budget the worse."""
    worst: dict[int, float] = {}
    for budget, one in measured:
        if one.worst is not None:
            worst[budget] = max(one.worst, worst.get(budget, 0.0))
    return sorted(worst.items())


@dataclass(frozen=True)
class Ruling:
    """What pauses by budget say of one limit; the fields are `BudgetLimit`'s."""

    outcome: Holds
    held: int | None
    exceeded: int | None
    estimate: float | None
    floor_ms: float | None


def rule(clean: Sequence[tuple[int, float]], limit_ms: float) -> Ruling:
    """Which budgets keep `limit_ms`, of (budget, worst pause in ms), the smallest budget first."""
    outcome, held, exceeded = _outcome(clean, limit_ms)
    estimate = _between(clean, held, exceeded, limit_ms)
    return Ruling(outcome, held, exceeded, estimate, _floor_ms(clean))


def _outcome(
    clean: Sequence[tuple[int, float]], limit_ms: float
) -> tuple[Holds, int | None, int | None]:
    """Budgets are counted from the smallest: one that holds above one that does not is luck, of the
    one or of the other. Where the smallest is such a one, nothing can be told."""
    if not clean or (clean[0][1] > limit_ms and _disordered(clean, limit_ms)):
        return "cannot tell", None, None
    kept: int | None = None
    for budget, gap in clean:
        if gap > limit_ms:
            if kept is not None:
                return "bracketed", kept, budget
            return ("none would" if _hopeless(clean, limit_ms) else "none measured"), None, budget
        kept = budget
    return "held", kept, None


def _disordered(clean: Sequence[tuple[int, float]], limit_ms: float) -> bool:
    """Whether a larger budget kept the limit that a smaller one did not."""
    kept = [gap <= limit_ms for _, gap in clean]
    return any(after and not before for before, after in pairwise(kept))


def _hopeless(clean: Sequence[tuple[int, float]], limit_ms: float) -> bool:
    floor = _floor_ms(clean)
    return floor is not None and floor > limit_ms


def _floor_ms(clean: Sequence[tuple[int, float]]) -> float | None:
    """The pause at budget 0, on the line through the two smallest budgets.

    None with fewer than two, or where they lie within a factor of two. A line that hardly rises
    over them leaves the smaller pause: the budget is not what makes it.
    """
    if len(clean) < 2:
        return None
    (small, low), (large, high) = clean[0], clean[1]
    if large < 2 * small:
        return None
    if high - low < FLAT_SHARE * low:
        return min(low, high)
    return low - (high - low) / (large - small) * small


def _between(
    clean: Sequence[tuple[int, float]], held: int | None, exceeded: int | None, limit_ms: float
) -> float | None:
    if held is None or exceeded is None:
        return None
    gaps = dict(clean)
    rise = gaps[exceeded] - gaps[held]
    return held + (limit_ms - gaps[held]) / rise * (exceeded - held)


def _missing(clean: Sequence[tuple[int, float]], outcome: Holds, coded: Sequence[int]) -> str:
    if not clean:
        return "a clean run at any budget" if coded else "an arm with a token budget"
    if outcome == "cannot tell":
        return "more blocks: a larger budget kept it where a smaller one did not"
    if outcome == "held":
        return f"an arm with a budget above {clean[-1][0]:,}"
    if outcome == "none measured":
        return f"an arm with a budget below {clean[0][0]:,}"
    return ""
