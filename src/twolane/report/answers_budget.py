"""Answers about token budgets: the largest that keeps a pause short; whether one would do alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from twolane.analysis.crossover import Alone
from twolane.analysis.evidence import Seen
from twolane.analysis.frontier import GAP_LIMITS_MS, BudgetLimit
from twolane.records import InterferenceCell
from twolane.report.answer import NOTHING, Answer, Grade, graded, grouped, lacking, listed
from twolane.report.facts import Facts, layout
from twolane.report.metrics import spoken

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


ABOUT = (
    "The longest pause from the prompt\u2019s arrival to its first token: that before its first "
    "chunk (entry) and that with its first token (exit) count too. The next answer is of the "
    "chunks alone, so it can allow more."
)


def budget(facts: Facts, limits: Sequence[BudgetLimit]) -> Answer | None:
    question = "Which token budget keeps every pause of a reader short, over the whole prompt?"
    if not limits:
        if facts.interference is None and not _planned(facts):
            return None
        asked = facts.interference is not None
        missing = "arms that differ in their token budget" if asked else "an interference cell"
        return Answer("budget", question, "Cannot tell.", "cannot tell", missing)
    names = _layout_names(facts)
    readers = _readers(one.victims for one in limits)
    layouts = {one.layout: names.get(one.layout, one.layout) for one in limits}
    parts = []
    for limit_ms in GAP_LIMITS_MS:
        mine = [one for one in limits if one.limit_ms == limit_ms]
        for (name, victims), same in _by(mine, lambda one: (one.layout, one.victims)).items():
            who = [layouts[name]] if len(layouts) > 1 else []
            told = grouped((one.prompt, _held(one)) for one in same)
            parts.append(f"{_under(limit_ms, [*who, readers[victims]])}: {told}.")
    known = [one for one in limits if one.outcome != "cannot tell"]
    return Answer(
        "budget",
        question,
        " ".join(parts),
        graded([_grade(one) for one in limits], all(one.runs > 1 for one in known)),
        _missing(limits),
        (
            "prompt, tokens",
            "layout",
            "limit",
            "largest budget that keeps it",
            "worst pause of all blocks, by budget",
        ),
        tuple(_budget_row(one, names, readers[one.victims]) for one in limits),
        tabled=True,
        about=ABOUT if facts.prefixes else "",
    )


def _missing(limits: Sequence[BudgetLimit]) -> str:
    """What is missing; for which prompts, where that differs."""
    by_words: dict[str, dict[int, None]] = {}
    for one in limits:
        if one.missing:
            by_words.setdefault(one.missing, {})[one.prompt] = None
    if len(by_words) < 2:
        return lacking(by_words)
    return "; ".join(
        f"for {listed([f'{prompt:,}' for prompt in prompts])} tokens {words}"
        for words, prompts in by_words.items()
    )


def _planned(facts: Facts) -> bool:
    """Whether the campaign asks what a long prompt does at all."""
    cells = [cell for run in facts.results.runs for cell in run.meta.cells]
    return any(isinstance(cell, InterferenceCell) for cell in cells)


def _grade(one: BudgetLimit) -> Grade:
    if one.outcome == "cannot tell":
        return "unknown"
    return "exact" if one.outcome in ("bracketed", "none would") else "bound"


def _readers(victims: Iterable[int]) -> dict[int, str]:
    """The readers in words, by their number; empty words where all cells have as many."""
    counts = sorted(set(victims))
    several = len(counts) > 1
    return {n: f"{n} reader{'s' * (n != 1)}" if several else "" for n in counts}


def _by(found: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def _under(limit_ms: float, who: Iterable[str]) -> str:
    return ", ".join([f"Under {limit_ms:g} ms", *(word for word in who if word)])


def _layout_names(facts: Facts) -> dict[str, str]:
    return {arm.layout: layout(arm) for arm in facts.layouts.values()}


def _held(one: BudgetLimit) -> str:
    if one.outcome == "held":
        return f"budget {one.held:,}, the largest measured"
    if one.outcome == "bracketed":
        near = f" (about {_round(one.estimate)} by a straight line)" if one.estimate else ""
        return f"budget {one.held:,}, not {one.exceeded:,}{near}"
    if one.outcome == "none measured":
        gap = dict(one.gaps_ms).get(one.exceeded or 0)
        already = f" ({one.exceeded:,} already gives {spoken(gap, 'ms')})" if gap else ""
        return f"none measured{already}"
    if one.outcome != "none would":
        return "cannot tell"
    if one.floor_ms is None:
        return "none"
    return f"none: about {spoken(one.floor_ms, 'ms')} however small the budget (extrapolated)"


def _round(value: float) -> str:
    """Two digits: a line through two points knows no more."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _budget_row(one: BudgetLimit, names: dict[str, str], readers: str) -> tuple[str, ...]:
    gaps = [f"{budget:,}: {spoken(gap, 'ms')}" for budget, gap in one.gaps_ms]
    coded = [f"{budget:,}: coded" for budget in one.coded]
    return (
        _beside(one.prompt, readers),
        names.get(one.layout, one.layout),
        spoken(one.limit_ms, "ms"),
        _held(one),
        ", ".join([*gaps, *coded]) or NOTHING,
    )


def alone(found: Sequence[Alone]) -> Answer | None:
    if not found:
        return None
    readers = _readers(one.cell.victims for one in found)
    parts = []
    for limit_ms in GAP_LIMITS_MS:
        mine = [one for one in found if one.limit_ms == limit_ms]
        for victims, same in _by(mine, lambda one: one.cell.victims).items():
            told = grouped((one.cell.prompt, _enough(one)) for one in same)
            parts.append(f"{_under(limit_ms, [readers[victims]])}: {told}.")
    known = [one for one in found if one.outcome != "cannot tell"]
    return Answer(
        "alone",
        "Would a budget alone do, without a split?",
        " ".join(parts),
        graded(
            ["unknown" if one.outcome == "cannot tell" else "exact" for one in found],
            all(one.runs > 1 for one in known),
        ),
        lacking(one.missing for one in found),
        ("prompt, tokens", "limit", "answer", "without a split", "best split"),
        tuple(
            (
                _beside(one.cell.prompt, readers[one.cell.victims]),
                spoken(one.limit_ms, "ms"),
                _enough(one),
                _pauses(one.gap),
                _pauses(one.split),
            )
            for one in found
        ),
    )


def _beside(prompt: int, readers: str) -> str:
    return f"{prompt:,}, {readers}" if readers else f"{prompt:,}"


def _enough(one: Alone) -> str:
    if one.outcome == "a budget alone" and one.arm is not None:
        return f"yes, with {one.arm.name}"
    words = {"only the split": "no, only the split", "neither": "no, and no split either"}
    return words.get(one.outcome, "cannot tell")


def _pauses(seen: Seen | None) -> str:
    if seen is None:
        return NOTHING
    return ", ".join(spoken(value, "ms", beside=seen.values) for value in seen.values)
