"""A box with two axes and marks in it: positions in percent, so that it fits a phone and paper.

Rules of this file: geometry and markup of any chart of points. Lines are SVG stretched to the box,
points and words are HTML, so that they keep their shape. A point is a link, reached by keyboard,
with its figures in a name and in a tip that opens on hover and on focus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from twolane.report.markup import Markup, el

_LAST_TICK = 0.96  # a tick further right would be cut
SIZE = 1000  # of a box's SVG, each way


@dataclass(frozen=True)
class Scale:
    """Values to shares 0 ... 1 of an axis; `log` needs them above 0."""

    low: float
    high: float
    log: bool = True

    @classmethod
    def over(cls, values: Iterable[float], *, log: bool = True, room: float = 0.12) -> Scale:
        """Over all of `values` with some room on both sides; from 0 where it is not `log`."""
        every = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = min(every, default=1.0), max(every, default=10.0)
        if not log:
            return cls(min(0.0, low), (high or 1.0) * (1 + room), log=False)
        reach = max(math.log(high / low), math.log(1.6))
        middle = math.sqrt(low * high)
        half = math.exp(reach * (0.5 + room))
        return cls(middle / half, middle * half)

    def share(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        if self.log:
            return math.log(inside / self.low) / math.log(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Three to about seven round values."""
        if not self.log:
            return _even(self.low, self.high)
        for bases in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            found = [
                base * 10.0**e
                for e in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))
                for base in bases
                if self.low <= base * 10.0**e <= self.high
            ]
            if len(found) >= 3:
                return found
        return _even(self.low, self.high)


def milliseconds(value: float) -> str:
    """A tick of an axis of times."""
    return f"{value:g} ms" if value < 1_000 else f"{value / 1_000:g} s"


def tokens(value: float) -> str:
    """A tick of an axis of token counts: `8K`, `1M`."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}K" if value >= 1e3 else f"{value:g}"


def _even(low: float, high: float) -> list[float]:
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(base * power for base in (1, 2, 2.5, 5, 10) if base * power >= raw)
    first = math.ceil(low / step)
    return [step * i for i in range(first, math.floor(high / step) + 1)]


@dataclass(frozen=True)
class Spot:
    """One point: where, what it is called, what its tip says, where it leads.

    `spread` are the lowest and highest value on the y axis, drawn as a whisker.
    """

    x: float
    y: float
    label: str
    tip: str
    href: str
    kind: str = ""
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Line:
    """A polyline through values."""

    points: Sequence[tuple[float, float]]
    kind: str = ""


@dataclass(frozen=True)
class Mark:
    """A level across the box, with its name."""

    y: float
    label: str


@dataclass(frozen=True)
class Box:
    """One chart. `words` write an axis' values; `said` is its name for those who do not see it."""

    x: Scale
    y: Scale
    x_title: str
    y_title: str
    x_words: Callable[[float], str]
    y_words: Callable[[float], str]
    said: str
    spots: Sequence[Spot] = ()
    lines: Sequence[Line] = ()
    marks: Sequence[Mark] = ()

    def drawn(self) -> Markup:
        return el(
            "div",
            el("p", self.y_title, class_="y-title", aria_hidden="true"),
            el(
                "div",
                self._grid(),
                self._svg(),
                [self._mark(mark) for mark in self.marks if self.y.low < mark.y < self.y.high],
                [self._spot(spot, side) for spot, side in self._placed()],
                class_="plot-area",
                role="group",
                aria_label=self.said,
            ),
            el("p", self.x_title, class_="x-title", aria_hidden="true"),
            class_="plot",
        )

    def _grid(self) -> list[Markup]:
        across = [
            el("span", self.y_words(v), class_="ty", style=f"bottom:{_pc(self.y.share(v))}")
            for v in self.y.ticks()
        ]
        along = [
            el("span", self.x_words(v), class_="tx", style=f"left:{_pc(self.x.share(v))}")
            for v in self.x.ticks()
            if self.x.share(v) < _LAST_TICK
        ]
        return [el("div", [*across, *along], class_="grid", aria_hidden="true")]

    def _svg(self) -> Markup:
        paths = [el("path", d=self._path(line.points), class_=f"line {line.kind}".rstrip())
                 for line in self.lines]  # fmt: skip
        whiskers = [
            el("path", d=self._path([(s.x, s.spread[0]), (s.x, s.spread[1])]), class_="whisker")
            for s in self.spots
            if s.spread and s.spread[0] < s.spread[1]
        ]
        return el(
            "svg",
            paths,
            whiskers,
            viewBox=f"0 0 {SIZE} {SIZE}",
            preserveAspectRatio="none",
            aria_hidden="true",
        )

    def _path(self, points: Sequence[tuple[float, float]]) -> str:
        steps = [
            f"{self.x.share(x) * SIZE:.1f} {(1 - self.y.share(y)) * SIZE:.1f}" for x, y in points
        ]
        return "M" + "L".join(steps) if steps else ""

    def _mark(self, mark: Mark) -> Markup:
        place = f"bottom:{_pc(self.y.share(mark.y))}"
        return el("span", mark.label, class_="level", style=place, aria_hidden="true")

    def _spot(self, spot: Spot, side: str) -> Markup:
        across, up = self.x.share(spot.x), self.y.share(spot.y)
        turned = " tip-left" * (across > 0.6) + " tip-low" * (up > 0.7)
        return el(
            "a",
            el("span", spot.label, class_="name") if spot.label else None,
            el("span", spot.tip, class_="tip"),
            href=spot.href,
            class_=f"spot {spot.kind} {side}{turned}",
            style=f"left:{_pc(across)};bottom:{_pc(up)}",
            aria_label=spot.tip,
        )

    def _placed(self) -> list[tuple[Spot, str]]:
        """Every spot with the side on which its name stands: the first where it meets nothing."""
        dots = [_Room(x - 0.02, x + 0.02, y - 0.03, y + 0.03) for x, y in map(self._at, self.spots)]
        taken: list[_Room] = []
        placed = []
        for spot, dot in zip(self.spots, dots, strict=True):
            others = [*taken, *(one for one in dots if one is not dot)]
            x, y = self._at(spot)
            rooms = {side: _name_room(x, y, len(spot.label), side) for side in _SIDES}
            free = [side for side, room in rooms.items() if room.inside and not room.meets(others)]
            side = free[0] if free else ("right" if x < 0.5 else "left")
            taken.append(rooms[side])
            placed.append((spot, side))
        return placed

    def _at(self, spot: Spot) -> tuple[float, float]:
        return self.x.share(spot.x), self.y.share(spot.y)


_SIDES = ("right", "left", "above", "below")
# A letter's width and a line's height as shares of the narrowest box, that of a phone.
_LETTER, _LINE, _CLEAR = 0.021, 0.055, 0.03


@dataclass(frozen=True)
class _Room:
    left: float
    right: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.left > -0.02 and self.right < 1.02 and self.low > -0.02 and self.high < 1.02

    def meets(self, others: Iterable[_Room]) -> bool:
        return any(
            self.left < o.right and o.left < self.right and self.low < o.high and o.low < self.high
            for o in others
        )


def _name_room(x: float, y: float, letters: int, side: str) -> _Room:
    wide, half = letters * _LETTER, _LINE / 2
    if side == "right":
        return _Room(x + _CLEAR, x + _CLEAR + wide, y - half, y + half)
    if side == "left":
        return _Room(x - _CLEAR - wide, x - _CLEAR, y - half, y + half)
    up = y + _CLEAR if side == "above" else y - _CLEAR - _LINE
    return _Room(x - wide / 2, x + wide / 2, up, up + _LINE)


def _pc(share: float) -> str:
    return f"{share * 100:.2f}%"
