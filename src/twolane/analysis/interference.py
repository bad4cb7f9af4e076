"""What one long prompt did to the streams beside it: phases of a shot, and each victim's loss.

Rules of this file: pure functions of the requests of one interference cell. The null shot, in
which the aggressor was replaced by a sleep, is measured exactly as the others: whatever it
shows was added by the client or the machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from twolane.analysis.measures import (
    Gap,
    Stalls,
    Window,
    event_times_ns,
    gaps,
    median,
    seconds_of,
    stall_threshold_ns,
    stalls,
    token_counts,
    tokens_within,
)
from twolane.clock import MS, NS
from twolane.records import Request

RECOVERED_SHARE: Final = 0.9
"""A stream has recovered when it is within 10 % of its quiet rate."""

RECOVERY_WINDOW_NS: Final = NS
RECOVERY_TOKENS: Final = 20
"""The rate after a moment is taken over 1 s, or over the time of 20 quiet tokens if that is
longer: with fewer tokens, counting whole ones is coarser than the 10 % asked for."""


@dataclass(frozen=True, slots=True)
class Phases:
    """When one shot's phases began: quiet (every victim streams), hit (the aggressor's t_send),
    recovery (its t_1, or its end if it never answered), and when watching ended."""

    quiet_ns: int
    hit_ns: int
    recovery_ns: int
    end_ns: int

    @property
    def hit(self) -> Window:
        return (self.hit_ns, self.recovery_ns)

    @property
    def quiet(self) -> Window:
        return (self.quiet_ns, self.hit_ns)


@dataclass(frozen=True, slots=True)
class Victim:
    """What one shot did to one stream; the null shot (`null`) bounds what the client adds.

    `recovery_s` is None if the stream did not come back while it was watched.
    """

    request: Request
    null: bool
    phases: Phases
    quiet_rate_tok_s: float
    quiet_gap_ms: float | None
    worst_gap_ms: float
    after_worst_gap_ms: float  # of the gaps that began after the hit
    stalls: Stalls
    tokens_lost: float
    recovery_s: float | None


def phases(shot: Sequence[Request]) -> Phases | None:
    """The phases of one shot, from its victims and its aggressor (or null) request.

    None if a victim never streamed or nothing was fired.
    """
    victims = [r for r in shot if r.role == "victim"]
    fired = [r for r in shot if r.role in ("aggressor", "null")]
    starts = [r.first_ns for r in victims if r.first_ns is not None]
    if not fired or not victims or len(starts) < len(victims):
        return None
    first = fired[0].first_ns or fired[0].end_ns or fired[0].send_ns
    end = max(r.end_ns or r.last_ns or 0 for r in victims)
    return Phases(max(starts), fired[0].send_ns, first, end)


def victims(requests: Iterable[Request]) -> list[Victim]:
    """Every victim of every shot of one interference cell, in the order of shots.

    The null shot's `tokens_lost` are those of a time as long as the hits (their median): its
    sleep was asked for before anybody knew how long the aggressor would take.
    """
    shots: dict[int, list[Request]] = {}
    for request in requests:
        shots.setdefault(request.shot, []).append(request)
    found: list[Victim] = []
    for _, shot in sorted(shots.items()):
        when = phases(shot)
        if when is not None and when.quiet_ns < when.hit_ns:
            null = any(r.role == "null" for r in shot)
            found += [_victim(r, null, when) for r in shot if r.role == "victim"]
    hit_s = median(seconds_of(v.phases.hit) for v in found if not v.null)
    return found if hit_s is None else [_as_long(v, hit_s) if v.null else v for v in found]


def stalled_readers(found: Iterable[Victim]) -> tuple[int, int] | None:
    """How many readers stalled of how many, in the median shot; None where no shot was fired."""
    shots: dict[int, list[bool]] = {}
    for one in found:
        if not one.null:
            shots.setdefault(one.request.shot, []).append(one.stalls.count > 0)
    if not shots:
        return None
    middle = median(float(sum(some)) for some in shots.values())
    return round(middle or 0.0), max(map(len, shots.values()))


def _as_long(null: Victim, hit_s: float) -> Victim:
    slept_s = seconds_of(null.phases.hit)
    return replace(null, tokens_lost=null.tokens_lost * hit_s / slept_s) if slept_s else null


def _victim(request: Request, null: bool, when: Phases) -> Victim:
    quiet = [gap for gap in gaps(request, when.quiet) if gap.inside(when.quiet)]
    hit = [gap for gap in _watched_gaps(request) if gap.overlaps(when.hit)]
    rate = tokens_within(request, when.quiet) / seconds_of(when.quiet)
    quiet_gap = median(gap.length_ns for gap in quiet)
    return Victim(
        request=request,
        null=null,
        phases=when,
        quiet_rate_tok_s=rate,
        quiet_gap_ms=None if quiet_gap is None else quiet_gap / MS,
        worst_gap_ms=max((gap.length_ns for gap in hit), default=0) / MS,
        after_worst_gap_ms=max(_lengths_after(request, when.recovery_ns), default=0) / MS,
        stalls=stalls(hit, stall_threshold_ns(quiet)),
        tokens_lost=rate * seconds_of(when.hit) - tokens_within(request, when.hit),
        recovery_s=recovery_s(request, rate, when),
    )


def _lengths_after(request: Request, moment_ns: int) -> list[int]:
    return [gap.length_ns for gap in gaps(request) if gap.start_ns >= moment_ns]


def _watched_gaps(request: Request) -> list[Gap]:
    """A stream's gaps and, as a lower bound, the one that was open when watching ended."""
    closed = gaps(request)
    if request.last_ns is None or request.end_ns is None:
        return closed
    return [*closed, Gap(request.last_ns, request.end_ns)]


def recovery_s(request: Request, quiet_rate_tok_s: float, when: Phases) -> float | None:
    """Seconds from the aggressor's t_1 until the stream is within 10 % of its quiet rate.

    The first moment, t_1 itself or an event after it, from which on the rate over
    RECOVERY_WINDOW_NS holds; None if there is none while the stream was watched.
    """
    if quiet_rate_tok_s <= 0:
        return None
    length = max(RECOVERY_WINDOW_NS, round(RECOVERY_TOKENS / quiet_rate_tok_s * NS))
    needed = RECOVERED_SHARE * quiet_rate_tok_s * length / NS
    times = event_times_ns(request)
    received = list(accumulate(token_counts(request), initial=0))
    for moment in [when.recovery_ns, *times[bisect_right(times, when.recovery_ns) :]]:
        if moment + length > when.end_ns:
            return None
        begin, end = bisect_right(times, moment), bisect_right(times, moment + length)
        if received[end] - received[begin] >= needed:
            return (moment - when.recovery_ns) / NS
    return None
