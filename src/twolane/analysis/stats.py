"""One cell's requests in, its values by metric name out.

Rules of this file: every definition lives in `measures` or `interference`, and is offered again
here under the same name; this file only chooses which requests a value is taken over. Names end
in their unit; None means that it cannot be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twolane.analysis.interference import (
    Phases,
    Victim,
    phases,
    recovery_s,
    stalled_readers,
    victims,
)
from twolane.analysis.measures import (
    PERCENTILE_FLOORS,
    Gap,
    Stalls,
    Window,
    cached_share,
    decode_tok_s,
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
from twolane.analysis.turns import cached_share as cached_by_prefill
from twolane.clock import MS
from twolane.records import (
    AnyCell,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    Request,
    TraceCell,
)

__all__ = [
    "PERCENTILE_FLOORS",
    "Gap",
    "Phases",
    "Stalls",
    "Values",
    "Victim",
    "Window",
    "cached_share",
    "decode_tok_s",
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
    "stalled_readers",
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
    match cell:
        case GridCell():
            mine = _latencies(measured) | _load(requests, window_ns, users=cell.users)
        case FreshCell():
            mine = _latencies(measured) | _single(measured)
        case RampCell():
            mine = _single(measured) | _turns(measured)
        case MixCell():
            mine = _mix(cell, measured) | _load(requests, window_ns)
        case TraceCell():
            mine = _latencies(measured) | _load(requests, window_ns) | _lateness(measured)
        case NeedleCell():
            mine = _latencies(measured) | {"needles_missed": _missed(measured)}
    return _counts(measured) | mine


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


def _load(requests: Sequence[Request], window: Window | None, users: int | None = None) -> Values:
    known = window is not None and window[1] > window[0]
    asked: Values = {} if users is None else {"users": float(users)}
    return asked | {
        "window_s": seconds_of(window) if window and known else None,
        "throughput_tok_s": throughput_tok_s(requests, window) if window else None,
        "inflight": inflight(requests, window) if window else None,
        "little_inflight": little_inflight(requests, window) if window else None,
    }


def _single(requests: Sequence[Request]) -> Values:
    """Of requests that are looked at one by one: a failed one waits for ever and has no rate."""
    return {
        "ttft_ms": median(_ttfts_ms(requests)),
        "decode_tok_s": median(_rates(requests)),
        "worst_gap_ms": max((g / MS for r in requests if (g := worst_gap_ns(r))), default=None),
        "needles_missed": _missed(requests),
    }


def _turns(turns: Sequence[Request]) -> Values:
    """`u<user>_t<turn>_*` for every turn that was said, and the last turns' as `last_*`."""
    values: Values = {"turns": float(sum(r.error is None for r in turns))}
    for turn in sorted(turns, key=lambda r: (r.user, r.index)):
        name = f"u{turn.user}_t{turn.index + 1:02}"
        values |= {
            f"{name}_prompt_tokens": turn.prompt_tokens,
            f"{name}_ttft_ms": median(_ttfts_ms([turn])),
            f"{name}_decode_tok_s": decode_tok_s(turn),
            f"{name}_cached_share": cached_by_prefill(turn),
            f"{name}_needle_missed": _missed([turn]),
        }
    last = max((turn.index for turn in turns), default=0)
    latest = [turn for turn in turns if turn.index == last]
    return values | {
        "last_ttft_ms": median(_ttfts_ms(latest)),
        "last_decode_tok_s": median(_rates(latest)),
    }


def _mix(cell: MixCell, requests: Sequence[Request]) -> Values:
    """Latencies are the short requests'; `long_*` the others'."""
    short = [r for r in requests if r.role == "short"]
    long = [r for r in requests if r.role == "long"]
    return {
        **_latencies(short),
        **_lateness(requests),
        "worst_gap_ms": max((g / MS for r in short if (g := worst_gap_ns(r))), default=None),
        "long_share": len(long) / len(requests) if requests else None,
        "long_ttft_p50_ms": percentile(_ttfts_ms(long), 50),
        "asked_rate": cell.rate,
    }


def _lateness(requests: Sequence[Request]) -> Values:
    """How long after it fell due a request left."""
    return {"sent_late_p50_ms": percentile([(r.send_ns - r.due_ns) / MS for r in requests], 50)}


def _ttfts_ms(requests: Iterable[Request]) -> list[float]:
    ttfts = [float("inf") if r.error is not None else ttft_ns(r) for r in requests]
    return [t / MS for t in ttfts if t is not None]


def _rates(requests: Iterable[Request]) -> list[float]:
    return [rate for r in requests if (rate := decode_tok_s(r)) is not None]


def _missed(requests: Iterable[Request]) -> float | None:
    asked = [r.needle for r in requests if r.needle is not None]
    return float(sum(answer != "ok" for answer in asked)) if asked else None


def _interference(requests: Sequence[Request]) -> Values:
    """Worst over the victims of the real shots, and of the null shot as `null_*`."""
    seen = victims(requests)
    hit = [victim for victim in seen if not victim.null]
    null = [victim for victim in seen if victim.null]
    fired = [r for r in requests if r.role == "aggressor"]
    aggressor = percentile(_ttfts_ms(fired), 50)
    return {
        **_counts([r for r in requests if r.role != "null"]),
        "victims": float(len(hit)),
        "aggressor_ttft_ms": aggressor,
        "hit_s": median(seconds_of(v.phases.hit) for v in hit),
        **_quiet(hit, ""),
        **_worst(hit, ""),
        **_quiet(null, "null_"),
        **_worst(null, "null_"),
    }


def _quiet(over: Sequence[Victim], prefix: str) -> Values:
    """How the streams ran before anything was sent beside them."""
    return {
        f"{prefix}quiet_gap_ms": median(v.quiet_gap_ms for v in over if v.quiet_gap_ms is not None),
        f"{prefix}quiet_rate_tok_s": median(v.quiet_rate_tok_s for v in over),
    }


def _worst(shot: Iterable[Victim], prefix: str) -> Values:
    """`recovery_s` is None if any of the streams did not come back while it was watched."""
    over = list(shot)
    back = [v.recovery_s for v in over]
    return {
        f"{prefix}worst_gap_ms": max((v.worst_gap_ms for v in over), default=None),
        f"{prefix}after_worst_gap_ms": max((v.after_worst_gap_ms for v in over), default=None),
        f"{prefix}stalled_s": max((v.stalls.seconds for v in over), default=None),
        f"{prefix}stalls": float(sum(v.stalls.count for v in over)) if over else None,
        f"{prefix}tokens_lost": max((v.tokens_lost for v in over), default=None),
        f"{prefix}recovery_s": None
        if None in back
        else max((b or 0.0 for b in back), default=None),
    }
