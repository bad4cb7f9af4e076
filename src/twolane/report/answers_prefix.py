"""The answer about budgets by prefix, in words for the page and lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from twolane.analysis.prefixes import Held, Prefixes
from twolane.report.answer import Answer, Grade, graded, lacking
from twolane.report.facts import Facts, layout
from twolane.report.metrics import spoken

FIGURES = "figures, not a verdict: the weights are made up"


ABOUT = (
    "The pause that a chunk makes which brings the prompt to that prefix, and no other: what comes "
    "before the first chunk and with the prompt\u2019s first token is in the answer above, and "
    "makes it the stricter one."
)


def told(facts: Facts) -> list[Prefixes]:
    """Those of which any budget was seen in any band."""
    return [one for one in facts.prefixes if one.lines]


def prefix(facts: Facts) -> Answer | None:
    """c*(p) by prefix; None where no engine's log tells its iterations."""
    found = told(facts)
    if not found:
        return None
    verdict = all(one.verdict for one in found)
    parts = [
        f"Under {limit:g} ms{_beside(facts, one)}: {_bands(one, limit)}."
        for limit in found[0].limits_ms
        for one in found
    ]
    grades = [_grade(held) if one.verdict else "unknown" for one in found for held in one.grid]
    sure = all(line.runs > 1 for one in found for line in one.lines)
    opening = [] if verdict else [f"{FIGURES[0].upper()}{FIGURES[1:]}."]
    return Answer(
        "prefix",
        "Which token budget keeps the pause of a chunk short, by how far the prompt is read?",
        " ".join([*opening, *parts]),
        graded(grades, sure),
        lacking("" if one.verdict else "a model whose needles are found" for one in found),
        about=ABOUT if facts.answers.limits else "",
    )


def _beside(facts: Facts, one: Prefixes) -> str:
    """Which of several this is: readers, and the layout where there are several."""
    found = told(facts)
    readers = f"{one.victims} reader{'s' * (one.victims != 1)}"
    parts = [readers] if len({other.victims for other in found}) > 1 else []
    if len({other.layout for other in found}) > 1:
        parts.append(_layout(facts, one))
    return "".join(f", {part}" for part in parts)


def _layout(facts: Facts, one: Prefixes) -> str:
    return next(
        (layout(arm) for arm in facts.layouts.values() if arm.layout == one.layout), one.layout
    )


def title(facts: Facts, one: Prefixes) -> str:
    """`Beside 8 readers`, with the layout where there are several."""
    several = len({other.layout for other in told(facts)}) > 1
    readers = f"Beside {one.victims} reader{'s' * (one.victims != 1)}"
    return f"{readers}, {_layout(facts, one)}" if several else readers


def _grade(one: Held) -> Grade:
    if one.outcome == "cannot tell":
        return "unknown"
    return "exact" if one.outcome in ("bracketed", "none would") else "bound"


def _bands(one: Prefixes, limit_ms: float) -> str:
    """Neighbouring bands with the same answer told as one."""
    mine = [held for held in one.grid if held.limit_ms == limit_ms]
    runs = [(words, list(some)) for words, some in groupby(mine, key=_words)]
    return "; ".join(f"prefix up to {some[-1].prefix:,}: {words}" for words, some in runs)


def _words(one: Held) -> str:
    if one.held is not None:
        more = ", the largest measured" if one.outcome == "held" else ""
        return f"budget {one.held:,}{more}"
    none = {"none would": "no static budget", "none measured": "none measured"}
    return none.get(one.outcome, "cannot tell")


def cell(one: Held) -> tuple[str, str]:
    """One cell of the grid: what holds, and the gap that says so."""
    gap = "" if one.gap_ms is None else spoken(one.gap_ms, "ms")
    if one.held is not None:
        return f"{one.held:,}", f"gave {gap}"
    if one.outcome == "cannot tell":
        return "cannot tell", one.why
    near = f", about {round_(one.estimate)} would, by a line" if one.estimate else ""
    what = "no static budget" if one.outcome == "none would" else "none measured"
    return what, f"{one.smallest:,} gave {gap}{near}"


def round_(value: float) -> str:
    """Two digits: a line through two points knows no more."""
    return f"{float(f'{value:.2g}'):,.0f}"


# --------------------------------------------------------------------------------- terminal


def plain(facts: Facts) -> list[str]:
    """The grids as lines."""
    return [line for one in told(facts) for line in _plain(facts, one)]


def _plain(facts: Facts, one: Prefixes) -> list[str]:
    marked = "" if one.verdict else f" ({FIGURES})"
    head = f"Largest token budget for a chunk, by prefix, {title(facts, one).lower()}{marked}:"
    rows = [["prefix up to", *(f"under {limit:g} ms" for limit in one.limits_ms)]]
    rows += [[f"{top:,}", *(_in_brackets(held) for held in _row(one, top))] for top in one.tops]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    rests = [f"  {why}" for why in one.why]
    return ["", head, *lines, *_edges(one), *rests]


def _row(one: Prefixes, top: int) -> Sequence[Held]:
    return [held for held in one.grid if held.prefix == top]


def _in_brackets(one: Held) -> str:
    what, why = cell(one)
    return f"{what} ({why})" if why else what


def _edges(one: Prefixes) -> list[str]:
    """The pauses around the chunks, of the longest prompt."""
    mine = [edges for edges in one.edges if edges.prompt == one.prompts[-1]]
    return [
        f"  {edges.arm.name}, prompt of {edges.prompt:,}: "
        f"{'n/a' if edges.entry_ms is None else spoken(edges.entry_ms, 'ms')} before its first "
        f"chunk, {spoken(edges.first_ms, 'ms')} with it, "
        f"{spoken(edges.exit_ms, 'ms')} with its first token"
        for edges in mine
    ]
