"""What speculative decoding (MTP, EAGLE, n-grams) brought during a cell, as the engines log it.

vLLM writes a line every ten seconds in which something was drafted, the same in 0.26 and 0.32
(v1/spec_decode/metrics.py):

    SpecDecoding metrics: Mean acceptance length: 2.43, Accepted throughput: 61.30 tokens/s, Drafted
    throughput: 128.60 tokens/s, Accepted: 613 tokens, Drafted: 1286 tokens, Per-position acceptance
    rate: 0.712, 0.451, 0.267, Avg Draft acceptance rate: 47.7%

Rules of this file: a line that is damaged is no line. A line counts for a cell if all that it tells
was drafted in the cell; its length (1 + accepted / drafts) is "tokens a step", as in `counted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

MARK: Final = b"SpecDecoding metrics: "
DIFFERS: Final = 0.02
"""Tokens a step by which log and metrics differ in earnest: the log rounds to 0.01."""

DRAFTED: Final = "vllm:spec_decode_num_draft_tokens_total"

_NUMBER: Final = rb"(\d{1,12}\.\d{1,3})"
_LINE: Final = re.compile(
    MARK
    + rb"Mean acceptance length: " + _NUMBER + rb", "
    rb"Accepted throughput: \d+\.\d+ tokens/s, Drafted throughput: \d+\.\d+ tokens/s, "
    rb"Accepted: (\d{1,15}) tokens, Drafted: (\d{1,15}) tokens, "
    rb"Per-position acceptance rate: (\d\.\d{3}(?:, \d\.\d{3}){0,63}), "
    rb"Avg Draft acceptance rate: (?:\d{1,3}\.\d|nan)%"
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line: tokens a step as it says them, tokens accepted and drafted, and of the drafts the
    share that was accepted at each position."""

    tokens_a_step: float
    accepted: int
    drafted: int
    rates: tuple[float, ...]

    @cached_property
    def drafts(self) -> float:
        """How many drafts it sums up. It does not say; its rates, to three digits, sum to
        accepted / drafts, and a draft holds no more tokens than there are rates."""
        fewest = self.drafted / len(self.rates)
        together = sum(self.rates)
        return max(fewest, self.accepted / together) if together else fewest


@dataclass(frozen=True)
class Logged:
    """One engine's log: tokens drafted in the lines before the cell, and the lines of its time."""

    before: int
    lines: tuple[Line, ...]

    def inside(self, counted: float | None) -> tuple[Line, ...]:
        """The lines that tell of the cell alone. `counted` tokens had been drafted when it began,
        by the engine's counter: what no line had told by then stands in the first ones."""
        untold = (counted or 0.0) - self.before
        for number, line in enumerate(self.lines):
            if untold <= 0:
                return self.lines[number:]
            untold -= line.drafted
        return ()


def read(text: bytes) -> list[Line]:
    """The lines in a piece of a log."""
    found = []
    at = text.find(MARK)
    while at >= 0:
        if match := _LINE.match(text, at):
            length, accepted, drafted, rates = match.groups()
            every = tuple(map(float, rates.split(b", ")))
            found.append(Line(float(length), int(accepted), int(drafted), every))
        at = text.find(MARK, at + len(MARK))
    return found


Samples = Mapping[str, Mapping[str, float]]
"""Values by sample name, by engine."""


def values(logged: Mapping[str, Logged], before: Samples, after: Samples) -> dict[str, float]:
    """What the logs tell of a cell between two samples of the engines, as values of the cell: empty
    where they tell nothing. `mtp_log_covers_share` is how much of what the engines counted as
    drafted stands in the lines."""
    lines = [
        line
        for engine, told in logged.items()
        for line in told.inside(before.get(engine, {}).get(DRAFTED))
        if line.drafted
    ]
    if not lines:
        return {}
    drafted = sum(line.drafted for line in lines)
    accepted = sum(line.accepted for line in lines)
    drafts = sum(line.drafts for line in lines)
    found = {
        "mtp_log_tokens_a_step": 1 + accepted / drafts,
        "mtp_log_tokens_a_step_least": min(line.tokens_a_step for line in lines),
        "mtp_log_tokens_a_step_most": max(line.tokens_a_step for line in lines),
        "mtp_log_accepted_share": accepted / drafted,
        "mtp_log_lines": float(len(lines)),
    }
    for position, rate in enumerate(_by_position(lines, drafts)):
        found[f"mtp_log_accepted_share_pos{position}"] = rate
    if counted := _drafted(before, after):
        found["mtp_log_covers_share"] = drafted / counted
    return found


def _by_position(lines: Sequence[Line], drafts: float) -> Iterable[float]:
    for position in range(max(len(line.rates) for line in lines)):
        there = (line for line in lines if position < len(line.rates))
        yield sum(line.rates[position] * line.drafts for line in there) / drafts


def _drafted(before: Samples, after: Samples) -> float:
    return sum(
        told.get(DRAFTED, 0.0) - before[engine].get(DRAFTED, 0.0)
        for engine, told in after.items()
        if engine in before
    )
