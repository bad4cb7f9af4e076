"""The unit of a measure, from its name: names of `stats.summarise` end in it, counts are listed."""

from __future__ import annotations

from typing import Final

_ENDS: Final = {
    "_tok_s": "tokens/s",
    "_ms": "ms",
    "_s": "s",
    "_mb": "MB",
    "_share": "share",
    "_tokens": "tokens",
    "_rate": "requests/s",
    "_missed": "needles",
}
"""Endings of names, the longer before those that they end in; a share is from 0 to 1."""

_COUNTS: Final = {
    "requests": "requests",
    "failed": "requests",
    "inflight": "requests",
    "little_inflight": "requests",
    "tokens_lost": "tokens",
    "null_tokens_lost": "tokens",
    "mtp_tokens_a_step": "tokens",
    "turns": "turns",
    "users": "users",
    "victims": "readers",
    "stalls": "stalls",
    "null_stalls": "stalls",
    "engines_preemptions": "preemptions",
    "nixl_transfers": "transfers",
    "nixl_descriptors": "descriptors",
}


def unit_of(measure: str) -> str:
    """`ms`, `tokens/s`, `share`, what a count counts; empty for a name that nobody has defined."""
    if measure in _COUNTS:
        return _COUNTS[measure]
    if "_share_pos" in measure:  # of drafts, at one position
        return "share"
    return next((unit for end, unit in _ENDS.items() if measure.endswith(end)), "")
