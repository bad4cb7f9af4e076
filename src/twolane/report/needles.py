"""The needle grid: which planted facts were found, by length of the prompt and depth in it.

Rules of this file: answers of the gates of all runs, whatever they passed.
"""

from __future__ import annotations

from collections import defaultdict

from twolane.analysis.results import Results
from twolane.records import NeedleAnswer
from twolane.report.markup import Markup, el, join, scroll

Key = tuple[str, int, float]


def section(results: Results) -> Markup | None:
    """One grid an arm, lengths down, depths across; None where no gate has answers."""
    answers: dict[Key, list[NeedleAnswer]] = defaultdict(list)
    for run in results.runs:
        for answer in run.needle.answers if run.needle else ():
            answers[run.arm, answer.length, answer.depth].append(answer)
    if not answers:
        return None
    arms = list(dict.fromkeys(arm for arm, _, _ in answers))
    missed = sum(not a.ok for some in answers.values() for a in some)
    asked = sum(map(len, answers.values()))
    lede = (
        f"{asked - missed} of {asked} needles found, over all runs. An entry is one length and one "
        "depth in the prompt: found of asked."
    )
    grids = [_grid(arm, answers) for arm in arms]
    return join(el("p", lede, class_="lede"), el("div", grids, class_="needles"))


def _grid(arm: str, answers: dict[Key, list[NeedleAnswer]]) -> Markup:
    mine = {(length, depth): some for (a, length, depth), some in answers.items() if a == arm}
    depths = sorted({depth for _, depth in mine})
    head = el(
        "tr",
        el("th", "tokens", scope="col"),
        [el("th", f"{depth:.0%} deep", scope="col") for depth in depths],
    )
    rows = [
        el(
            "tr",
            el("th", f"{length:,}", scope="row"),
            [_cell(mine.get((length, depth), [])) for depth in depths],
        )
        for length in sorted({length for length, _ in mine})
    ]
    caption = el("caption", el("span", arm, class_="arm"))
    inside = el("table", caption, el("thead", head), el("tbody", rows), class_="needle")
    return scroll(inside, f"Needles of {arm}")


def _cell(some: list[NeedleAnswer]) -> Markup:
    if not some:
        return el("td", "\N{EN DASH}")
    found = sum(answer.ok for answer in some)
    first = next((answer for answer in some if not answer.ok), None)
    why = f"{first.reason}: expected {first.expected}, got {first.got!r}" if first else None
    return el(
        "td",
        f"{found} of {len(some)}",
        class_="found" if first is None else "lost",
        title=why,
    )
