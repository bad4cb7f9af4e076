"""From where on a split pays, what it costs, and whether a token budget alone would do.

Rules of this file: pure functions of points and arms; every comparison is `compare.compare`. A
split *pays* at a prompt length (or share of long prompts) if the readers' worst pause with it is
better than with its best rival there (of the aggregated arms on as many devices the one with the
shortest pause), and if that rival's pause is long enough to be noticed. What it costs is told
beside, never netted: a longer first token is no pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from twolane.analysis.arms import Arm
from twolane.analysis.compare import Comparison
from twolane.analysis.evidence import Evidence, Seen
from twolane.analysis.frontier import GAP, THROUGHPUT, TTFT
from twolane.analysis.measures import STALL_FLOOR_NS
from twolane.clock import MS
from twolane.records import AnyCell, GridCell, InterferenceCell, MixCell

By = Literal["prompt length", "share of long prompts"]
LENGTH: By = "prompt length"
SHARE: By = "share of long prompts"
SHORT_TTFT = "ttft_p50_ms"
UNNOTICED_MS: Final = STALL_FLOOR_NS / MS
"""A pause that is no stall for any stream: shortening it gains nobody anything."""

Outcome = Literal["pays", "does not pay", "cannot tell"]


@dataclass(frozen=True)
class Mark:
    """The split against its best rival at one place. `sure` is False where it is one block."""

    at: float
    cell: AnyCell
    split: str
    rival: str | None
    outcome: Outcome
    found: Comparison | None
    sure: bool
    equal_devices: bool = True


@dataclass(frozen=True)
class Crossover:
    """From which place on the split pays: from `start` at the latest, and not yet at `before`.

    `start` None: at no place that was measured.
    """

    by: By
    split: str
    marks: tuple[Mark, ...]
    start: float | None
    before: float | None
    sure: bool
    missing: str = ""
    readers: int | None = None  # beside the long prompt, where cells differ in their number


Places = list[tuple[float, AnyCell]]


def crossovers(evidence: Evidence, cells: Iterable[AnyCell]) -> list[Crossover]:
    """For each split arm: by prompt length (for each number of readers), and by the share of long
    prompts in a mix."""
    every = list(cells)
    shots = [cell for cell in every if isinstance(cell, InterferenceCell)]
    counts = sorted({cell.victims for cell in shots})
    several = len(counts) > 1
    asked: list[tuple[By, Places, int | None]] = [
        (LENGTH, [(float(c.prompt), c) for c in shots if c.victims == count], count * several)
        for count in counts or [0]
    ]
    shares = [(c.share, c) for c in every if isinstance(c, MixCell) and c.share > 0]
    asked.append((SHARE, [*shares], None))
    found = []
    for split in evidence.splits:
        for by, places, readers in asked:
            ordered = sorted(places, key=lambda place: (place[0], place[1].id))
            marks = [_mark(evidence, *place, split) for place in ordered]
            found.append(replace(_crossover(by, split.name, marks), readers=readers or None))
    return found


def _mark(evidence: Evidence, at: float, cell: AnyCell, split: Arm) -> Mark:
    rival, equal = best_rival(evidence, cell, split)
    if rival is None:
        return Mark(at, cell, split.name, None, "cannot tell", None, sure=False)
    found = evidence.versus(split, rival, cell, GAP, lower_is_better=True)
    if found is None:
        return Mark(at, cell, split.name, rival.name, "cannot tell", None, sure=False)
    if (evidence.seen(rival, cell, GAP).middle or 0.0) <= UNNOTICED_MS:
        # Nothing to gain: the rival's readers pause no longer than a flowing stream does.
        settled = found.outcome != "indicative"
        return Mark(at, cell, split.name, rival.name, "does not pay", found, settled, equal)
    return Mark(at, cell, split.name, rival.name, *_paid(found), equal)


def _paid(found: Comparison) -> tuple[Outcome, Comparison, bool]:
    """The outcome, its comparison, and whether more than one block says so."""
    if found.outcome == "indicative" and found.ratio is not None:
        pays = found.ratio < 1 / (1 + found.margin)
        return ("pays" if pays else "does not pay"), found, False
    if found.outcome == "A better":
        return "pays", found, True
    return (
        ("does not pay" if found.outcome in ("B better", "equal") else "cannot tell"),
        found,
        True,
    )


def best_rival(evidence: Evidence, cell: AnyCell, split: Arm) -> tuple[Arm | None, bool]:
    """The aggregated arm with the shortest clean pause, on as many devices where there is one;
    whether it is on as many. Of arms that run alike the first: the better of two is luck."""
    clean = [arm for arm in evidence.aggregated if evidence.seen(arm, cell, GAP).clean]
    pauses = [(evidence.seen(arm, cell, GAP).middle or 0.0, arm) for arm in evidence.once(clean)]
    equal = [(gap, arm) for gap, arm in pauses if arm.devices == split.devices]
    chosen = min(equal or pauses, key=lambda one: (one[0], one[1].name), default=None)
    return (chosen[1] if chosen else None), bool(equal)


def _crossover(by: By, split: str, marks: Sequence[Mark]) -> Crossover:
    """Counted from the far end: the split pays from where it pays at every place further on."""
    start: Mark | None = None
    for mark in reversed(marks):
        if mark.outcome != "pays":
            break
        start = mark
    earlier = [m for m in marks if start is None or m.at < start.at]
    before = earlier[-1] if earlier else None
    return Crossover(
        by=by,
        split=split,
        marks=tuple(marks),
        start=start.at if start else None,
        before=before.at if before else None,
        sure=all(mark.sure for mark in marks if mark.outcome != "cannot tell"),
        missing=_missing(by, marks, start, before),
    )


def _missing(by: By, marks: Sequence[Mark], start: Mark | None, before: Mark | None) -> str:
    if not marks:
        return (
            "an interference cell"
            if by == LENGTH
            else "mix cells with several shares of long prompts"
        )
    unknown = [mark for mark in marks if mark.outcome == "cannot tell"]
    blocks = [m.found.more_blocks for m in unknown if m.found and m.found.more_blocks]
    if blocks:
        return f"{max(blocks)} more block{'s' * (max(blocks) != 1)}"
    if unknown:
        return "clean points of the split and of an aggregated arm"
    if start is not None and before is None:
        return "a smaller one" if by == SHARE else "a shorter prompt"
    if start is None:
        return "a larger one" if by == SHARE else "a longer prompt"
    return ""


# --------------------------------------------------------------------------------------- costs


@dataclass(frozen=True)
class Cost:
    """What `arm` costs against `rival` in one cell pair; a comparison is None where unmeasured."""

    arm: Arm
    rival: Arm
    cell: InterferenceCell
    gap: Comparison | None
    long_ttft: Comparison | None
    short_ttft: Comparison | None
    throughput: Comparison | None


def costs(evidence: Evidence, cell: InterferenceCell, grid: GridCell | None) -> list[Cost]:
    """Each split arm with a clean pause in `cell` against its best rival there."""
    told = []
    for split in evidence.splits:
        rival, _ = best_rival(evidence, cell, split)
        if rival is not None and evidence.seen(split, cell, GAP).clean:
            told.append(_cost(evidence, split, rival, cell, grid))
    return told


def _cost(
    evidence: Evidence, split: Arm, rival: Arm, cell: InterferenceCell, grid: GridCell | None
) -> Cost:
    return Cost(
        arm=split,
        rival=rival,
        cell=cell,
        gap=evidence.versus(split, rival, cell, GAP, lower_is_better=True),
        long_ttft=evidence.versus(split, rival, cell, TTFT, lower_is_better=True),
        short_ttft=evidence.versus(split, rival, grid, SHORT_TTFT, lower_is_better=True),
        throughput=evidence.versus(split, rival, grid, THROUGHPUT, lower_is_better=False),
    )


# -------------------------------------------------------------------------------- budget alone

Enough = Literal["a budget alone", "only the split", "neither", "cannot tell"]


@dataclass(frozen=True)
class Alone:
    """Whether a token budget alone keeps the readers' pause under a limit in one cell.

    `arm` is the aggregated arm that keeps it, of several the one with the shortest first token of
    the long prompt (of arms that run alike the first), and `gap` its pauses; `split` are those of
    the best split.
    """

    cell: InterferenceCell
    limit_ms: float
    outcome: Enough
    arm: Arm | None
    gap: Seen | None
    split: Seen | None
    runs: int
    missing: str = ""


def alone(evidence: Evidence, cell: InterferenceCell, limit_ms: float) -> Alone:
    gaps = {arm.name: evidence.seen(arm, cell, GAP) for arm in evidence.arms.values()}
    aggregated = [arm for arm in evidence.aggregated if gaps[arm.name].clean]
    keep = [arm for arm in aggregated if (gaps[arm.name].worst or 0.0) <= limit_ms]
    best = min(evidence.once(keep), key=lambda arm: _first_token(evidence, cell, arm), default=None)
    splits = [gaps[arm.name] for arm in evidence.splits if gaps[arm.name].clean]
    split = min(splits, key=lambda one: one.worst or 0.0, default=None)
    outcome, missing = _enough(aggregated, best, split, limit_ms)
    used = [gaps[arm.name] for arm in ([best] if best else aggregated)]
    runs = min((len(one.values) for one in [*used, *([split] if split else [])]), default=0)
    gap = gaps[best.name] if best else None
    return Alone(cell, limit_ms, outcome, best, gap, split, runs, missing)


def _enough(
    aggregated: Sequence[Arm], best: Arm | None, split: Seen | None, limit_ms: float
) -> tuple[Enough, str]:
    if best is not None:
        return "a budget alone", ""
    if not aggregated:
        return "cannot tell", "a clean run of an aggregated arm"
    if split is None:
        return "cannot tell", "a clean run of a split"
    kept = (split.worst or 0.0) <= limit_ms
    return ("only the split" if kept else "neither"), ""


def _first_token(evidence: Evidence, cell: AnyCell, arm: Arm) -> tuple[float, str]:
    middle = evidence.seen(arm, cell, TTFT).middle
    return (float("inf") if middle is None else middle, arm.name)
