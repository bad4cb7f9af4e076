"""Ramps by turn: the first token, the speed after it and what was cached, as a conversation grows.

Rules of this file: values are `stats.summarise`'s `u<user>_t<turn>_*`; a line is one user of one
arm, medians over its clean runs, or over the coded ones where there are no others, then hollow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from twolane.analysis.measures import median
from twolane.records import RampCell
from twolane.report.facts import Facts, workload
from twolane.report.markup import Markup, details, el, join, scroll, table
from twolane.report.metrics import number, spoken
from twolane.report.plot import Box, Line, Scale, Spot, milliseconds, tokens

_TURN = re.compile(r"u(\d+)_t(\d+)_(\w+)")
COLOURS = 6


@dataclass(frozen=True)
class Turn:
    user: int
    turn: int
    prompt: float
    ttft_ms: float | None
    decode_tok_s: float | None
    cached: float | None
    missed: bool


@dataclass(frozen=True)
class Growth:
    """One user's conversation with one arm."""

    arm: str
    user: int
    turns: tuple[Turn, ...]
    codes: tuple[str, ...]


def growths(facts: Facts, cell: RampCell) -> list[Growth]:
    found = []
    for arm in facts.arms:
        mine = [m for m in facts.measured if m.run.arm == arm and m.cell.id == cell.id]
        clean = [m for m in mine if not m.codes]
        codes = [code.code for m in mine for code in m.codes] if not clean else []
        values = [m.values for m in clean or mine]
        keys = sorted({(int(t[1]), int(t[2])) for v in values for k in v if (t := _TURN.match(k))})
        for user in dict.fromkeys(user for user, _ in keys):
            turns = [_turn(values, user, turn) for u, turn in keys if u == user]
            told = tuple(turn for turn in turns if turn is not None)
            found.append(Growth(arm, user, told, tuple(dict.fromkeys(codes))))
    return [one for one in found if one.turns]


def _turn(values: Sequence[dict[str, float | None]], user: int, turn: int) -> Turn | None:
    def of(name: str) -> float | None:
        key = f"u{user}_t{turn:02}_{name}"
        return median(v for one in values if (v := one.get(key)) is not None)

    prompt = of("prompt_tokens")
    if prompt is None:
        return None
    missed = bool(of("needle_missed"))
    return Turn(user, turn, prompt, of("ttft_ms"), of("decode_tok_s"), of("cached_share"), missed)


def section(facts: Facts) -> Markup | None:
    cells = [cell for cell in facts.cells if isinstance(cell, RampCell)]
    drawn = [figure for cell in cells if (figure := _figure(facts, cell))]
    if not drawn:
        return None
    lede = (
        "Each turn sends the whole conversation and asks for a planted fact. A line is one user of "
        "one arm, dashed from the second user on; a red ring is a turn whose needle was missed; "
        "hollow is coded."
    )
    return join(el("p", lede, class_="lede"), drawn)


def _figure(facts: Facts, cell: RampCell) -> Markup | None:
    found = growths(facts, cell)
    if not found:
        return None
    colours = {arm: i % COLOURS for i, arm in enumerate(facts.arms)}
    boxes = [
        _box(found, colours, "first token", "ms", cell),
        _box(found, colours, "speed after it, tokens/s", "tokens/s", cell),
    ]
    legend = [
        el("li", el("i", class_=f"c{colours[arm]}"), arm)
        for arm in dict.fromkeys(one.arm for one in found)
    ]
    return el(
        "div",
        el("h3", workload(cell)),
        el("ul", legend, class_="legend"),
        el("div", boxes, class_="plots"),
        _as_table(found, cell),
        class_="ramp",
    )


def _value(turn: Turn, unit: str) -> float | None:
    return turn.ttft_ms if unit == "ms" else turn.decode_tok_s


def _box(
    found: Sequence[Growth], colours: dict[str, int], title: str, unit: str, cell: RampCell
) -> Markup:
    points = [
        (one, turn, value)
        for one in found
        for turn in one.turns
        if (value := _value(turn, unit)) is not None and 0 < value < float("inf")
    ]
    spots = [
        Spot(
            turn.prompt,
            value,
            "",
            f"{one.arm}, user {one.user + 1}, turn {turn.turn}: {turn.prompt:,.0f} tokens, "
            f"{spoken(value, unit)}{', needle missed' if turn.missed else ''}",
            f"#ramp-{cell.turns}-{cell.prompt}",
            f"small c{colours[one.arm]}{' missed' * turn.missed}{' hollow' * bool(one.codes)}",
        )
        for one, turn, value in points
    ]
    lines = [
        Line(
            [(t.prompt, v) for o, t, v in points if o is one],
            f"c{colours[one.arm]}{' second' * (one.user > 0)}",
        )
        for one in found
    ]
    return Box(
        x=Scale.over([turn.prompt for _, turn, _ in points]),
        y=Scale.over([value for *_, value in points]),
        x_title="prompt, tokens",
        y_title=title,
        x_words=tokens,
        y_words=milliseconds if unit == "ms" else lambda v: f"{v:,.0f}",
        said=f"{title} by prompt length, {len(found)} conversations",
        spots=spots,
        lines=[line for line in lines if len(line.points) > 1],
    ).drawn()


def _as_table(found: Sequence[Growth], cell: RampCell) -> Markup:
    rows = [
        (
            one.arm,
            str(one.user + 1),
            str(turn.turn),
            number(turn.prompt, decimals=0),
            number(turn.ttft_ms),
            number(turn.decode_tok_s),
            "n/a" if turn.cached is None else f"{turn.cached:.1%}",
            "missed" if turn.missed else "found",
            ", ".join(one.codes),
        )
        for one in found
        for turn in one.turns
    ]
    head = ("arm", "user", "turn", "prompt, tokens", "first token, ms", "speed, tokens/s")
    caption = f"Turn by turn: {workload(cell)}"
    inside = table((*head, "cached", "needle", "codes"), rows, caption=caption, class_="cards")
    name = f"ramp-{cell.turns}-{cell.prompt}"
    return details("Turn by turn", scroll(inside, caption), class_="data", id_=name)
