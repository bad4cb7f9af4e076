"""Reason codes: why a cell's point enters no verdict. Never silent, never a guess.

Rules of this file: pure; a code is given on evidence only. Where a value is not there (an
engine without that counter, a server without metrics) its rule is not applied, and where a rule
is applied its value and its limit are in the code. Definitions are those of `analysis.measures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, pvariance, stdev
from typing import Final

from twolane.analysis.measures import (
    STALL_FLOOR_NS,
    Window,
    e2e_ns,
    inflight,
    lies_within,
    little_inflight,
    median,
    percentile,
    throughput_tok_s,
)
from twolane.clock import MS, NS
from twolane.gates import transfers
from twolane.gates.transfers import Counters, EngineRole, Values
from twolane.records import (
    AnyCell,
    Code,
    GridCell,
    MixCell,
    NeedleResult,
    Request,
    TraceCell,
)

INFLIGHT_SHARE: Final = 0.95
FEWEST_SAMPLES: Final = 10
"""Samples of the engines' gauges, one a second, from which their mean is judged."""

LITTLE_TOLERANCE: Final = 0.05
UNSTEADY_TOLERANCE: Final = 0.15
UNSTEADY_MIN_E2E: Final = 10
"""Fewest median request times in a window that is judged: five in each half, so that a whole
request more or less in one of them is within the tolerance."""

FOREIGN_SHARE: Final = 0.1
"""Others' share of the host's CPU time. An idle desktop and the kernel's own work stay under 3 %;
at 10 %, on two cores, an engine pinned to one of them may have lost a fifth of it."""

SMALLEST_EFFECT_MS: Final = STALL_FLOOR_NS / MS
"""The smallest stall that is claimed, unless the caller claims less."""

DEFAULT_BLOCK: Final = 16
"""vLLM's block size, where the engine did not tell its own."""

FIXED_LENGTH: Final = ("grid", "aggressor", "fresh", "turn", "short", "long", "trace")
"""Roles whose answers must be as long as asked: their end-of-text is ignored."""

PREEMPTIONS: Final = "vllm:num_preemptions_total"


def judge(  # noqa: PLR0917 - the six are the evidence, in the order in which it arises
    cell: AnyCell,
    requests: Sequence[Request],
    window_ns: Window | None,
    before: Mapping[str, Values],
    after: Mapping[str, Values],
    roles: Mapping[str, EngineRole],
    *,
    needle: NeedleResult | None = None,
    block_size: int = DEFAULT_BLOCK,
    expected_cached: float = 0.0,
    problem: str | None = None,
    lag_p99_ms: float | None = None,
    resolution_ms: float | None = None,
    engines_held: Sequence[float] = (),
    smallest_effect_ms: float = SMALLEST_EFFECT_MS,
    foreign_share: float | None = None,
    lost_share: float | None = None,
) -> list[Code]:
    """Every code that the cell earned, at most one of each.

    `before` and `after` are the engines' counters around the cell, by engine name. `needle` is
    the gate's result where there was one; `expected_cached` the share of prompt tokens that the
    generator expects to be cached; `problem` why the driver ended the cell early;
    `resolution_ms` the smallest stall that the client could resolve when it was calibrated;
    `lost_share` is what others' work cost an engine at most, which is told with `foreign_share`;
    `engines_held` how many requests the engines held together, at moments of the window.
    """
    counters = Counters(before, after, roles)
    found = [
        _needle(needle) or _missed(requests),
        _failed(requests, problem),
        transfers.cached(cell, requests, counters, expected_cached, block_size),
        transfers.degenerate(requests, counters, block_size),
        _length(requests),
        _preempt(counters),
        _client(lag_p99_ms, smallest_effect_ms) or _coarse(resolution_ms, smallest_effect_ms),
        _busy(foreign_share, lost_share),
    ]
    if isinstance(cell, MixCell) and window_ns is not None:
        found.append(_unsteady(requests, window_ns, _chance(requests)))
    if isinstance(cell, MixCell | TraceCell):
        found.append(_late(requests, smallest_effect_ms))
    if isinstance(cell, GridCell) and window_ns is not None:
        found += [
            _inflight(cell, requests, window_ns) or _held(cell, engines_held),
            _little(cell, requests, window_ns),
            _unsteady(requests, window_ns),
        ]
    return [code for code in found if code is not None]


def judge_figures(
    users: int, output: int, *, throughput_tok_s: float, ttft_ms: float, tpot_ms: float
) -> Code | None:
    """LITTLE of published figures alone: do they mean the `users` they are said to be of?

    Every answer had `output` tokens. In-flight by Little's law is requests a second times the
    time a request takes, TTFT + (output - 1) x TPOT; medians stand in for means.
    """
    e2e_s = (ttft_ms + (output - 1) * tpot_ms) * MS / NS
    by_law = throughput_tok_s / output * e2e_s
    if abs(by_law / users - 1) <= LITTLE_TOLERANCE:
        return None
    return Code(
        code="LITTLE",
        why=f"throughput x mean E2E means {by_law:.1f} in flight, {users} were said to be",
        value=by_law,
        limit=float(users),
    )


# ------------------------------------------------------------------------------ in every cell


def _needle(result: NeedleResult | None) -> Code | None:
    if result is None or result.passed:
        return None
    missed = [answer for answer in result.answers if not answer.ok]
    if not missed:
        return Code(code="NEEDLE", why="the gate has no answers")
    first = missed[0]
    return Code(
        code="NEEDLE",
        why=f"{len(missed)} of {len(result.answers)} needles missed, first at {first.length} "
        f"tokens, depth {first.depth:g}: {first.reason or 'wrong answer'}",
        value=float(len(missed)),
        limit=0.0,
    )


def _missed(requests: Sequence[Request]) -> Code | None:
    """Answers of this very cell that were to begin with a planted fact and did not."""
    asked = [r for r in requests if r.needle is not None and r.error is None]
    missed = [r for r in asked if r.needle != "ok"]
    if not missed:
        return None
    first = missed[0]
    return Code(
        code="NEEDLE",
        why=f"{len(missed)} of {len(asked)} needles missed, first in {first.id} of "
        f"{first.prompt_asked} tokens: {first.needle}, got {(first.text or '')[:20]!r}",
        value=float(len(missed)),
        limit=0.0,
    )


def _failed(requests: Sequence[Request], problem: str | None) -> Code | None:
    errors = [r.error for r in requests if r.error is not None]
    if not errors and problem is None:
        return None
    said = [problem] if problem is not None else []
    if errors:
        said.append(f"{len(errors)} of {len(requests)} requests failed, first: {errors[0]}")
    return Code(code="FAILED", why="; ".join(said), value=float(len(errors)), limit=0.0)


def _length(requests: Sequence[Request]) -> Code | None:
    """Fixed answers must be as long as asked; victims must have been ended by the client."""
    wrong = [r for r in requests if r.error is None and _wrong_length(r)]
    if not wrong:
        return None
    first = wrong[0]
    return Code(
        code="LENGTH",
        why=f"{len(wrong)} answers differ from the length asked, first {first.id}: "
        f"{first.output_tokens} of {first.output_asked} tokens, {first.finish_reason}",
        value=float(first.output_tokens),
        limit=float(first.output_asked),
    )


def _wrong_length(request: Request) -> bool:
    if request.role == "victim":
        return request.finish_reason != "stopped_by_client"
    return request.role in FIXED_LENGTH and request.output_tokens != request.output_asked


def _preempt(counters: Counters) -> Code | None:
    count = counters.total(PREEMPTIONS)
    if not count:
        return None
    return Code(code="PREEMPT", why=f"{count:g} preemptions", value=count, limit=0.0)


def _busy(foreign_share: float | None, lost_share: float | None) -> Code | None:
    if foreign_share is None or foreign_share <= FOREIGN_SHARE:
        return None
    cost = (
        "" if lost_share is None else f"; it cost an engine at most {lost_share:.0%} of its cores"
    )
    return Code(
        code="BUSY",
        why=f"other programs had {foreign_share:.0%} of this host's CPU time during the cell{cost}",
        value=foreign_share,
        limit=FOREIGN_SHARE,
    )


def _client(lag_p99_ms: float | None, smallest_effect_ms: float) -> Code | None:
    if lag_p99_ms is None or lag_p99_ms <= smallest_effect_ms:
        return None
    return Code(
        code="CLIENT",
        why=f"the load generator itself was {lag_p99_ms:.0f} ms late (p99); "
        f"effects of {smallest_effect_ms:.0f} ms are claimed",
        value=lag_p99_ms,
        limit=smallest_effect_ms,
    )


def _coarse(resolution_ms: float | None, smallest_effect_ms: float) -> Code | None:
    if resolution_ms is None or resolution_ms <= smallest_effect_ms:
        return None
    return Code(
        code="CLIENT",
        why=f"the load generator alone made stalls of {resolution_ms:.0f} ms when it was "
        f"calibrated; effects of {smallest_effect_ms:.0f} ms are claimed",
        value=resolution_ms,
        limit=smallest_effect_ms,
    )


# ------------------------------------------------------------------------------- in the window


def _inflight(cell: GridCell, requests: Sequence[Request], window: Window) -> Code | None:
    mean = inflight(requests, window)
    limit = INFLIGHT_SHARE * cell.users
    if mean is None or mean >= limit:
        return None
    why = f"{mean:.1f} requests in flight on average, {cell.users} were asked for"
    return Code(code="INFLIGHT", why=why, value=mean, limit=limit)


def _held(cell: GridCell, held: Sequence[float]) -> Code | None:
    """What is in flight for the client may wait in a router, unknown to the engines.

    Coded if the mean is below the limit by more than three of its standard errors, since between
    two requests of a user no engine holds any.
    """
    if len(held) < FEWEST_SAMPLES:
        return None
    mean, limit = fmean(held), INFLIGHT_SHARE * cell.users
    if mean + 3 * stdev(held) / sqrt(len(held)) >= limit:
        return None
    why = f"the engines held {mean:.1f} requests on average, {cell.users} were asked for"
    return Code(code="INFLIGHT", why=why, value=mean, limit=limit)


def _little(cell: GridCell, requests: Sequence[Request], window: Window) -> Code | None:
    """Not judged before as many requests lie wholly in the window as there are users."""
    whole = sum(lies_within(r, window) for r in requests)
    mean, by_law = inflight(requests, window), little_inflight(requests, window)
    if whole < cell.users or not mean or by_law is None:
        return None
    if abs(by_law / mean - 1) <= LITTLE_TOLERANCE:
        return None
    return Code(
        code="LITTLE",
        why=f"throughput x mean E2E means {by_law:.1f} in flight, {mean:.1f} were seen",
        value=by_law,
        limit=mean,
    )


def _late(requests: Sequence[Request], smallest_effect_ms: float) -> Code | None:
    """An open loop is one only if requests leave when they fall due."""
    late = percentile([(r.send_ns - r.due_ns) / MS for r in requests if r.error is None], 50)
    if late is None or late <= smallest_effect_ms:
        return None
    return Code(
        code="CLIENT",
        why=f"requests left {late:.0f} ms after they fell due (median)",
        value=late,
        limit=smallest_effect_ms,
    )


def _chance(requests: Sequence[Request]) -> float:
    """Three standard deviations of what two halves of a Poisson process differ by, relative: of
    its in-flight, a sum of times that themselves vary; its count alone differs by less."""
    counted = [r for r in requests if r.role != "warmup"]
    times = [e2e_ns(r) or 0 for r in counted if r.last_ns is not None]
    varied = pvariance(times) / fmean(times) ** 2 if times else 0.0
    return 3 * sqrt(4 * (1 + varied) / max(1, len(counted)))


def _unsteady(requests: Sequence[Request], window: Window, chance: float = 0.0) -> Code | None:
    """Not judged in a short window: its halves differ by the waves of a few prefills."""
    usual = median([e2e_ns(r) or 0 for r in requests if r.last_ns is not None])
    if usual is None or window[1] - window[0] < UNSTEADY_MIN_E2E * usual:
        return None
    middle = sum(window) // 2
    halves = [(window[0], middle), (middle, window[1])]
    for what, measure in (("throughput", throughput_tok_s), ("in-flight", inflight)):
        first, second = (measure(requests, half) or 0.0 for half in halves)
        if first and abs(second / first - 1) > max(UNSTEADY_TOLERANCE, chance):
            return Code(
                code="UNSTEADY",
                why=f"{what} went from {first:.1f} in the window's first half to {second:.1f}",
                value=second / first - 1,
                limit=max(UNSTEADY_TOLERANCE, chance),
            )
    return None
