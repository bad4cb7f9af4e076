"""Points and arms made by hand, where the right answer is known."""

from __future__ import annotations

from collections.abc import Iterable

from twolane.analysis.arms import Arm, Kind
from twolane.analysis.compare import Point
from twolane.analysis.evidence import Evidence
from twolane.records import AnyCell, Code, InterferenceCell

BUSY = (Code(code="BUSY", why="other programs"),)


def shot(prompt: int, victims: int = 2) -> InterferenceCell:
    text = f"interference victims={victims} prompt={prompt}"
    return InterferenceCell(id=text, victims=victims, prompt=prompt)


def arm(name: str, budget: int | None = None, kind: Kind = "copies", devices: int = 2) -> Arm:
    return Arm(name, kind, "pd_1p1d" if kind == "split" else kind, budget, devices, 2)


def points(
    name: str,
    cell: AnyCell,
    metric: str,
    values: Iterable[float],
    codes: tuple[Code, ...] = (),
) -> list[Point]:
    """One value a block."""
    return [
        Point(name, block, f"{name}-{block}", cell.id, metric, value, codes)
        for block, value in enumerate(values)
    ]


def evidence(arms: Iterable[Arm], *some: list[Point]) -> Evidence:
    return Evidence([p for one in some for p in one], {one.name: one for one in arms})
