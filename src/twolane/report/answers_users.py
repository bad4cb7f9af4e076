"""Answers about load: the most users per device that each layout holds under each service level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twolane.analysis.capacity import Capacity, Slo
from twolane.report.answer import NOTHING, Answer, Grade, first_up, graded, lacking, listed
from twolane.report.facts import Facts
from twolane.report.metrics import number, spoken


def users(facts: Facts, found: Sequence[Capacity]) -> Answer | None:
    if not found:
        return None
    first = facts.interference
    beside = "" if first is None else f"readers beside a prompt of {first.prompt:,}"
    arms = list(dict.fromkeys(one.arm.name for one in found))
    lines: dict[tuple[str, str], dict[str, Capacity]] = {}
    for one in found:
        lines.setdefault((one.shape, one.slo.name), {})[one.arm.name] = one
    told = [one for one in found if not one.shape.startswith("readers") or one.shape == beside]
    known = [one for one in told if one.users is not None]
    by_shape: dict[str, list[Mapping[str, Capacity]]] = {}
    for (shape, _), cells in lines.items():
        if any(one in told for one in cells.values()):
            by_shape.setdefault(shape, []).append(cells)
    return Answer(
        "users",
        "How many users per device does each layout hold?",
        " ".join(f"{_line(*one)}." for one in by_shape.items()),
        graded([_grade(one) for one in told], all(one.runs > 1 for one in known)),
        lacking(one.missing for one in told),
        ("requests", "service level", *arms),
        tuple(
            (
                first_up(shape),
                _level(next(iter(cells.values())).slo),
                *(_per_device(cells[arm]) if arm in cells else NOTHING for arm in arms),
            )
            for (shape, _), cells in lines.items()
        ),
        tabled=True,
    )


def _grade(one: Capacity) -> Grade:
    if one.users is None:
        return "unknown"
    return "exact" if one.users and one.beyond is not None else "bound"


def _line(shape: str, levels: Sequence[Mapping[str, Capacity]]) -> str:
    """One shape of request: its service levels that have the same answer told together."""
    told: dict[str, list[str]] = {}
    for cells in levels:
        told.setdefault(_by_arm(cells), []).append(_level(next(iter(cells.values())).slo))
    return ". ".join(
        f"{first_up(' or '.join(names))}, {shape} tokens: {words}" for words, names in told.items()
    )


def _by_arm(cells: Mapping[str, Capacity]) -> str:
    by_words: dict[str, list[str]] = {}
    for arm, one in cells.items():
        by_words.setdefault(_per_device(one), []).append(arm)
    return "; ".join(f"{words} with {listed(arms)}" for words, arms in by_words.items())


def _level(slo: Slo) -> str:
    limits = (
        ("first token within", slo.ttft_ms),
        ("a token every", slo.tpot_ms),
        ("no pause over", slo.gap_ms),
    )
    told = [f"{words} {spoken(value, 'ms')}" for words, value in limits if value is not None]
    share = "" if slo.share >= 1 else f", {slo.share:.0%} of requests"
    return ", ".join(told) + share


def _per_device(one: Capacity) -> str:
    """`32`, `32 or more`, `not even 1`, `cannot tell`; in all where devices are not known."""
    if one.users is None:
        return "cannot tell"
    if one.per_device is None:
        more = "" if one.beyond is not None else " or more"
        users = f"{one.users:,}{more}" if one.users else f"not even {one.levels[0][0]:,}"
        return f"{users} in all (devices not known)"
    if one.users == 0:
        smallest = one.levels[0][0] / one.arm.devices
        return f"not even {number(smallest, decimals=0 if smallest == int(smallest) else 1)}"
    whole = one.per_device == int(one.per_device)
    text = number(one.per_device, decimals=0 if whole else 1)
    return text if one.beyond is not None else f"{text} or more"
