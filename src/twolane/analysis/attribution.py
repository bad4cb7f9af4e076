"""The first token's ledger: where the time to one request's first token went.

Rules of this file: the parts and what is unexplained sum to the client's TTFT, exactly, in
nanoseconds. A stamp that is missing makes its parts unknown, and their time stays unexplained;
nothing is estimated. The engines' own times are durations of their clocks, so they are never
subtracted from a stamp, only from a leg; where they exceed their leg the rest is negative and
is reported so (`Attribution.negative`), since that is a finding about an engine's account.

What the parts mean is the table of docs/how-we-measure.md. `D first step` counts from
*scheduled*, and D's queue holds the KV transfer. `unexplained` is, when every stamp is there, the
way back: from the first bytes of the answering engine at the proxy to the token in the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from twolane.clock import MS
from twolane.records import EngineTimes, Ledger, Request


class Part(StrEnum):
    """Where time can go, in the order in which it passes."""

    CLIENT_TO_PROXY = "client to proxy"
    PROXY_WAIT = "proxy wait"
    P_QUEUE = "P queue"
    P_COMPUTE = "P compute"
    P_REST = "P rest"
    HANDOFF = "handoff"
    D_QUEUE = "D queue + KV transfer"
    D_FIRST_STEP = "D first step"
    D_REST = "D rest"
    QUEUE = "engine queue"
    COMPUTE = "engine compute"
    REST = "engine rest"
    UNEXPLAINED = "unexplained"


MEANING: Mapping[Part, str] = {
    Part.CLIENT_TO_PROXY: "received by the proxy minus sent by the client",
    Part.PROXY_WAIT: "sent on to the first engine minus received",
    Part.P_QUEUE: "the prefill engine's queue_time_ms",
    Part.P_COMPUTE: "the prefill engine's time_to_first_token_ms, counted from scheduled",
    Part.P_REST: "the prefill leg minus the two above: tokenising, HTTP, the response",
    Part.HANDOFF: "sent on to the decode engine minus the prefill engine's response",
    Part.D_QUEUE: "the decode engine's queue_time_ms, which holds the KV transfer",
    Part.D_FIRST_STEP: "the decode engine's time_to_first_token_ms, counted from scheduled",
    Part.D_REST: "first bytes minus sent on to the decode engine minus the two above",
    Part.QUEUE: "the engine's queue_time_ms",
    Part.COMPUTE: "the engine's time_to_first_token_ms, counted from scheduled",
    Part.REST: "first bytes minus sent on to the engine minus the two above",
    Part.UNEXPLAINED: "the client's TTFT minus all of the above",
}

SPLIT = (Part.P_QUEUE, Part.P_COMPUTE, Part.P_REST)
DECODE = (Part.D_QUEUE, Part.D_FIRST_STEP, Part.D_REST)
DIRECT = (Part.QUEUE, Part.COMPUTE, Part.REST)
Leg = tuple[Part, Part, Part]

# More than this share of the TTFT unexplained, in the median, is a finding.
FINDING_SHARE = 0.05


@dataclass(frozen=True)
class Attribution:
    """One request's ledger: `parts` (without `unexplained`) plus `unexplained_ns` = `ttft_ns`."""

    request: str
    ttft_ns: int
    parts: Mapping[Part, int]

    @property
    def unexplained_ns(self) -> int:
        return self.ttft_ns - sum(self.parts.values())

    @property
    def unexplained_share(self) -> float:
        """Of the TTFT, in 0 ... 1; negative where the parts exceed it."""
        return self.unexplained_ns / self.ttft_ns if self.ttft_ns else 0.0

    @property
    def negative(self) -> tuple[Part, ...]:
        """Parts below zero: an account that does not fit into the leg it belongs to."""
        below = tuple(part for part, ns in self.parts.items() if ns < 0)
        return (*below, Part.UNEXPLAINED) if self.unexplained_ns < 0 else below

    def whole(self) -> dict[Part, int]:
        """All parts with what is unexplained, in order; they sum to `ttft_ns`."""
        return {**self.parts, Part.UNEXPLAINED: self.unexplained_ns}


def parts(request: Request, *, boot: str | None = None) -> Attribution | None:
    """The ledger of `request`, or None if it never had a first token.

    `boot` is the client's `clock.boot_id()`; where it is given and differs from the proxy's, the
    two stamps are not subtracted and the way to the proxy stays unexplained.
    """
    if request.first_ns is None:
        return None
    found: dict[Part, int] = {}
    ledger = request.ledger
    if ledger is None:
        _engine_times(found, DIRECT, request.engine_times)
    else:
        if boot is None or boot == ledger.boot:
            found[Part.CLIENT_TO_PROXY] = ledger.received_ns - request.send_ns
        found |= seen_by_proxy(ledger, request.engine_times)
    return Attribution(request.id, request.first_ns - request.send_ns, found)


def seen_by_proxy(ledger: Ledger, told: EngineTimes | None = None) -> dict[Part, int]:
    """The parts between the proxy's receiving and the answering engine's first bytes, ns. `told`:
    the answering engine's times where the proxy has not seen them."""
    found: dict[Part, int] = {}
    first_dispatch = ledger.p_dispatch_ns if ledger.path == "split" else ledger.d_dispatch_ns
    _between(found, Part.PROXY_WAIT, ledger.received_ns, first_dispatch)
    if ledger.path == "split":
        _leg(found, SPLIT, ledger.p_dispatch_ns, ledger.p_response_ns, ledger.p_times)
        _between(found, Part.HANDOFF, ledger.p_response_ns, ledger.d_dispatch_ns)
    leg = DECODE if ledger.path == "split" else DIRECT
    _leg(found, leg, ledger.d_dispatch_ns, ledger.d_first_ns, ledger.d_times or told)
    return found


def _between(found: dict[Part, int], part: Part, start: int | None, end: int | None) -> None:
    if start is not None and end is not None:
        found[part] = end - start


def _leg(
    found: dict[Part, int],
    leg: Leg,
    start: int | None,
    end: int | None,
    times: EngineTimes | None,
) -> None:
    """A leg's queue and compute by the engine's account, its rest where all three are known."""
    if start is None or end is None:
        return
    queue, compute, rest = leg
    _engine_times(found, leg, times)
    if queue in found and compute in found:
        found[rest] = end - start - found[queue] - found[compute]


def _engine_times(found: dict[Part, int], leg: Leg, times: EngineTimes | None) -> None:
    queue, compute, _ = leg
    if times is not None and times.queue_ms is not None:
        found[queue] = round(times.queue_ms * MS)
    if times is not None and times.first_token_ms is not None:
        found[compute] = round(times.first_token_ms * MS)


@dataclass(frozen=True)
class Population:
    """The ledgers of many requests, summed up. Medians of parts need not sum to the median TTFT.

    `typical` is the one request whose TTFT is the median (nearest rank): its parts do sum.
    """

    count: int
    medians_ns: Mapping[Part, int]
    ttft_ns: int
    unexplained_share: float
    negative: int
    typical: Attribution

    @property
    def finding(self) -> bool:
        """Whether more of the first token is unexplained, in the median, than may be."""
        return abs(self.unexplained_share) > FINDING_SHARE


def population(ledgers: Iterable[Attribution]) -> Population | None:
    """Medians over `ledgers`, or None if there are none."""
    ranked = sorted(ledgers, key=lambda one: (one.ttft_ns, one.request))
    if not ranked:
        return None
    typical = ranked[(len(ranked) - 1) // 2]
    wholes = [one.whole() for one in ranked]
    known = [part for part in Part if any(part in whole for whole in wholes)]
    return Population(
        count=len(ranked),
        medians_ns={
            part: round(median(whole[part] for whole in wholes if part in whole)) for part in known
        },
        ttft_ns=typical.ttft_ns,
        unexplained_share=median(one.unexplained_share for one in ranked),
        negative=sum(bool(one.negative) for one in ranked),
        typical=typical,
    )
