"""Which engine gets the next request.

Rules of this file: pure arithmetic on what the caller has counted, no clock, no sockets, no
randomness, so that the proxy and the simulator decide alike and a decision can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What one engine has in hand.

    `prompt_bytes` are those of requests whose first token is still to come: the prefill work that
    a newcomer waits behind. `in_flight` counts requests until their answer ends. Both are divided
    by `weight`, so that an engine of weight 2 gets twice the work. An engine that is not `usable`
    (down, ejected, draining) gets none.
    """

    prompt_bytes: int = 0
    in_flight: int = 0
    weight: float = 1.0
    usable: bool = True


def choose(
    loads: Sequence[EngineLoad], turn: int, avoid: frozenset[int] = frozenset()
) -> int | None:
    """Index of the engine for the next request, None where none is usable.

    Least prompt bytes outstanding, then least in flight, then round robin: of equals the first
    one at or after position `turn` modulo the number of engines. Engines in `avoid` (already
    tried for this request) are left out.
    """
    candidates = [i for i, load in enumerate(loads) if load.usable and i not in avoid]
    if not candidates:
        return None
    return min(candidates, key=lambda i: (*_burden(loads[i]), (i - turn) % len(loads)))


def urgency(tokens: float, waited_s: float, ageing_tokens_s: float) -> float:
    """Where a waiting prompt stands in a queue: the smallest goes first.

    The shortest prompt first, but each second of waiting takes `ageing_tokens_s` tokens off: a
    prompt of T tokens goes before every newcomer at the latest after T / ageing_tokens_s seconds.
    """
    return tokens - waited_s * ageing_tokens_s


def _burden(load: EngineLoad) -> tuple[float, float]:
    return load.prompt_bytes / load.weight, load.in_flight / load.weight
