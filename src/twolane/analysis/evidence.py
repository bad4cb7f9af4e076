"""What answers are read from: the points of a campaign, its arms, and what spoils a comparison.

Rules of this file: it selects and compares and decides nothing. A point with a reason code is kept
apart from the clean ones, so that an answer has to ask for it by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from twolane.analysis.arms import Arm, alike
from twolane.analysis.compare import MARGIN, Comparison, Point, compare, noise_floor
from twolane.analysis.confounds import Confound, between
from twolane.analysis.measures import median
from twolane.records import AnyCell


@dataclass(frozen=True)
class Seen:
    """One metric of one arm in one cell: its clean values, one a run, and the spoiled ones."""

    values: tuple[float, ...] = ()
    spoiled: tuple[float, ...] = ()
    codes: tuple[str, ...] = ()

    @property
    def middle(self) -> float | None:
        """The median of the clean values, else of the spoiled ones."""
        return median(self.values or self.spoiled)

    @property
    def worst(self) -> float | None:
        """The largest clean value."""
        return max(self.values, default=None)

    @property
    def clean(self) -> bool:
        return bool(self.values)


@dataclass(frozen=True)
class Evidence:
    """`points` of every run and cell; `arms` by name; `differences` besides the declared factor."""

    points: Sequence[Point]
    arms: Mapping[str, Arm]
    margin: float = MARGIN
    differences: Sequence[Confound] = field(default=())

    @property
    def splits(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if arm.split]

    @cached_property
    def alike(self) -> list[tuple[str, str]]:
        """Pairs of arms that are an A/A."""
        return alike(self.arms.values())

    def once(self, arms: Iterable[Arm]) -> list[Arm]:
        """Of arms that run alike (A/A) the first alone: the other is there for the noise."""
        some = list(arms)
        names = {arm.name for arm in some}
        twins = {b for a, b in self.alike if a in names}
        return [arm for arm in some if arm.name not in twins]

    @property
    def aggregated(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if not arm.split]

    def of(self, cell: AnyCell, metric: str) -> list[Point]:
        return [p for p in self.points if p.cell == cell.id and p.metric == metric]

    def seen(self, arm: Arm, cell: AnyCell | None, metric: str) -> Seen:
        if cell is None:
            return Seen()
        mine = [p for p in self.of(cell, metric) if p.arm == arm.name and p.value is not None]
        return Seen(
            _values(p for p in mine if not p.codes),
            _values(p for p in mine if p.codes),
            tuple(dict.fromkeys(code.code for p in mine for code in p.codes)),
        )

    def versus(
        self, a: Arm, b: Arm, cell: AnyCell | None, metric: str, *, lower_is_better: bool
    ) -> Comparison | None:
        """`a` against `b`; None where no block has a clean point of both."""
        if cell is None:
            return None
        points = self.of(cell, metric)
        found = compare(
            points,
            a.name,
            b.name,
            lower_is_better=lower_is_better,
            margin=self.margin,
            confounded=between(self.differences, a.name, b.name),
            floor=noise_floor(
                points, [pair for pair in self.alike if set(pair) != {a.name, b.name}]
            ),
        )
        return found if found.ratio is not None else None


def _values(points: Iterable[Point]) -> tuple[float, ...]:
    return tuple(point.value for point in points if point.value is not None)
