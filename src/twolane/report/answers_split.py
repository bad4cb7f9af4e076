"""Answers about the split: from where on it pays, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twolane.analysis.compare import Comparison, Outcome
from twolane.analysis.crossover import LENGTH, Cost, Crossover, Mark
from twolane.report.answer import (
    NOTHING,
    Answer,
    Grade,
    State,
    blocks,
    first_up,
    graded,
    interval,
    lacking,
    listed,
    state,
)
from twolane.report.facts import Facts, users_of
from twolane.report.metrics import change, ratio, span


def pays(found: Crossover) -> Answer:
    place = "prompt length" if found.by == LENGTH else "share of long prompts"
    beside = f"{found.readers} reader{'s' * (found.readers != 1)}" if found.readers else ""
    return Answer(
        "-".join(["pays", place.partition(" ")[0], found.split, *beside.split()[:1]]),
        f"From which {place} does {found.split} pay{f' beside {beside}' if beside else ''}?",
        _from(found),
        graded([_grade(found, mark) for mark in found.marks], found.sure),
        found.missing,
        (place, "against", "pause, times the rival\u2019s", "it"),
        tuple(_mark(found, mark) for mark in found.marks),
    )


def _grade(found: Crossover, mark: Mark) -> Grade:
    """A place is a bound where no shorter (or longer) one says where it changes."""
    if mark.outcome == "cannot tell":
        return "unknown"
    both = {one.outcome for one in found.marks} >= {"pays", "does not pay"}
    return "exact" if both else "bound"


def _from(found: Crossover) -> str:
    if not found.marks:
        return "Cannot tell."
    by_outcome: dict[str, list[str]] = {}
    for mark in found.marks:
        by_outcome.setdefault(mark.outcome, []).append(_at(found, mark.at))
    parts = [
        f"{words} at {listed(by_outcome[words])}" for words in _OUTCOMES if words in by_outcome
    ]
    if found.start is None:
        return f"{first_up('; '.join(parts))}."
    start = _at(found, found.start)
    if len(by_outcome) == 1:
        alone = "the only one measured" if len(found.marks) == 1 else "the smallest measured"
        return f"From {start} at the latest, {alone}; {_lead(found)}."
    before = next(mark for mark in found.marks if mark.at == found.before)
    if before.outcome == "does not pay":
        between = f"Between {_at(found, before.at)} and {start}"
    else:
        between = f"From {start} at the latest (cannot tell at {_at(found, before.at)})"
    return f"{between}; {_lead(found)}."


_OUTCOMES = ("pays", "does not pay", "cannot tell")


def _lead(found: Crossover) -> str:
    first = next(mark for mark in found.marks if mark.at == found.start)
    told = change(first.found.ratio) if first.found and first.found.ratio else "n/a"
    return f"there the readers\u2019 pause is {told} against {first.rival}"


def _at(found: Crossover, at: float) -> str:
    return f"{at:,.0f} tokens" if found.by == LENGTH else f"{at:.1%}"


def _mark(found: Crossover, mark: Mark) -> tuple[str, ...]:
    rival = mark.rival or NOTHING
    more = "" if mark.equal_devices else " (on fewer or more devices)"
    once = "" if mark.sure or mark.outcome == "cannot tell" else ", one block"
    verdict = mark.found.verdict if mark.found and mark.outcome == "cannot tell" else mark.outcome
    return _at(found, mark.at), rival + more, interval(mark.found), verdict + once


def costs(facts: Facts, found: Sequence[Cost]) -> Answer:
    question = "What does the split cost?"
    if not found:
        missing = "clean points of the split and of an aggregated arm"
        return Answer("costs", question, "Cannot tell.", "cannot tell", missing)
    cell = facts.interference
    first = next((one for one in found if one.cell == cell), found[0])
    devices = f"{first.arm.devices} devices against {first.rival.devices}"
    return Answer(
        "costs",
        question,
        f"At {first.cell.prompt:,} tokens, against {first.rival.name} ({devices}): "
        f"{_cost(facts, first)}.",
        _state(first),
        lacking(_lack(one) for one in found),
        (
            "prompt, tokens",
            "against",
            "devices",
            "first token of it",
            f"of a short one{users_of(facts.grid)}",
            "throughput",
        ),
        tuple(
            (
                f"{one.cell.prompt:,}",
                one.rival.name,
                f"{one.arm.devices} : {one.rival.devices}",
                interval(one.long_ttft),
                interval(one.short_ttft),
                interval(one.throughput),
            )
            for one in found
        ),
    )


def _state(one: Cost) -> State:
    every = [c for c in (one.long_ttft, one.short_ttft, one.throughput) if c]
    known = [c for c in every if c.outcome != "cannot tell"]
    if known and len(known) < len(every):
        return "partly answered"
    return state(bool(known), all(c.outcome != "indicative" for c in known))


_JUDGED: Mapping[Outcome, str] = {
    "A better": "better",
    "B better": "worse",
    "equal": "equal",
    "cannot tell": "cannot tell",
    "indicative": "one block",
}
_RANK = ("B better", "A better", "equal", "indicative", "cannot tell")


def _cost(facts: Facts, one: Cost) -> str:
    """What is proven first, and of that what is worse."""
    told = [
        ("the long prompt\u2019s first token", one.long_ttft),
        (f"the first token of short prompts{users_of(facts.grid)}", one.short_ttft),
        ("throughput", one.throughput),
    ]
    known = [(words, found) for words, found in told if found is not None]
    known.sort(key=lambda pair: _RANK.index(pair[1].outcome))
    parts = [f"{words} {_told(found)}, {_JUDGED[found.outcome]}" for words, found in known]
    parts += [f"{words} not known" for words, found in told if found is None]
    return "; ".join(parts)


def _told(found: Comparison | None) -> str:
    if found is None or found.ratio is None:
        return "not known"
    text = ratio(found.ratio)
    if found.low is None or found.high is None:
        return text
    low, high = span(1.0, found.low, found.high)
    return f"{text} ({low} to {high})"


def _lack(one: Cost) -> str:
    if one.throughput is None:
        return "a closed-loop cell with clean points of both"
    more = [c.more_blocks or 0 for c in (one.long_ttft, one.short_ttft, one.throughput) if c]
    return blocks(max(more, default=0))
