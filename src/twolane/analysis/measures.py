"""The definitions of docs/how-we-measure.md, one function each, under the same names.

Rules of this file: pure functions of `records.Request` and of numbers; times in are monotonic
nanoseconds, times out carry their unit in their name. What cannot be known is None, never 0. A
failed request is a latency of +inf, so that losing requests cannot improve a percentile.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from twolane.clock import MS, NS
from twolane.records import Request

VERSION: Final = 3
"""Raised with every change of what `stats.summarise` gives for the same requests. Values that were
written under another version are taken from the requests anew."""

Window = tuple[int, int]
"""Begin and end of a cell's window, monotonic nanoseconds, begin excluded and end included."""

STALL_FACTOR: Final = 3.0
STALL_FLOOR_NS: Final = 50 * MS
"""A gap is a stall past max(3 x the stream's quiet median, 50 ms): a reader at 20 tokens/s, the
slowest stream that still reads as flowing, sees one token every 50 ms."""

PERCENTILE_FLOORS: Final = {90: 64, 95: 130, 99: 662}
"""Fewest samples for a tail percentile, after MLPerf's early stopping: with fewer, the true
percentile may lie beyond everything that was seen."""

Z_95: Final = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""


# --------------------------------------------------------------------------------- per request


def event_times_ns(request: Request) -> list[int]:
    """Arrival of every token event, t_1 ... t_last; empty if none came."""
    if request.first_ns is None:
        return []
    return list(accumulate(request.gaps_ns, initial=request.first_ns))


def token_counts(request: Request) -> list[int]:
    """Tokens each event carried, as the server counted them; as long as `event_times_ns`."""
    if request.first_ns is None:
        return []
    return request.tokens or [1] * (len(request.gaps_ns) + 1)


def ttft_ns(request: Request) -> int | None:
    """TTFT = t_1 - t_send."""
    return None if request.first_ns is None else request.first_ns - request.send_ns


def ttft_from_due_ns(request: Request) -> int | None:
    """TTFT from the moment its slot fell due (coordinated omission; wrk2, MLPerf)."""
    return None if request.first_ns is None else request.first_ns - request.due_ns


def tpot_ns(request: Request) -> float | None:
    """TPOT = (t_last - t_1) / (N - n_1); None if N - n_1 < 1."""
    if request.first_ns is None or request.last_ns is None:
        return None
    first = request.tokens[0] if request.tokens else 1
    after_first = request.output_tokens - first
    return (request.last_ns - request.first_ns) / after_first if after_first >= 1 else None


def decode_tok_s(request: Request) -> float | None:
    """Tokens a second after the first event: 1 / TPOT."""
    tpot = tpot_ns(request)
    return NS / tpot if tpot else None


def e2e_ns(request: Request) -> int | None:
    """E2E = t_last - t_send."""
    return None if request.last_ns is None else request.last_ns - request.send_ns


def worst_gap_ns(request: Request) -> int | None:
    """The longest time between two token events; None with fewer than two."""
    return max(request.gaps_ns, default=None)


# -------------------------------------------------------------------------------- gaps, stalls


@dataclass(frozen=True, slots=True)
class Gap:
    """Time between two token events of one stream, `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns

    def overlaps(self, window: Window) -> bool:
        return self.end_ns > window[0] and self.start_ns < window[1]

    def inside(self, window: Window) -> bool:
        return window[0] <= self.start_ns and self.end_ns <= window[1]


@dataclass(frozen=True, slots=True)
class Stalls:
    """Gaps past the threshold: how many, their summed length, its share of the reading time."""

    count: int
    seconds: float
    share: float


def gaps(request: Request, within: Window | None = None) -> list[Gap]:
    """A stream's gaps, in order; with `within`, those that overlap it, also if only partly."""
    times = event_times_ns(request)
    found = [Gap(start, end) for start, end in pairwise(times)]
    if within is None:
        return found
    return [gap for gap in found if gap.overlaps(within)]


def stall_threshold_ns(quiet: Sequence[Gap]) -> float:
    """max(3 x median quiet gap, 50 ms); the floor alone if there are no quiet gaps."""
    middle = median([gap.length_ns for gap in quiet])
    return max(STALL_FACTOR * (middle or 0.0), STALL_FLOOR_NS)


def stalls(found: Sequence[Gap], threshold_ns: float) -> Stalls:
    """The gaps longer than `threshold_ns`; reading time is the sum of all gaps."""
    long = [gap.length_ns for gap in found if gap.length_ns > threshold_ns]
    reading = sum(gap.length_ns for gap in found)
    return Stalls(len(long), sum(long) / NS, sum(long) / reading if reading else 0.0)


# --------------------------------------------------------------------------------- many values


def median(values: Iterable[float]) -> float | None:
    """The middle value, or the mean of the two middle ones; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def percentile(values: Iterable[float], p: int) -> float | None:
    """Nearest-rank percentile: the ceil(p/100 x n)-th smallest value.

    None below the floor of PERCENTILE_FLOORS, and None of nothing.
    """
    ordered = sorted(values)
    if len(ordered) < max(PERCENTILE_FLOORS.get(p, 1), 1):
        return None
    rank = max(1, -(-p * len(ordered) // 100))
    return ordered[rank - 1]


def wilson(successes: int, n: int, z: float = Z_95) -> tuple[float, float] | None:
    """Wilson's score interval for a share of n; None of nothing."""
    if n == 0:
        return None
    share = successes / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return (max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale))


# ----------------------------------------------------------------------------------- per window


def seconds_of(window: Window) -> float:
    return (window[1] - window[0]) / NS


def tokens_within(request: Request, window: Window) -> int:
    """Tokens whose event arrived in (begin, end]."""
    times = event_times_ns(request)
    begin, end = bisect_right(times, window[0]), bisect_right(times, window[1])
    return sum(token_counts(request)[begin:end])


def throughput_tok_s(requests: Iterable[Request], window: Window) -> float | None:
    """Tokens that arrived inside the window / window."""
    length = seconds_of(window)
    if length <= 0:
        return None
    return sum(tokens_within(request, window) for request in requests) / length


def inflight(requests: Iterable[Request], window: Window) -> float | None:
    """Time-weighted mean of the requests between t_send and t_last inside the window.

    A request that brought no token counts until it ended.
    """
    begin, end = window
    if end <= begin:
        return None
    return sum(_overlap_ns(request, begin, end) for request in requests) / (end - begin)


def _overlap_ns(request: Request, begin: int, end: int) -> int:
    last = request.last_ns or request.end_ns or request.send_ns
    return max(0, min(last, end) - max(request.send_ns, begin))


def little_inflight(requests: Sequence[Request], window: Window) -> float | None:
    """In-flight by Little's law: requests a second x mean E2E.

    Requests a second are the window's tokens a second over the mean tokens of a request, so that
    a request lying partly in the window counts by that part. Means are over the requests that
    lie wholly in the window: others ran partly under the load before or after it.
    """
    whole = [r for r in requests if r.error is None and lies_within(r, window)]
    tokens = sum(r.output_tokens for r in whole)
    rate = throughput_tok_s(requests, window)
    if not tokens or rate is None:
        return None
    return rate * sum(e2e_ns(r) or 0 for r in whole) / NS / tokens


def lies_within(request: Request, window: Window) -> bool:
    """Whether a request was sent and had its last token inside the window."""
    last_ns = request.last_ns
    return last_ns is not None and window[0] <= request.send_ns and last_ns <= window[1]


def cached_share(requests: Iterable[Request]) -> float | None:
    """Cached prompt tokens over prompt tokens, by the answers' usage; None if it says nothing."""
    told = [r for r in requests if r.cached_tokens is not None and r.prompt_tokens]
    prompt = sum(r.prompt_tokens or 0 for r in told)
    return sum(r.cached_tokens or 0 for r in told) / prompt if prompt else None
