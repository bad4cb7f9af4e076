"""What the readers saw: strips over time, the engines' work under them, and every pause.

Rules of this file: it chooses the shots that are shown and words the legend; drawing is
`timeline`'s, `lanes`' and `waits`'.
"""

from __future__ import annotations

from collections.abc import Sequence

from twolane.records import InterferenceCell
from twolane.report import lanes, timeline, waits
from twolane.report.answer import listed
from twolane.report.facts import Facts, workload
from twolane.report.markup import Markup, details, el, join

MOST_CELLS = 8  # further interference cells whose first shots are drawn
MOST_SHOTS = 48  # further shots that are drawn; every shot is in the table


def section(facts: Facts, words: dict[str, str]) -> Markup:
    """The campaign's question in full; of other interference cells the first shots, closed."""
    cell = facts.interference
    assert cell is not None
    more = [c for c in facts.cells if isinstance(c, InterferenceCell) and c != cell]
    return join(
        _whole(facts, cell, words), [_folded(facts, one, words) for one in more[:MOST_CELLS]]
    )


def _panels(facts: Facts, cell: InterferenceCell) -> list[timeline.Panel]:
    return [
        panel
        for run in facts.results.runs
        for panel in timeline.panels(run, cell, facts.codes(run, cell))
    ]


def _folded(facts: Facts, cell: InterferenceCell, words: dict[str, str]) -> Markup | None:
    shown = _firsts(facts, cell)
    return details(workload(cell), _drawn(facts, cell, shown, words)) if shown else None


def _firsts(facts: Facts, cell: InterferenceCell) -> list[timeline.Panel]:
    """The first real shot of each arm."""
    found: dict[str, timeline.Panel] = {}
    for run in facts.results.runs:
        if run.arm not in found:
            panel = timeline.first(run, cell, facts.codes(run, cell))
            if panel is not None:
                found[run.arm] = panel
    return [found[arm] for arm in facts.arms if arm in found]


def _drawn(
    facts: Facts,
    cell: InterferenceCell,
    shown: Sequence[timeline.Panel],
    words: dict[str, str],
) -> Markup:
    axis = timeline.Axis.over(shown)
    under = {id(panel): _lanes(facts, cell, panel) for panel in shown}
    return timeline.figure(
        *(shown, axis, words),
        lambda panel: lanes.drawn(under[id(panel)], axis, panel),
        lambda panel: next((one.prefilled_s for one in under[id(panel)] if one.prefilled_s), None),
    )


def _whole(facts: Facts, cell: InterferenceCell, words: dict[str, str]) -> Markup:
    every = _panels(facts, cell)
    if not every:
        return el("p", "No shot of this cell can be drawn: a reader never streamed.")
    null = next((p for p in every if p.null), None)
    shown = [*_first_shots(every, facts.arms), *([null] if null else [])]
    rest = [p for p in every if p not in shown]
    pauses = waits.rows(every)
    return join(
        _caption(facts, cell, shown),
        _swatches(shown),
        _drawn(facts, cell, shown, words),
        timeline.as_table(every, "The same in numbers, every shot of every run"),
        _others(rest, words),
        el("h3", "Every pause while the long prompt was prefilled"),
        el("p", _waits(pauses), class_="lede"),
        waits.figure(pauses),
        waits.as_table(pauses, "The same in numbers"),
    )


def _lanes(facts: Facts, cell: InterferenceCell, panel: timeline.Panel) -> list[lanes.Lane]:
    run = next(run for run in facts.results.runs if run.id == panel.run)
    return lanes.lanes(run, cell, panel)


def _first_shots(panels: list[timeline.Panel], arms: tuple[str, ...]) -> list[timeline.Panel]:
    """The first real shot of each arm: chosen by place, not by what it shows."""
    real = [panel for panel in panels if not panel.null]
    found = (next((p for p in real if p.arm == arm), None) for arm in arms)
    return [panel for panel in found if panel]


def _caption(facts: Facts, cell: InterferenceCell, panels: Sequence[timeline.Panel]) -> Markup:
    text = (
        f"Each strip is one reader\u2019s stream; its height is the speed at which tokens arrive, "
        f"so its area is tokens. Shaded is the time from sending a {cell.prompt:,}-token prompt to "
        f"its first token, its prefill the darker. {_legend(panels)}Shown are the first shot of "
        "each arm and one null run."
    )
    under = (
        "Under the strips, on the same seconds: the long prompt\u2019s way by the proxy\u2019s "
        "stamps, and each engine, the darker the more of its iterations gave tokens. Where its "
        "log tells them, iterations stand one by one: low ones decode, yellow ones also prefill. "
        f"A green floor is a second in which KV came; what came is told below. {_engines(facts)}"
    )
    return join(el("p", text, class_="lede"), el("p", under, class_="lede"))


def _engines(facts: Facts) -> str:
    """Who the engines are that stand beside the lanes, by the roles that they ran in."""
    roles: dict[str, dict[str, None]] = {}
    for run in facts.results.runs:
        alone = len(run.meta.engines) == 1
        for engine in run.meta.engines:
            role = "alone" if alone else engine.role
            roles.setdefault(role, {}).setdefault(engine.name)
    told = [
        f"{listed(list(roles[role]))} {one if len(roles[role]) == 1 else several}"
        for role, one, several in _ROLES
        if role in roles
    ]
    return f"Engines: {'; '.join(told)}." if told else ""


_ROLES = (
    ("alone", "is the arm\u2019s only engine", "are each their arm\u2019s only engine"),
    (
        "both",
        "is a whole copy of the model",
        "are whole copies of the model, among which the proxy shares the requests",
    ),
    ("prefill", "reads prompts in", "read prompts in"),
    ("decode", "makes the answers", "make the answers"),
)


def _swatches(panels: Sequence[timeline.Panel]) -> Markup:
    """The colours of strips and lanes, with words."""
    stalled = any(strip.holes for panel in panels for strip in panel.strips)
    shown = [
        ("tokens", "tokens arriving, as high as they are fast"),
        ("stall", "stall"),
        ("while", "until the long prompt\u2019s first token"),
        ("compute", "its prefill"),
        ("rest2", "tokenising and HTTP before its transfer"),
        ("transfer", "its KV transfer"),
        ("step", "its first step"),
        ("decoding", "engine step that decodes"),
        ("prefilling", "engine step that also prefills"),
    ]
    items = [
        el("li", el("i", class_=f"swatch {kind}", aria_hidden="true"), words)
        for kind, words in shown
        if stalled or kind != "stall"
    ]
    return el("ul", items, class_="legend", aria_label="Colours of the strips and lanes")


def _legend(panels: Sequence[timeline.Panel]) -> str:
    """What the marks mean, of those that are drawn."""
    strips = [strip for panel in panels for strip in panel.strips]
    if not any(strip.holes for strip in strips):
        return "No reader stalled: no pause was longer than 50 ms and than three usual gaps. "
    stall = (
        "A hole with a red floor is a stall: a pause longer than 50 ms and than three times the "
        "reader\u2019s usual gap"
    )
    lone = any(timeline.lone_tokens(strip.holes) for strip in strips)
    return f"{stall}; thin lines in it are single tokens. " if lone else f"{stall}. "


def _waits(rows: Sequence[waits.Row]) -> str:
    stalls = "Red ticks are stalls. " if _any_stall(rows) else ""
    alone = (
        "The thick tick is the worst pause of the arm\u2019s own null run, which client and "
        "machine add by themselves."
    )
    return (
        "One tick a pause between two tokens of a reader, all shots and blocks; the number is the "
        f"worst of them all, not the median of blocks of the first screen. {stalls}"
        f"Dashed is where a stall begins. "
        f"{alone if any(row.client_ms for row in rows) else ''}"
    ).rstrip()


def _any_stall(rows: Sequence[waits.Row]) -> bool:
    return any(row.stalled_ms for row in rows if not row.excluded)


def _others(panels: list[timeline.Panel], words: dict[str, str]) -> Markup | None:
    if not panels:
        return None
    drawn = panels[:MOST_SHOTS]
    axis = timeline.Axis.over(drawn)
    nulls = sum(panel.null for panel in panels)
    kinds = ((len(panels) - nulls, "shot"), (nulls, "null run"))
    named = [f"{count} {kind}{'s' * (count != 1)}" for count, kind in kinds if count]
    summary = f"The other {' and '.join(named)}"
    cut = f", the first {MOST_SHOTS} of them" if len(panels) > MOST_SHOTS else ""
    return details(summary + cut, timeline.figure(drawn, axis, words))
