"""The page: results folder in, one HTML file out that needs no network and no script.

Rules of this file: it orders the sections and holds no figure of its own. What a reader needs
first comes first: the answer, the picture that shows it, the figures, where the first token's
time went, why to believe it, what made it, how it is defined.
"""

from __future__ import annotations

import shlex
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
    glossary,
    ledger,
    machine,
    methods,
    needles,
    opening,
    prefixes,
    ramps,
    ratios,
    streams,
    telemetry,
    wrong,
)
from twolane.report.facts import Facts, over_blocks, shown
from twolane.report.markup import Markup, el, join
from twolane.report.text import verdict

NAME = "report.html"
# Nothing may be fetched and nothing run; a page that tries is stopped by the reader's browser.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write(results_folder: Path, facts: Facts | None = None) -> Path:
    """Write `report.html` into a campaign's results folder and return its path.

    `facts` are those of the folder, where the caller has read them already. Raises QuestionError if
    the folder holds no results.
    """
    path = results_folder / NAME
    beside = path.with_name(f"{NAME}.tmp")
    known = facts if facts is not None else Facts(load(results_folder))
    beside.write_text(_html(known), encoding="utf-8")
    beside.replace(path)
    return path


def html(results: Results) -> str:
    """The whole page as text; the same results give the same bytes."""
    return _html(Facts(results))


def _html(facts: Facts) -> str:
    results = facts.results
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
        _ending(results, told.decided.arm),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


@cache
def _style() -> str:
    return files("twolane.report").joinpath("style.css").read_text(encoding="utf-8")


Section = tuple[str, str, Markup]


def _sections(facts: Facts) -> list[Section]:
    results = facts.results
    words = facts.captions
    found: list[Section] = []
    if asked := answers.section(facts):
        found.append(("answers", "The answers", asked))
    if plotted := frontier.section(facts):
        found.append(("frontier", "What a shorter pause costs", plotted))
    if by_prefix := prefixes.section(facts):
        found.append(("prefixes", "How large a budget may be, by prefix", by_prefix))
    if facts.interference is not None:
        found.append(("streams", "What the readers saw", streams.section(facts, words)))
    found.append(("figures", "The figures", _figures(facts, words)))
    if growing := ramps.section(facts):
        found.append(("ramps", "Turn by turn", growing))
    if parts := _ledgers(facts):
        found.append(("first-token", "Where the first token\u2019s time went", parts))
    if findings := wrong.wrong(results):
        found.append(("wrong", "What went wrong", findings))
    found.append(("gates", "Why these figures may be believed", _gates(facts)))
    if curves := telemetry.section(facts):
        found.append(("telemetry", "What the devices and engines did", curves))
    found.append(("machine", "What made them", machine.machine(results)))
    found.append(("methods", "How they are defined", methods.methods(facts)))
    return found


def _contents(sections: list[Section]) -> Markup | None:
    links = [el("li", el("a", title, href=f"#{name}")) for name, title, _ in sections]
    return el("nav", el("ul", links), aria_label="Contents") if links else None


def _section(name: str, title: str, inside: Markup) -> Markup:
    heading = el("h2", title, el("a", "#", href=f"#{name}", aria_label=f"Link to: {title}"))
    told = inside if name == "methods" else glossary.annotated(inside)
    return el("section", heading, told, id=name, class_="part")


def _figures(facts: Facts, words: dict[str, str]) -> Markup:
    counts = [facts.figure(c, m.key, a) for c in facts.cells for m in shown(c) for a in facts.arms]
    over = "one run of each arm" if facts.blocks == 1 else f"medians over {over_blocks(counts)}"
    how = ", the median of the blocks\u2019 own ratios, not the quotient of two medians"
    how = how if facts.blocks > 1 else ""
    beside = f"; below them the ratio to {facts.reference}{how}" if len(facts.arms) > 1 else ""
    text = f"Figures are {over}{beside}. Bars start at zero."
    return join(el("p", text, class_="lede"), figures.figure(facts, words), ratios.section(facts))


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
        _needles(facts),
        el("h3", "Excluded points"),
        gates.excluded(facts),
        el("h3", "What else differs between the arms"),
        gates.differences(facts) or el("p", "Nothing that was recorded."),
    )


def _needles(facts: Facts) -> Markup | None:
    inside = needles.section(facts.results)
    return join(el("h3", "Needles by length and depth"), inside) if inside else None


def _ending(results: Results, chosen: str | None) -> Markup:
    campaign, bare = results.campaign, f"results/{results.folder.name}"
    folder = shlex.quote(bare)
    measure = "scripts/demo" if campaign == "demo" else f"twolane run {campaign}.yaml"
    arm = chosen or (results.arms[0] if results.arms else "ARM")
    again = (
        f"{measure}   # measure again\n"
        f"twolane report {folder}   # this page from the raw files\n"
        f"twolane up {folder} --arm {shlex.quote(arm)}   # start it to be used\n"
        f"twolane explain {shlex.quote(f'{bare}/{arm}')}"
        "   # why its points are as they are, then a cell or request"
    )
    hint = el("p", "Made by twolane from the raw files beside it. To remake it, or to ask on:")
    return el("footer", hint, el("pre", again, tabindex="0"))
