"""The time of the long prompt, shaded behind the readers' strips: its prefill, and what follows it.

Rules of this file: geometry in, markup out; the end of a prefill is the proxy's stamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twolane.report.markup import Markup, el, join
from twolane.report.metrics import spoken

if TYPE_CHECKING:
    from twolane.report.timeline import Axis, Panel

LABELLED = 0.16  # of the axis: wide enough for the words of a shaded time


def drawn(panel: Panel, axis: Axis, prefilled: float | None) -> Markup:
    """The shades of a panel and the names of its phases; `prefilled` is the end of the prefill, in
    seconds since the send, where that is known."""
    return join(
        _shades(panel, axis, prefilled),
        el("span", "quiet", class_="phase"),
        _recovery(axis.share(0), axis.share(panel.hit_s)),
    )


def _shades(panel: Panel, axis: Axis, prefilled: float | None) -> list[Markup]:
    if panel.null:
        return [_shade(axis, 0, panel.hit_s, f"sleep {_seconds(panel.hit_s)}")]
    if prefilled is None or not 0 < prefilled < panel.hit_s:
        return [_shade(axis, 0, panel.hit_s, f"to its first token {_seconds(panel.hit_s)}")]
    rest = panel.hit_s - prefilled
    label = axis.share(panel.hit_s) - axis.share(prefilled) > LABELLED
    told = f"{_seconds(rest)} to its first token"
    return [
        _shade(axis, 0, prefilled, f"prefill {_seconds(prefilled)}"),
        _shade(axis, prefilled, panel.hit_s, told if label else "", " after"),
    ]


def _shade(axis: Axis, start_s: float, end_s: float, what: str, kind: str = "") -> Markup:
    left, right = axis.share(start_s), axis.share(end_s)
    style = f"left:{left * 100:.3f}%;width:{(right - left) * 100:.3f}%"
    return el("div", el("span", what) if what else None, class_=f"hit{kind}", style=style)


def _seconds(value: float) -> str:
    return spoken(value * 1e3, "ms") if value < 1 else spoken(value, "s")


def _recovery(hit: float, answered: float) -> Markup | None:
    """The third phase's name: where it begins, but clear of the second's name."""
    style = f"left:max({answered * 100:.3f}% + 0.4rem, {hit * 100:.3f}% + 6rem)"
    return el("span", "recovery", class_="phase", style=style) if answered < 0.84 else None
