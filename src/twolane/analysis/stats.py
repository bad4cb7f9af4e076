"""One cell's requests in, its values by metric name out.

Rules of this file: every definition lives in `measures` or `interference`, and is offered again
here under the same name; this file only chooses which requests a value is taken over. Names end
in their unit; None means that it cannot be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twolane.analysis.interference import Phases, Victim, phases, recovery_s, victims
from twolane.analysis.measures import (
    PERCENTILE_FLOORS,
    Gap,
    Stalls,
    Window,
    cached_share,
    e2e_ns,
    event_times_ns,
    gaps,
    inflight,
    little_inflight,
    median,
    percentile,
    seconds_of,
    stall_threshold_ns,
    stalls,
    throughput_tok_s,
    token_counts,
    tokens_within,
    tpot_ns,
    ttft_from_due_ns,
    ttft_ns,
    wilson,
    worst_gap_ns,
)
from twolane.clock import MS
from twolane.records import AnyCell, GridCell, InterferenceCell, Request

__all__ = [
    "PERCENTILE_FLOORS",
    "Gap",
    "Phases",
    "Stalls",
    "Values",
    "Victim",
    "Window",
    "cached_share",
    "e2e_ns",
    "event_times_ns",
    "gaps",
    "inflight",
    "little_inflight",
    "median",
    "percentile",
    "phases",
    "recovery_s",
    "seconds_of",
    "stall_threshold_ns",
    "stalls",
    "summarise",
    "throughput_tok_s",
    "token_counts",
    "tokens_within",
    "tpot_ns",
    "ttft_from_due_ns",
    "ttft_ns",
    "victims",
    "wilson",
    "worst_gap_ns",
]

Values = dict[str, float | None]

LATENCIES: dict[str, Callable[[Request], float | None]] = {
    "ttft": ttft_ns,
    "ttft_from_due": ttft_from_due_ns,
    "tpot": tpot_ns,
    "e2e": e2e_ns,
    "worst_gap": worst_gap_ns,
}


def summarise(cell: AnyCell, requests: Sequence[Request], window_ns: Window | None) -> Values:
    """The values of one cell, from all its requests, warm-up included.

    `window_ns` is where throughput and in-flight are taken; without it they are None.
    """
    if isinstance(cell, InterferenceCell):
        return _interference(requests)
    measured = [r for r in requests if r.role != "warmup"]
    values = _counts(measured) | _latencies(measured)
    if isinstance(cell, GridCell):
        values |= _load(cell, requests, window_ns)
    return values


def _counts(requests: Sequence[Request]) -> Values:
    return {
        "requests": float(len(requests)),
        "failed": float(sum(r.error is not None for r in requests)),
        "output_tokens": float(sum(r.output_tokens for r in requests)),
        "cached_share": cached_share(requests),
    }


def _latencies(requests: Sequence[Request]) -> Values:
    """`<name>_p<p>_ms` for every latency; a failed request counts as +inf.

    A request that succeeded without having the value (one token has no TPOT) is left out.
    """
    values: Values = {}
    for name, of in LATENCIES.items():
        seen = [float("inf") if r.error is not None else of(r) for r in requests]
        sample = [value / MS for value in seen if value is not None]
        for p in (50, *PERCENTILE_FLOORS):
            values[f"{name}_p{p}_ms"] = percentile(sample, p)
    return values


def _load(cell: GridCell, requests: Sequence[Request], window: Window | None) -> Values:
    known = window is not None and window[1] > window[0]
    return {
        "users": float(cell.users),
        "window_s": seconds_of(window) if window and known else None,
        "throughput_tok_s": throughput_tok_s(requests, window) if window else None,
        "inflight": inflight(requests, window) if window else None,
        "little_inflight": little_inflight(requests, window) if window else None,
    }


def _interference(requests: Sequence[Request]) -> Values:
    """Worst over the victims of the real shots, and of the null shot as `null_*`."""
    seen = victims(requests)
    hit = [victim for victim in seen if not victim.null]
    fired = [r for r in requests if r.role == "aggressor"]
    ttfts = [float("inf") if r.error is not None else ttft_ns(r) for r in fired]
    aggressor = percentile([t / MS for t in ttfts if t is not None], 50)
    return {
        **_counts([r for r in requests if r.role != "null"]),
        "victims": float(len(hit)),
        "quiet_gap_ms": median(v.quiet_gap_ms for v in seen if v.quiet_gap_ms is not None),
        "quiet_rate_tok_s": median(v.quiet_rate_tok_s for v in seen),
        "aggressor_ttft_ms": aggressor,
        "hit_s": median(seconds_of(v.phases.hit) for v in hit),
        **_worst(hit, ""),
        **_worst([victim for victim in seen if victim.null], "null_"),
    }


def _worst(shot: Iterable[Victim], prefix: str) -> Values:
    """`recovery_s` is None if any of the streams did not come back while it was watched."""
    over = list(shot)
    back = [v.recovery_s for v in over]
    return {
        f"{prefix}worst_gap_ms": max((v.worst_gap_ms for v in over), default=None),
        f"{prefix}stalled_s": max((v.stalls.seconds for v in over), default=None),
        f"{prefix}stalls": float(sum(v.stalls.count for v in over)) if over else None,
        f"{prefix}tokens_lost": max((v.tokens_lost for v in over), default=None),
        f"{prefix}recovery_s": None
        if None in back
        else max((b or 0.0 for b in back), default=None),
    }
