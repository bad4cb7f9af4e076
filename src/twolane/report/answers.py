"""The campaign's answers, in the order in which one asks, for the page and for the terminal.

Rules of this file: it words what `analysis.answers` found and adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from twolane.analysis.crossover import LENGTH
from twolane.report.answer import Answer
from twolane.report.answers_budget import alone, budget
from twolane.report.answers_prefix import prefix
from twolane.report.answers_split import costs, pays
from twolane.report.answers_users import users
from twolane.report.facts import Facts, anchor
from twolane.report.markup import Markup, details, el, join, scroll, table


def answers(facts: Facts) -> list[Answer]:
    """Every question that this campaign can be asked."""
    found = facts.answers
    told = [budget(facts, found.limits), prefix(facts), alone(found.alone)]
    if found.crossovers:
        told += [pays(one) for one in found.crossovers if one.marks or one.by == LENGTH]
        told.append(costs(facts, found.costs))
    told.append(users(facts, found.capacities))
    return [one for one in told if one is not None]


def plain(told: Iterable[Answer]) -> str:
    """The answers as lines for a terminal."""
    return "\n\n".join(_lines(one) for one in told)


def _lines(one: Answer) -> str:
    lacks = f"\n  To know more: {one.missing}." if one.missing else ""
    about = f"\n  {one.about}" if one.about else ""
    return f"{one.question} [{one.state}]{about}\n  {one.answer}{lacks}"


def section(facts: Facts) -> Markup | None:
    """One card a question: state, what is missing, and a table, or a sentence over a closed one."""
    cards = [_card(one) for one in answers(facts)]
    return el("div", cards, class_="answers") if cards else None


def _card(one: Answer) -> Markup:
    lacks = el("p", el("b", "To know more: "), one.missing, class_="missing")
    return el(
        "article",
        el(
            "h3",
            one.question,
            " ",
            el("span", one.state, class_=f"state {one.state.replace(' ', '-')}"),
        ),
        el("p", one.about, class_="about") if one.about else None,
        _told(one),
        lacks if one.missing else None,
        id=anchor(f"answer-{one.id}"),
        class_="wide" if one.tabled and one.rows else None,
    )


def _told(one: Answer) -> Markup:
    """The sentence over its closed table, or the table alone where it reads better."""
    words = el("p", one.answer)
    if not one.rows:
        return words
    caption = f"{one.question} In numbers"
    inside = scroll(table(one.head, one.rows, caption=caption, class_="cards"), caption)
    if one.tabled:
        return inside
    return join(words, details("In numbers", inside, class_="data"))
