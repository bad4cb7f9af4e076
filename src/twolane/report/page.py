"""The page: results folder in, one HTML file out that needs no network and no script.

Rules of this file: it orders the sections and holds no figure of its own. What a reader needs
first comes first: the answer, the picture that shows it, the figures, where the first token's
time went, why to believe it, what made it, how it is defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from twolane.analysis.results import Results, load
from twolane.records import GridCell, InterferenceCell
from twolane.report import (
    answers,
    figures,
    frontier,
    gates,
    ledger,
    machine,
    methods,
    opening,
    timeline,
    waits,
    wrong,
)
from twolane.report.facts import Facts, descriptions
from twolane.report.markup import Markup, details, el, join
from twolane.report.text import verdict

NAME = "report.html"
# Nothing may be fetched and nothing run; a page that tries is stopped by the reader's browser.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write(results_folder: Path) -> Path:
    """Write `report.html` into a campaign's results folder and return its path.

    Raises QuestionError if the folder holds no results.
    """
    path = results_folder / NAME
    beside = path.with_name(f"{NAME}.tmp")
    beside.write_text(html(load(results_folder)), encoding="utf-8")
    beside.replace(path)
    return path


def html(results: Results) -> str:
    """The whole page as text; the same results give the same bytes."""
    facts = Facts(results)
    told = verdict(facts)
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"twolane: {results.campaign}"),
        el("style", Markup(_style())),
    )
    sections = _sections(facts) if results.runs else []
    body = el(
        "body",
        el("a", "Skip to the figures", href="#figures", class_="skip"),
        opening.opening(facts, told),
        _contents(sections),
        el("main", [_section(*one) for one in sections], gates.unreadable(results)),
        _ending(results),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


@cache
def _style() -> str:
    return files("twolane.report").joinpath("style.css").read_text(encoding="utf-8")


Section = tuple[str, str, Markup]


def _sections(facts: Facts) -> list[Section]:
    results = facts.results
    words = descriptions(results.runs)
    found: list[Section] = []
    if asked := answers.section(facts):
        found.append(("answers", "The answers", asked))
    if plotted := frontier.section(facts):
        found.append(("frontier", "What a shorter pause costs", plotted))
    if facts.interference is not None:
        found.append(("streams", "What the readers saw", _streams(facts, words)))
    found.append(("figures", "The figures", _figures(facts, words)))
    if parts := _ledgers(facts):
        found.append(("first-token", "Where the first token\u2019s time went", parts))
    if findings := wrong.wrong(results):
        found.append(("wrong", "What went wrong", findings))
    found.append(("gates", "Why these figures may be believed", _gates(facts)))
    found.append(("machine", "What made them", machine.machine(results)))
    found.append(("methods", "How they are defined", methods.methods(facts)))
    return found


def _contents(sections: list[Section]) -> Markup | None:
    links = [el("li", el("a", title, href=f"#{name}")) for name, title, _ in sections]
    return el("nav", el("ul", links), aria_label="Contents") if links else None


def _section(name: str, title: str, inside: Markup) -> Markup:
    heading = el("h2", title, el("a", "#", href=f"#{name}", aria_label=f"Link to: {title}"))
    return el("section", heading, inside, id=name, class_="part")


def _streams(facts: Facts, words: dict[str, str]) -> Markup:
    cell = facts.interference
    assert cell is not None
    every = [
        panel
        for run in facts.results.runs
        for panel in timeline.panels(run, cell, facts.codes(run, cell))
    ]
    if not every:
        return el("p", "No shot of this cell can be drawn: a reader never streamed.")
    first = _first_shots(every, facts.arms)
    null = next((p for p in every if p.null), None)
    shown = [*first, *([null] if null else [])]
    axis = timeline.Axis.over(shown)
    rest = [p for p in every if p not in shown]
    pauses = waits.rows(every)
    return join(
        _caption(cell, shown),
        timeline.figure(shown, axis, words),
        timeline.as_table(every, "The same in numbers, every shot of every run"),
        _others(rest, words),
        el("h3", "Every pause while the long prompt was prefilled"),
        el("p", _waits(pauses), class_="lede"),
        waits.figure(pauses),
        waits.as_table(pauses, "The same in numbers"),
    )


def _first_shots(panels: list[timeline.Panel], arms: tuple[str, ...]) -> list[timeline.Panel]:
    """The first real shot of each arm: chosen by place, not by what it shows."""
    real = [panel for panel in panels if not panel.null]
    found = (next((p for p in real if p.arm == arm), None) for arm in arms)
    return [panel for panel in found if panel]


def _caption(cell: InterferenceCell, panels: Sequence[timeline.Panel]) -> Markup:
    text = (
        f"Each strip is one reader\u2019s stream; its height is the speed at which tokens arrive, "
        f"so its area is tokens. In the shaded time a {cell.prompt:,}-token prompt is being "
        f"prefilled. {_legend(panels)}Shown are the first shot of each arm and one null run."
    )
    return el("p", text, class_="lede")


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
        f"One tick a pause between two tokens of a reader, all shots and blocks. {stalls}"
        f"Dashed is where a stall begins. "
        f"{alone if any(row.client_ms for row in rows) else ''}"
    ).rstrip()


def _any_stall(rows: Sequence[waits.Row]) -> bool:
    return any(row.stalled_ms for row in rows if not row.excluded)


def _others(panels: list[timeline.Panel], words: dict[str, str]) -> Markup | None:
    if not panels:
        return None
    axis = timeline.Axis.over(panels)
    nulls = sum(panel.null for panel in panels)
    kinds = ((len(panels) - nulls, "shot"), (nulls, "null run"))
    named = [f"{count} {kind}{'s' * (count != 1)}" for count, kind in kinds if count]
    summary = f"The other {' and '.join(named)}"
    return details(summary, timeline.figure(panels, axis, words))


def _figures(facts: Facts, words: dict[str, str]) -> Markup:
    over = "one run of each arm" if facts.blocks == 1 else f"medians over {facts.blocks} blocks"
    text = f"Figures are {over}; below them the ratio to {facts.reference}. Bars start at zero."
    return join(el("p", text, class_="lede"), figures.figure(facts, words))


def _ledgers(facts: Facts) -> Markup | None:
    found = []
    for cell in facts.cells:
        if isinstance(cell, InterferenceCell):
            title = f"The long prompt, {cell.prompt:,} tokens"
            found.append(ledger.bars(facts.results, cell, "aggressor", title))
        elif isinstance(cell, GridCell):
            title = f"Short prompts, {cell.prompt:,} tokens, {cell.users} at a time"
            found.append(ledger.bars(facts.results, cell, "grid", title))
    drawn = [ledger.figure(one) for one in found if one]
    lede = (
        "One bar is one request, the one with the median time to its first token; its parts sum "
        "exactly to what the client saw. Hatched is what no account explains."
    )
    return join(el("p", lede, class_="lede"), drawn) if drawn else None


def _gates(facts: Facts) -> Markup:
    return join(
        gates.gates(facts),
        el("h3", "Excluded points"),
        gates.excluded(facts),
        el("h3", "What else differs between the arms"),
        gates.differences(facts) or el("p", "Nothing that was recorded."),
    )


def _ending(results: Results) -> Markup:
    campaign, folder = results.campaign, f"results/{results.folder.name}"
    measure = "scripts/demo" if campaign == "demo" else f"twolane run {campaign}.yaml"
    again = f"{measure}   # measure again\ntwolane report {folder}   # this page from the raw files"
    hint = el("p", "Made by twolane from the raw files beside it. To remake it:")
    return el("footer", hint, el("pre", again, tabindex="0"))
