"""c*(p) inside the prompt: gap by prefix, the budgets that keep it short, and the pauses around.

Rules of this file: figures are `analysis.prefixes`'s. A cell's colour says what its words say; a
pale point or a dagger is a chunk that shares its pause with the prompt's entry or exit; hollow is
coded and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twolane.analysis.prefixes import Edges, Held, Peak, Prefixes
from twolane.report.answer import listed
from twolane.report.answers_prefix import FIGURES, cell, title, told
from twolane.report.facts import Facts, slug
from twolane.report.markup import Markup, details, el, join, scroll
from twolane.report.metrics import spoken
from twolane.report.plot import Box, Line, Mark, Scale, Spot, milliseconds, tokens

COLOURS = 6
SHARED = "\N{DAGGER}"
NOTHING = "\N{EN DASH}"


def section(facts: Facts) -> Markup | None:
    """One chart and one grid for each number of readers; None where no log tells iterations."""
    found = told(facts)
    if not found:
        return None
    lede = (
        "A long prompt is read in by chunks of the token budget, and while a chunk is computed no "
        "reader on that engine gets a token. The more of the prompt has been read (the prefix), "
        "the longer a chunk takes. The engine\u2019s own log says how the prompt was cut; a "
        "reader\u2019s gap belongs to the chunk whose step made the token that ends it. Figures "
        "are the longest of all shots, blocks and prompts."
    )
    return join(el("p", lede, class_="lede"), [_group(facts, one) for one in found])


def _group(facts: Facts, one: Prefixes) -> Markup:
    marked = None if one.verdict else el("p", f"{FIGURES[0].upper()}{FIGURES[1:]}.", class_="coded")
    rests = el("p", "Left out: ", "; ".join(one.why), ".", class_="note") if one.why else None
    return el(
        "div",
        el("h3", title(facts, one)),
        marked,
        el("div", _chart(facts, one), _grid(facts, one), class_="plots prefixes"),
        rests,
        _gaps(facts, one),
        _edges(facts, one),
        class_="cstar" if one.verdict else "cstar coded-all",
    )


# ---------------------------------------------------------------------------------------- chart


def _chart(facts: Facts, one: Prefixes) -> Markup:
    twins = {b for _, b in facts.alike}  # their lines would lie on those of the first of them
    lines = [line for line in one.lines if line.arm.name not in twins]
    colours = {line.arm.name: i % COLOURS for i, line in enumerate(lines)}
    points = [point for line in lines for point in _points(one, line.curve)]
    gaps = [gap for _, gap in points] + [p.gap_ms for line in lines for p in line.peaks.values()]
    box = Box(
        x=Scale.over([*one.tops, *(at for at, _ in points)], room=0.06),
        y=Scale.over([*gaps, *one.limits_ms]),
        x_title="prefix: tokens of the prompt that have been read",
        y_title="longest gap of a reader",
        x_words=tokens,
        y_words=milliseconds,
        said=f"Longest gap by prefix, {len(lines)} arms, {one.victims} readers",
        spots=[
            _spot(one, line.arm.name, top, peak, colours[line.arm.name])
            for line in lines
            for top, peak in line.peaks.items()
        ],
        lines=[
            Line(_points(one, line.curve), f"c{colours[line.arm.name]}")
            for line in lines
            if len(_points(one, line.curve)) > 1
        ],
        marks=[Mark(limit, f"{limit:g} ms") for limit in one.limits_ms],
    ).drawn()
    legend = [
        el(
            "li",
            el("i", class_=f"c{colours[line.arm.name]}"),
            _named(line.arm.name, line.arm.budget),
        )
        for line in lines
    ]
    if any(peak.edge for line in lines for peak in line.peaks.values()):
        legend.append(el("li", f"pale: see {SHARED}"))
    return el("div", box, el("ul", legend, class_="legend"))


def _points(one: Prefixes, curve: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of a curve, what lies in the bands that are shown."""
    return [(at, gap) for at, gap in curve if at > one.tops[0] / 2]


def _named(arm: str, budget: int | None) -> str:
    return arm if budget is None or f"{budget}" in arm else f"{arm}, budget {budget:,}"


def _spot(one: Prefixes, arm: str, top: int, peak: Peak, colour: int) -> Spot:
    shared = ", together with the prompt\u2019s entry or exit" if peak.edge else ""
    coded = "" if one.verdict else ", coded NEEDLE"
    tip = f"{arm}, prefix up to {top:,}: {spoken(peak.gap_ms, 'ms')}{shared}{coded}"
    kind = f"small c{colour}{' pale' * peak.edge}{' hollow' * (not one.verdict)}"
    return Spot(top, peak.gap_ms, "", tip, f"#{_row_id(one, top)}", kind)


def _row_id(one: Prefixes, top: int) -> str:
    return f"cstar-{slug(one.layout)}-{one.victims}-{top}"


# ----------------------------------------------------------------------------------------- grids


def _grid(facts: Facts, one: Prefixes) -> Markup:
    """Rows prefix, columns limits: the largest budget that holds."""
    budgets = sorted({line.arm.budget or 0 for line in one.lines})
    rows = [
        el(
            "tr",
            el("th", f"{top:,}", scope="row"),
            [_held(held, budgets) for held in one.grid if held.prefix == top],
            id=_row_id(one, top),
        )
        for top in one.tops
    ]
    limits = [el("th", f"under {limit:g} ms", scope="col") for limit in one.limits_ms]
    head = el("tr", el("th", "prefix up to", scope="col"), limits)
    caption = f"Largest token budget that keeps every gap short, {title(facts, one).lower()}"
    inside = el(
        "table",
        el("caption", caption),
        el("thead", head),
        el("tbody", rows),
        class_="heat",
    )
    return el("div", scroll(inside, caption), _dagger(one.grid))


def _held(held: Held, budgets: Sequence[int]) -> Markup:
    what, why = cell(held)
    if held.held is not None:
        kind = f"holds r{min(budgets.index(held.held), 5)}"
    else:
        kind = "unknown" if held.outcome == "cannot tell" else "none"
    shared = SHARED * held.edge
    return el("td", el("b", what), " ", el("small", f"{why}{shared}"), class_=kind)


def _dagger(grid: Iterable[Held]) -> Markup | None:
    if not any(held.edge for held in grid):
        return None
    return el("p", f"{SHARED} {_SHARES}", class_="note")


_SHARES = (
    "This chunk was the prompt\u2019s first or last, so that its pause is also that of taking the "
    "prompt in, or of its first token."
)


def _gaps(facts: Facts, one: Prefixes) -> Markup:
    """Rows prefix, columns arms: the longest gap, from which the grid was made."""
    heads = [el("th", line.arm.name, class_="arm", scope="col") for line in one.lines]
    rows = [
        el(
            "tr",
            el("th", f"{top:,}", scope="row"),
            [_gap(line.peaks.get(top), one.limits_ms) for line in one.lines],
        )
        for top in one.tops
    ]
    caption = f"Longest gap by prefix and arm, {title(facts, one).lower()}"
    head = el("tr", el("th", "prefix up to", scope="col"), heads)
    inside = el(
        "table",
        el("caption", caption, class_="unseen"),
        el("thead", head),
        el("tbody", rows),
        class_="heat",
    )
    shared = any(peak.edge for line in one.lines for peak in line.peaks.values())
    note = el("p", f"{SHARED} {_SHARES}", class_="note") if shared else None
    return details("Every gap by prefix and arm", scroll(inside, caption), note, class_="data")


def _gap(peak: Peak | None, limits_ms: Sequence[float]) -> Markup:
    if peak is None:
        return el("td", NOTHING)
    return el(
        "td", spoken(peak.gap_ms, "ms"), SHARED * peak.edge, class_=_level(peak.gap_ms, limits_ms)
    )


def _level(gap_ms: float, limits_ms: Sequence[float]) -> str:
    """`within`, `between` or `over` the limits."""
    if gap_ms <= limits_ms[0]:
        return "within"
    return "between" if gap_ms <= limits_ms[-1] else "over"


# ----------------------------------------------------------------------------------------- edges

KINDS: tuple[tuple[str, Callable[[Edges], float | None]], ...] = (
    ("before the first chunk", lambda one: one.entry_ms),
    ("with the first chunk", lambda one: one.first_ms),
    ("with the prompt\u2019s first token", lambda one: one.exit_ms),
)


def _edges(facts: Facts, one: Prefixes) -> Markup | None:
    """Rows a prompt and a pause around its chunks, columns arms."""
    if not one.edges:
        return None
    arms = [line.arm.name for line in one.lines]
    rows = [
        el(
            "tr",
            el("th", f"{prompt:,}", scope="rowgroup", rowspan=len(KINDS)) if i == 0 else None,
            el("th", words, scope="row"),
            [_edge(one, prompt, arm, i) for arm in arms],
        )
        for prompt in one.prompts
        for i, (words, _) in enumerate(KINDS)
    ]
    caption = f"Pauses around the chunks, {title(facts, one).lower()}"
    head = el(
        "tr",
        el("th", "prompt", scope="col"),
        el("th", "pause", scope="col"),
        [el("th", arm, class_="arm", scope="col") for arm in arms],
    )
    inside = el(
        "table",
        el("caption", caption, class_="unseen"),
        el("thead", head),
        el("tbody", rows),
        class_="heat edges",
    )
    return join(
        el("h4", "Around the chunks: entry, first chunk, exit"),
        el("p", _told(one), class_="lede"),
        scroll(inside, caption),
    )


def _edge(one: Prefixes, prompt: int, arm: str, kind: int) -> Markup:
    found = next((e for e in one.edges if (e.prompt, e.arm.name) == (prompt, arm)), None)
    value = KINDS[kind][1](found) if found is not None else None
    if value is None:
        return el("td", NOTHING)
    return el("td", spoken(value, "ms"), class_=_level(value, one.limits_ms))


def _told(one: Prefixes) -> str:
    text = (
        "What comes before the first chunk is no chunk\u2019s. The pauses of the first and the "
        "last chunk are the chunk\u2019s own time and what the engine needs to take the prompt in, "
        "or to answer it: they count above only where no other chunk lies."
    )
    longest = [edges for edges in one.edges if edges.prompt == one.prompts[-1]]
    smallest = min(one.lines, key=lambda line: line.arm.budget or 0, default=None)
    if smallest is None or not longest:
        return text
    inner = max((p.gap_ms for p in smallest.peaks.values() if not p.edge), default=None)
    exits = sorted(edges.exit_ms for edges in longest)
    if inner is None or exits[0] <= inner:
        return text
    between = listed(
        [spoken(ms, "ms", beside=exits) for ms in dict.fromkeys((exits[0], exits[-1]))]
    )
    return (
        f"{text} Here the exit is the longest: with a prompt of {one.prompts[-1]:,} tokens between "
        f"{between}, whatever the budget, against {spoken(inner, 'ms')} for the longest chunk of "
        f"budget {smallest.arm.budget:,}."
    )
