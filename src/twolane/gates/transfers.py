"""CACHE and DEGENERATE: was as much cached as must have been, and did KV come over the link?

Rules of this file: as in `validity`. What the engines counted comes first; where they count
nothing, the answers' own usage stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from twolane.analysis import turns
from twolane.analysis.measures import cached_share
from twolane.records import AnyCell, Code, RampCell, Request, TraceCell

EngineRole = Literal["both", "prefill", "decode"]
Values = Mapping[str, float]
"""One engine's counters by sample name, as in `records.Sample.values`."""

CACHE_TOLERANCE: Final = 0.01

SOURCES: Final = ("local_compute", "local_cache_hit", "external_kv_transfer")
TRANSFER_FAULTS: Final = {
    "vllm:nixl_num_failed_transfers_total": "failed KV transfers",
    "vllm:nixl_num_failed_notifications_total": "failed KV notifications",
    "vllm:nixl_num_kv_expired_reqs_total": "KV leases that expired before they were read",
    "vllm:nixl_num_notifications_after_expiry_total": "KV read after its lease: wrong answers",
}


@dataclass(frozen=True, slots=True)
class Counters:
    """What each engine counted during a cell: the difference of two samples, by engine."""

    before: Mapping[str, Values]
    after: Mapping[str, Values]
    roles: Mapping[str, EngineRole]

    def total(
        self, name: str, roles: Iterable[EngineRole] = ("both", "prefill", "decode")
    ) -> float | None:
        """Summed over the engines of `roles`; None if none of them has it in both samples."""
        deltas = [
            self.after[engine][name] - self.before[engine].get(name, 0.0)
            for engine, role in self.roles.items()
            if role in roles and engine in self.before and name in self.after.get(engine, {})
        ]
        return sum(deltas) if deltas else None

    def prompt_tokens(self, source: str, roles: Iterable[EngineRole]) -> float | None:
        return self.total(f'vllm:prompt_tokens_by_source_total{{source="{source}"}}', roles)


def cached(
    cell: AnyCell, requests: Sequence[Request], counters: Counters, expected: float, block: int
) -> Code | None:
    """What a trace shares is not known: it also depends on what an engine has room for."""
    if isinstance(cell, TraceCell):
        return None
    if isinstance(cell, RampCell):
        return _turns_cached(requests, block)
    return _cache(requests, counters, expected)


def _cache(requests: Sequence[Request], counters: Counters, expected: float) -> Code | None:
    """By the engines' counters where there are some, else by the answers' own usage.

    In a split the decode engine must not have cached either: it would hide transfers.
    """
    shares = {
        "engines that prefill": _cached_by_engines(counters, ("both", "prefill")),
        "decode engines": _cached_by_engines(counters, ("decode",)),
    }
    if all(share is None for share in shares.values()):
        shares = {"answers' usage": cached_share(requests)}
    for whose, share in shares.items():
        if share is not None and abs(share - expected) > CACHE_TOLERANCE:
            return Code(
                code="CACHE",
                why=f"{share:.1%} of prompt tokens were cached by the {whose}, "
                f"expected {expected:.1%}",
                value=share,
                limit=expected,
            )
    return None


def _turns_cached(requests: Sequence[Request], block: int) -> Code | None:
    """Every turn must have found its history cached, and nothing else."""
    for turn in requests:
        share, expected = turns.cached_share(turn), turns.expected_share(turn, block)
        if share is None or expected is None or abs(share - expected) <= CACHE_TOLERANCE:
            continue
        return Code(
            code="CACHE",
            why=f"{share:.1%} of the prompt of user {turn.user}, turn {turn.index + 1} were "
            f"cached, expected {expected:.1%}",
            value=share,
            limit=expected,
        )
    return None


def _cached_by_engines(counters: Counters, roles: tuple[EngineRole, ...]) -> float | None:
    by_source = [counters.prompt_tokens(source, roles) for source in SOURCES]
    total = sum(tokens or 0.0 for tokens in by_source)
    return (by_source[1] or 0.0) / total if total > 0 else None


def degenerate(requests: Sequence[Request], counters: Counters, block: int) -> Code | None:
    """A split that is none: the decode engine prefills itself, or KV did not arrive."""
    if "decode" not in counters.roles.values():
        return None
    for name, what in TRANSFER_FAULTS.items():
        count = counters.total(name)
        if count:
            return Code(code="DEGENERATE", why=f"{count:g} {what}", value=count, limit=0.0)
    answered = [r for r in requests if r.role != "null" and r.first_ns is not None]
    allowance = float(block * len(answered))
    computed = counters.prompt_tokens("local_compute", ("decode",))
    if computed is not None and computed > allowance:
        return Code(
            code="DEGENERATE",
            why=f"the decode engine computed {computed:g} prompt tokens itself in "
            f"{len(answered)} requests",
            value=computed,
            limit=allowance,
        )
    return _not_transferred(answered, counters, block)


def _not_transferred(answered: Sequence[Request], counters: Counters, block: int) -> Code | None:
    """A turn's history lies on the decode engine already; the rest must have come."""
    moved = counters.prompt_tokens("external_kv_transfer", ("decode",))
    prompt = sum(r.prompt_tokens or r.prompt_asked for r in answered)
    held: float = sum(turns.cacheable_tokens(r, block, decoded_here=True) for r in answered)
    if any(r.role == "trace" for r in answered):  # what its lines share is not known beforehand
        held = counters.prompt_tokens("local_cache_hit", ("decode",)) or 0.0
    needed = float(prompt - held - block * len(answered))
    if moved is None or moved >= needed:
        return None
    return Code(
        code="DEGENERATE",
        why=f"KV of {moved:g} prompt tokens reached the decode engine, {needed:g} were needed",
        value=moved,
        limit=needed,
    )
