"""What is shown of a cell: which values, under which words, with which formula.

Rules of this file: data only, and how a number is written. The keys are those of
`analysis.stats.summarise`; the formulas are those of docs/how-we-measure.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Metric:
    """One shown value. `compared` metrics are positive by nature, so that arms have a ratio."""

    key: str
    label: str
    unit: str
    formula: str
    lower_is_better: bool = True
    compared: bool = True
    may_vanish: bool = False  # zero or less is possible: such figures have no ratio
    floor: str = ""  # the key of what the null run shows of it: no more than that is grey

    @property
    def less(self) -> str:
        """What a smaller figure is called: a pause is shorter, tokens are fewer, speeds lower."""
        words = {"ms": "shorter", "s": "shorter", "tokens": "fewer", "": "fewer"}
        return words.get(self.unit, "lower")


INTERFERENCE = (
    Metric(
        "worst_gap_ms",
        "Worst pause of a reader",
        "ms",
        "the longest t(k+1) - t(k) that overlaps the hit, over readers and shots; one sample per "
        "event, never divided by tokens",
    ),
    Metric(
        "null_worst_gap_ms",
        "The same in the null run",
        "ms",
        "worst pause in the arm's own null run, where the long prompt is replaced by a sleep: "
        "what client and machine add by themselves",
        compared=False,
    ),
    Metric(
        "stalled_s",
        "Time stalled during the prefill",
        "s",
        "summed gaps that overlap the hit and are longer than max(3 x median gap of that stream's "
        "own quiet phase, 50 ms), of the reader that was stalled longest",
        may_vanish=True,
    ),
    Metric(
        "tokens_lost",
        "Tokens lost during the prefill",
        "tokens",
        "quiet rate x duration of the hit - tokens received in it, of the reader that lost most",
        may_vanish=True,
        floor="null_tokens_lost",
    ),
    Metric(
        "null_tokens_lost",
        "Lost in the null run",
        "tokens",
        "tokens lost, by the same formula, during the sleep of the arm's own null run",
        compared=False,
    ),
    Metric(
        "quiet_rate_tok_s",
        "Speed of a reader before it",
        "tokens/s",
        "tokens received in the quiet phase / its duration, median over readers and shots: arms "
        "that differ here were not read under the same conditions",
        lower_is_better=False,
    ),
    Metric(
        "after_worst_gap_ms",
        "Longest pause afterwards",
        "ms",
        "the longest t(k+1) - t(k) that begins after the long prompt's first token, over readers "
        "and shots, while they are still watched",
    ),
    Metric(
        "aggressor_ttft_ms",
        "First token of the long prompt",
        "ms",
        "t_1 - t_send of the long prompt, median over shots",
    ),
)

GRID = (
    Metric(
        "ttft_p50_ms",
        "First token of a short prompt",
        "ms",
        "t_1 - t_send, median over requests, nearest rank; a failed request counts as infinite",
    ),
    Metric(
        "tpot_p50_ms",
        "Time per output token",
        "ms",
        "(t_last - t_1) / (N - n_1) per request, median over requests",
    ),
    Metric(
        "throughput_tok_s",
        "Throughput",
        "tokens/s",
        "tokens that arrived inside the window / window; the window runs from the moment in-flight "
        "first reaches its target to the moment the last request is issued",
        lower_is_better=False,
    ),
)

_RATE = Metric(
    "decode_tok_s",
    "Speed after it",
    "tokens/s",
    "(N - n_1) / (t_last - t_1) per request, median over requests",
    lower_is_better=False,
)
FRESH = (
    Metric("ttft_ms", "First token of a new long prompt", "ms", "t_1 - t_send, median"),
    _RATE,
)
RAMP = (
    Metric(
        "last_ttft_ms",
        "First token of the longest turn",
        "ms",
        "t_1 - t_send of the last turn that was said, median over users",
    ),
    Metric(
        "last_decode_tok_s",
        "Speed after it",
        "tokens/s",
        "(N - n_1) / (t_last - t_1) of the last turn, median over users",
        lower_is_better=False,
    ),
    Metric(
        "worst_gap_ms",
        "Worst pause in any answer",
        "ms",
        "the longest t(k+1) - t(k) of any request",
    ),
    Metric("turns", "Turns answered", "", "turns without an error, all users", compared=False),
    Metric(
        "needles_missed",
        "Needles missed",
        "",
        "answers that did not begin with the planted fact",
        compared=False,
    ),
)
MIX = (
    GRID[0],
    Metric(
        "worst_gap_ms",
        "Worst pause of a short request",
        "ms",
        "the longest t(k+1) - t(k) of any short request",
    ),
    Metric(
        "long_ttft_p50_ms",
        "First token of a long prompt",
        "ms",
        "t_1 - t_send, median over the long requests",
    ),
    GRID[2],
)

BY_KIND: Mapping[str, tuple[Metric, ...]] = {
    "interference": INTERFERENCE,
    "grid": GRID,
    "fresh": FRESH,
    "ramp": RAMP,
    "mix": MIX,
    "trace": GRID,
    "needle": (RAMP[-1],),
}
ALL = tuple({m.label: m for kind in BY_KIND.values() for m in kind}.values())

# Milliseconds above this are easier read as seconds.
_SECONDS_FROM_MS = 1_000
# Ratios below this are told the other way round: nobody reads 0.021x.
_TIMES_BELOW = 0.5
MINUS = "\N{MINUS SIGN}"
NARROW = "\N{NARROW NO-BREAK SPACE}"


def unit_for(unit: str, values: Iterable[float | None]) -> tuple[str, float]:
    """The unit in which a row of values is written, and what to multiply them by."""
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    return ("s", 1e-3) if unit == "ms" and largest >= _SECONDS_FROM_MS else (unit, 1.0)


def number(value: float | None, *, decimals: int | None = None) -> str:
    """A number for people: three significant digits (fewer below 0.1) or whole, with commas."""
    if value is None:
        return "n/a"
    if math.isinf(value):
        return "never"
    if decimals is None:
        size = abs(value)
        decimals = 0 if size >= 100 or value == 0 else 1 if size >= 10 else 2 if size >= 0.1 else 3
    text = f"{abs(value):,.{decimals}f}"
    return f"{MINUS}{text}" if value < 0 and text.strip("0.,") else text


def spoken(value: float | None, unit: str, *, beside: Iterable[float | None] = ()) -> str:
    """A number with its unit inside a sentence: `310 ms`, `2.21 s`, `never`.

    `beside` are the values it is compared with: all are written in one unit.
    """
    if value is None or math.isinf(value):
        return number(value)
    unit, factor = unit_for(unit, [value, *beside])
    value *= factor
    rounded = number(value, decimals=0) if unit == "ms" and abs(value) >= 10 else number(value)
    return f"{rounded}{NARROW}{unit}" if unit else rounded


def ratio(value: float) -> str:
    """A ratio with the digits that its size deserves: `0.021x`, `1.08x`, `12.3x`."""
    decimals = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}\N{MULTIPLICATION SIGN}"


def change(value: float, less: str = "shorter") -> str:
    """A ratio in words: `48 times shorter` (`fewer`, `lower`) below a half, else `1.08x`."""
    if not 0 < value < _TIMES_BELOW:
        return ratio(value)
    return f"{ratio(1 / value)[:-1]} times {less}"


def span(value: float, low: float, high: float) -> tuple[str, str]:
    """The interval of a ratio, turned round where `change` turns the ratio."""
    if 0 < value < _TIMES_BELOW and low > 0:
        low, high = 1 / high, 1 / low
    return ratio(low)[:-1], ratio(high)[:-1]


def day(iso: str) -> str:
    """`2026-01-02 03:04 UTC` of an ISO 8601 time; as it came where it is none."""
    try:
        return datetime.fromisoformat(iso).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return iso
