"""Every stall of a cell's readers, with what the engines did meanwhile.

Rules of this file: a stall is `measures.stall_threshold_ns` of the stream's own quiet phase, as
everywhere. What overlaps it is told, with its share of the stall; that it is the cause is left to
the reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from twolane.analysis.interference import Phases, Victim, victims
from twolane.analysis.iterations import Placed
from twolane.analysis.measures import Gap, gaps, stall_threshold_ns
from twolane.analysis.work import Leg, Span, Work
from twolane.records import Request

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
    steps: tuple[Placed, ...] = ()  # the engine's own, where its log tells them

    def share(self, part: Leg | Span | Placed) -> float:
        """Of the stall, what `part` covers, 0 ... 1."""
        covered = min(part.end_ns, self.gap.end_ns) - max(part.start_ns, self.gap.start_ns)
        return max(0.0, covered / self.gap.length_ns)


def stalls(requests: Sequence[Request], done: Work) -> list[Stall]:
    """Every stall of an interference cell's readers, the longest first."""
    found = [stall for victim in victims(requests) for stall in _of(victim, done)]
    return sorted(found, key=lambda one: (-one.gap.length_ns, one.gap.start_ns))


def _of(victim: Victim, done: Work) -> Iterator[Stall]:
    every, when = gaps(victim.request), victim.phases
    threshold = stall_threshold_ns([gap for gap in every if gap.inside(when.quiet)])
    engine = done.engine_of(victim.request)
    steps = done.placed(victim.request, engine)
    for gap in every:
        if gap.length_ns > threshold and gap.end_ns > when.quiet_ns:
            window = (gap.start_ns, gap.end_ns)
            yield Stall(
                request=victim.request.id,
                reader=victim.request.index + 1,
                shot=victim.request.shot,
                null=victim.null,
                gap=gap,
                threshold_ns=threshold,
                phase=_phase(gap, when),
                since_send_ns=gap.start_ns - when.hit_ns,
                engine=engine,
                legs=done.beside(engine, window, without=victim.request.id),
                spans=done.during(engine, window),
                steps=tuple(s for s in steps if Gap(s.start_ns, s.end_ns).overlaps(window)),
            )


def _phase(gap: Gap, when: Phases) -> Phase:
    middle = (gap.start_ns + gap.end_ns) // 2
    if middle < when.hit_ns:
        return "quiet"
    return "hit" if middle < when.recovery_ns else "recovery"
