"""Two arms compared on one metric over the blocks of a campaign, and the verdict.

Rules of this file: the unit is a freshly started arm, so a block gives one paired log-ratio, not
one a request. A point with a reason code enters no verdict. Everything is deterministic: the
bootstrap's seed is fixed, so the same results give the same bytes.

The interval is the wider of two, on the log scale, at 95 %:
    - the percentile bootstrap of the median over blocks [Efron 1979], which makes no assumption
      but cannot see past the blocks it has: with three it calls a coin toss a difference one
      time in four, since all three fall on one side;
    - Student's t about the mean over blocks [Student 1908], which knows how little three blocks
      say. It reaches as far as the estimate, a median, where that lies outside of it.
In 200 campaigns on golden engines (docs/results/verdicts.md) equal arms are called different in 1
to 4 %, and with five blocks a tenth is found in 95 % where runs of one arm differ by 2.8 %
(standard deviation); simulated, in 84 % at 3.5 %, in half of them at 5 %: with noisier runs, more
blocks are needed, and the verdict says how many.
Where a campaign holds two arms that are told to run alike (A/A), no estimate within what those two
were apart in any block is called a difference.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from twolane.analysis.results import Results, Run
from twolane.records import Code

MARGIN = 0.03  # arms closer than this are equal: the default of docs/how-we-measure.md
BOOTSTRAP = 10_000  # resamples: the 2.5 % quantile of so many is itself good to 0.2 %
SEED = 20_811
FORESEEABLE = 100  # more blocks than this is no advice

# Student's t, two-sided 95 %, for 1 ... 30 degrees of freedom (any table); beyond, the normal's.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z95 = 1.960

Outcome = Literal["A better", "B better", "equal", "cannot tell", "indicative"]


@dataclass(frozen=True)
class Point:
    """One metric of one run's cell. A point with `codes` is kept and shown, and compared never."""

    arm: str
    block: int
    run: str
    cell: str
    metric: str
    value: float | None
    codes: tuple[Code, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether it may enter a verdict; zero, less and infinity have no ratio."""
        return not self.codes and self.value is not None and 0 < self.value < math.inf


_DIFFERENT: Final = ("A better", "B better")


@dataclass(frozen=True)
class Comparison:
    """Arm A against arm B. `ratio` is A/B, the median over blocks; `low`, `high` its interval.

    `more_blocks` is how many further blocks would settle it at the spread seen so far: 0 where it
    is settled, None where no foreseeable number would, or where one block shows no spread.
    """

    a: str
    b: str
    cell: str
    metric: str
    blocks: int
    left_out: int  # blocks lost to a reason code, a missing value or a zero
    outcome: Outcome
    margin: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    more_blocks: int | None = None
    confounded: tuple[str, ...] = ()  # severe differences besides the declared factor
    floor: float | None = None  # what equal arms differed by, as a ratio; None where not known

    @property
    def verdict(self) -> str:
        """The outcome in words, one of the four of docs/how-we-measure.md, or `indicative`."""
        if self.outcome == "equal":
            return f"equal within {self.margin * 100:g} %"
        if self.outcome == "cannot tell":
            return f"cannot tell, {self._further()}"
        return f"{self.outcome}, barely: {self._apart}" if self.barely else self.outcome

    @property
    def barely(self) -> bool:
        """Whether a difference is past what equal arms were apart by no more than the margin."""
        if self.ratio is None or self.floor is None or self.outcome not in _DIFFERENT:
            return False
        return _within(math.log(self.ratio), self.floor * (1 + self.margin))

    @property
    def within_noise(self) -> bool:
        """Whether the blocks tell it from 1, and it is no verdict since equal arms were as far
        apart."""
        clear = self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)
        return clear and self._as_equal_arms

    @property
    def _as_equal_arms(self) -> bool:
        return (
            self.outcome == "cannot tell"
            and self.more_blocks is None
            and not self.confounded
            and self.ratio is not None
            and _within(math.log(self.ratio), self.floor)
        )

    @property
    def _apart(self) -> str:
        return f"equal arms were {(self.floor or 1) * 100 - 100:.2g} % apart"

    def _further(self) -> str:
        if self.confounded:
            return f"the arms also differ in {', '.join(self.confounded)}"
        if self.blocks == 0:
            return "no block has a valid point of both arms"
        if self._as_equal_arms:
            if self.within_noise:
                return f"within noise: {self._apart}"
            return f"and {self._apart}, so that no more blocks would do at this ratio"
        if self.more_blocks is None:
            return f"more than {FORESEEABLE} further blocks would be needed"
        return f"{self.more_blocks} more block{'s' * (self.more_blocks != 1)} would do"


def compare(
    points: Iterable[Point],
    a: str,
    b: str,
    *,
    lower_is_better: bool,
    margin: float = MARGIN,
    confounded: tuple[str, ...] = (),
    floor: float | None = None,
) -> Comparison:
    """Arm `a` against arm `b` on `points`, which are of one cell and one metric.

    Several runs of an arm in one block (a mirrored block) count as one, by their geometric mean.
    `confounded` names severe differences that nobody declared: with any, it cannot tell.
    `floor` is `noise_floor`'s ratio: an estimate within it is no difference, and no further block
    makes it one.
    Raises ValueError if the points are of several cells or metrics.
    """
    mine = _of(points, a, b)
    kinds = {(point.cell, point.metric) for point in mine}
    if len(kinds) > 1:
        raise ValueError(f"points of several cells or metrics: {sorted(kinds)}")
    cell, metric = kinds.pop() if kinds else ("", "")
    ratios, left_out = _paired(mine, a, b)
    n = len(ratios)
    if n == 0:
        return Comparison(a, b, cell, metric, 0, left_out, "cannot tell", margin, floor=floor)
    centre = float(np.median(ratios))
    if n == 1:
        ratio = math.exp(centre)
        return Comparison(a, b, cell, metric, 1, left_out, "indicative", margin, ratio, floor=floor)
    low, high = interval(ratios)
    outcome = _outcome(centre, low, high, margin, lower_is_better)
    further = _more_blocks(ratios, margin) if outcome == "cannot tell" else 0
    if confounded or (outcome != "equal" and _within(centre, floor)):
        outcome, further = "cannot tell", None
    return Comparison(
        *(a, b, cell, metric, n, left_out, outcome, margin),
        ratio=math.exp(centre),
        low=math.exp(low),
        high=math.exp(high),
        more_blocks=further,
        confounded=confounded,
        floor=floor,
    )


def _within(centre: float, floor: float | None) -> bool:
    """Whether a log-ratio is no further from 0 than equal arms were in some block."""
    return floor is not None and abs(centre) <= math.log(floor)


def noise_floor(points: Iterable[Point], pairs: Iterable[tuple[str, str]]) -> float | None:
    """The largest ratio, 1 or more, that two equal arms were apart in a block; None without any.

    `points` are of one cell and one metric, `pairs` name arms that are told to run alike (A/A).
    """
    every = list(points)
    apart = [abs(one) for a, b in pairs for one in _paired(_of(every, a, b), a, b)[0]]
    return math.exp(max(apart)) if apart else None


def why_no_floor(pairs: Sequence[tuple[str, str]]) -> str:
    """Why `noise_floor` of these pairs is None, to stand after a comma or `since`."""
    if not pairs:
        return "no arm was run beside itself (A/A)"
    named = " or of ".join(f"{a} and {b}" for a, b in pairs)
    return f"no block has a valid point of both arms that are told to run alike (A/A), {named}"


def _of(points: Iterable[Point], a: str, b: str) -> list[Point]:
    return [point for point in points if point.arm in (a, b)]


def _paired(points: Sequence[Point], a: str, b: str) -> tuple[list[float], int]:
    """Log-ratios A/B of the blocks that hold both, and the number of blocks left out."""
    logs: dict[tuple[int, str], list[float]] = defaultdict(list)
    spoiled: set[int] = set()
    for point in points:
        if point.valid and point.value is not None:
            logs[point.block, point.arm].append(math.log(point.value))
        else:
            spoiled.add(point.block)
    blocks = sorted({point.block for point in points})
    whole = [k for k in blocks if k not in spoiled and (k, a) in logs and (k, b) in logs]
    ratios = [float(np.mean(logs[k, a]) - np.mean(logs[k, b])) for k in whole]
    return ratios, len(blocks) - len(whole)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median of at least two paired log-ratios; see the head of this file."""
    values = np.asarray(ratios)
    centre, n = float(np.median(values)), len(values)
    low, high = np.quantile(np.median(values[_draws(n)], axis=1), (0.025, 0.975))
    mean = float(np.mean(values))
    reach = _t95(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return min(float(low), mean - reach, centre), max(float(high), mean + reach, centre)


@cache
def _draws(n: int) -> NDArray[np.int64]:
    """The blocks of every resample, the same for every metric."""
    return np.random.default_rng(SEED).integers(0, n, size=(BOOTSTRAP, n))


def _t95(degrees: int) -> float:
    return _T95[degrees - 1] if degrees <= len(_T95) else _Z95


def _outcome(
    centre: float, low: float, high: float, margin: float, lower_is_better: bool
) -> Outcome:
    """Better needs an interval clear of 1 and an estimate past the margin; equal, one inside it."""
    edge = math.log1p(margin)
    if -edge <= low and high <= edge:
        return "equal"
    if (low > 0 or high < 0) and abs(centre) > edge:
        return "A better" if (centre < 0) == lower_is_better else "B better"
    return "cannot tell"


def _more_blocks(ratios: Sequence[float], margin: float) -> int | None:
    """Further blocks until Student's interval, at the present estimate and spread, is decisive."""
    centre, spread = float(np.median(ratios)), float(np.std(ratios, ddof=1))
    edge = math.log1p(margin)
    room = abs(centre) if abs(centre) > edge else edge - abs(centre)
    for n in range(len(ratios) + 1, len(ratios) + FORESEEABLE + 1):
        if _t95(n - 1) * spread / math.sqrt(n) < room:
            return n - len(ratios)
    return None


# ------------------------------------------------------------------------- greedy equality


@dataclass(frozen=True)
class Equality:
    """Greedy texts of `run` against those of `reference`: how many were held against each other."""

    run: str
    reference: str
    compared: int
    differing: tuple[str, ...]

    @property
    def code(self) -> Code | None:
        """`NEEDLE` where texts disagree: the arm's answers are not the model's."""
        if not self.differing:
            return None
        probes = ", ".join(self.differing[:3]) + (" ..." if len(self.differing) > 3 else "")
        why = f"greedy output differs from {self.reference}'s on {probes}"
        return Code(code="NEEDLE", why=why, value=len(self.differing), limit=0)


def greedy_equality(results: Results) -> list[Equality]:
    """Every run's greedy texts against those of its block's first aggregated run.

    Of its block, since blocks ask with prompts of their own; of its model, since another answers
    otherwise by right; aggregated, since a split is what the gate suspects, or the first run where
    there is none.
    """
    alike: dict[tuple[int, str], list[Run]] = {}
    for run in results.runs:
        if run.needle is not None and run.needle.greedy:
            alike.setdefault((run.block, run.meta.model), []).append(run)
    return [one for key in sorted(alike) for one in _among(alike[key])]


def _among(runs: Sequence[Run]) -> list[Equality]:
    reference = next((run for run in runs if _aggregated(run)), runs[0])
    return [_equality(run, reference) for run in runs if run is not reference]


def _aggregated(run: Run) -> bool:
    return all(engine.role == "both" for engine in run.meta.engines)


def _equality(run: Run, reference: Run) -> Equality:
    mine = run.needle.greedy if run.needle else {}
    theirs = reference.needle.greedy if reference.needle else {}
    shared = sorted(mine.keys() & theirs.keys())
    differing = tuple(probe for probe in shared if mine[probe] != theirs[probe])
    return Equality(run.id, reference.id, len(shared), differing)
