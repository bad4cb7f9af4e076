"""Every stall of a cell's readers, with what the engines did meanwhile.

Rules of this file: a stall is `measures.stall_threshold_ns` of the stream's own quiet phase, as
everywhere. What overlaps it is told, with its share of the stall; that it is the cause is left to
the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from twolane.analysis.interference import Phases, Victim, victims
from twolane.analysis.measures import Gap, gaps, stall_threshold_ns
from twolane.analysis.work import Leg, Span, engine_of
from twolane.records import EngineMeta, Ledger, Request

Phase = Literal["quiet", "hit", "recovery"]


@dataclass(frozen=True)
class Stall:
    """One stall, its phase by where most of it lies; `engine` is empty where nothing says which.

    `legs` are other requests' legs on that engine that overlap it, `spans` the engine's own.
    """

    request: str
    reader: int
    shot: int
    null: bool
    gap: Gap
    threshold_ns: float
    phase: Phase
    since_send_ns: int
    engine: str
    legs: tuple[Leg, ...] = ()
    spans: tuple[Span, ...] = ()

    def share(self, part: Leg | Span) -> float:
        """Of the stall, what `part` covers, 0 ... 1."""
        covered = min(part.end_ns, self.gap.end_ns) - max(part.start_ns, self.gap.start_ns)
        return max(0.0, covered / self.gap.length_ns)


def stalls(
    requests: Sequence[Request],
    known: Mapping[str, Ledger],
    engines: Sequence[EngineMeta],
    legs: Iterable[Leg] = (),
    spans: Iterable[Span] = (),
) -> list[Stall]:
    """Every stall of an interference cell's readers, the longest first."""
    every_leg, every_span = list(legs), list(spans)
    found = [
        _stall(victim, gap, threshold, engine_of(victim.request, known, engines), every_leg, every_span)
        for victim in victims(requests)
        for threshold in [_threshold_ns(victim)]
        for gap in gaps(victim.request)
        if gap.length_ns > threshold and gap.end_ns > victim.phases.quiet_ns
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.gap.length_ns, one.gap.start_ns))


def _threshold_ns(victim: Victim) -> float:
    quiet = victim.phases.quiet
    return stall_threshold_ns([gap for gap in gaps(victim.request) if gap.inside(quiet)])


def _stall(
    victim: Victim,
    gap: Gap,
    threshold_ns: float,
    engine: str,
    legs: Sequence[Leg],
    spans: Sequence[Span],
) -> Stall:
    request = victim.request
    window = (gap.start_ns, gap.end_ns)
    return Stall(
        request=request.id,
        reader=request.index + 1,
        shot=request.shot,
        null=victim.null,
        gap=gap,
        threshold_ns=threshold_ns,
        phase=_phase(gap, victim.phases),
        since_send_ns=gap.start_ns - victim.phases.hit_ns,
        engine=engine,
        legs=tuple(
            leg for leg in legs
            if leg.engine == engine and leg.request != request.id
            and Gap(leg.start_ns, leg.end_ns).overlaps(window)
        ),
        spans=tuple(
            span for span in spans
            if span.engine == engine and Gap(span.start_ns, span.end_ns).overlaps(window)
        ),
    )  # fmt: skip


def _phase(gap: Gap, when: Phases) -> Phase:
    middle = (gap.start_ns + gap.end_ns) // 2
    if middle < when.hit_ns:
        return "quiet"
    return "hit" if middle < when.recovery_ns else "recovery"
