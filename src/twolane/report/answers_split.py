"""Answers about the split: from where on it pays, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from twolane.analysis.compare import Comparison
from twolane.analysis.crossover import LENGTH, Cost, Crossover, Mark
from twolane.report.answer import NOTHING, Answer, blocks, interval, lacking, listed, state
from twolane.report.facts import Facts
from twolane.report.metrics import change, ratio, span


def pays(found: Crossover) -> Answer:
    place = "prompt length" if found.by == LENGTH else "share of long prompts"
    known = [mark for mark in found.marks if mark.outcome != "cannot tell"]
    decided = found.start is not None or (bool(known) and known[-1] is found.marks[-1])
    beside = f"{found.readers} reader{'s' * (found.readers != 1)}" if found.readers else ""
    return Answer(
        "-".join(["pays", place.partition(" ")[0], found.split, *beside.split()[:1]]),
        f"From which {place} does {found.split} pay{f' beside {beside}' if beside else ''}?",
        _from(found, known),
        state(decided, found.sure),
        found.missing,
        (place, "against", "pause, times the rival\u2019s", "it"),
        tuple(_mark(found, mark) for mark in found.marks),
    )


def _from(found: Crossover, known: Sequence[Mark]) -> str:
    if not found.marks:
        return "Cannot tell."
    least, most = (_at(found, mark.at) for mark in (found.marks[0], found.marks[-1]))
    if found.start is not None:
        start = _at(found, found.start)
        if found.before is None:
            alone = "the only one measured" if least == most else "the smallest measured"
            return f"From {start} at the latest, {alone}; {_lead(found)}."
        before = next(mark for mark in found.marks if mark.at == found.before)
        if before.outcome == "cannot tell":
            open_ = f"at {_at(found, before.at)} it cannot be told"
            return f"From {start} at the latest ({open_}); {_lead(found)}."
        return f"Between {_at(found, found.before)} and {start}; {_lead(found)}."
    if known and known[-1] is found.marks[-1]:
        where = least if least == most else f"{least} to {most}"
        return f"At none that was measured ({where}): a shorter pause is not to be had there."
    unknown = [_at(found, m.at) for m in found.marks if m.outcome == "cannot tell"]
    return f"Cannot tell at {listed(unknown)}."


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
    every = [c for one in found for c in (one.long_ttft, one.short_ttft, one.throughput) if c]
    devices = f"{first.arm.devices} devices against {first.rival.devices}"
    return Answer(
        "costs",
        question,
        f"At {first.cell.prompt:,} tokens, against {first.rival.name}: {devices}, {_cost(first)}.",
        state(
            bool(every) and all(c.outcome != "cannot tell" for c in every),
            all(c.outcome != "indicative" for c in every),
        ),
        lacking(_lack(one) for one in found),
        (
            "prompt, tokens",
            "against",
            "devices",
            "first token of it",
            "of a short one",
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


def _cost(one: Cost) -> str:
    told = (
        ("the long prompt\u2019s first token", one.long_ttft),
        ("a short prompt\u2019s first token", one.short_ttft),
        ("throughput", one.throughput),
    )
    return listed([f"{words} {_told(found)}" for words, found in told])


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
