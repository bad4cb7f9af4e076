"""What the engines counted during one cell, as values of that cell.

Rules of this file: differences of two samples of each engine, summed over the engines; None, or
left out, where no engine counts a thing. Names of samples are vLLM's; its counters end in
`_total`, its histograms have a `_sum` and a `_count`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

Samples = Mapping[str, Mapping[str, float]]
"""Values by sample name, by engine."""

SOURCES: Final = {
    "local_compute": "engines_computed_tokens",
    "local_cache_hit": "engines_cached_tokens",
    "external_kv_transfer": "engines_transferred_tokens",
}
MEANS: Final = {
    "request_queue_time_seconds": ("engines_queue_ms", 1e3),
    "request_prefill_time_seconds": ("engines_prefill_ms", 1e3),
    "iteration_tokens_total": ("engines_iteration_tokens", 1.0),
    "nixl_xfer_time_seconds": ("nixl_xfer_ms", 1e3),
    "nixl_post_time_seconds": ("nixl_post_ms", 1e3),
    "nixl_bytes_transferred": ("nixl_transfer_mb", 1e-6),
    "nixl_num_descriptors": ("nixl_descriptors", 1.0),
}
"""Histograms of which a cell shows the mean: its name and factor."""

_POSITION: Final = re.compile(
    r'vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d+)".*\}'
)


def counted(before: Samples, after: Samples) -> dict[str, float | None]:
    """Prompt tokens by source, mean times of a request in the engines, tokens an iteration,
    preemptions, the fullest KV cache at the end, what speculation (MTP) brought, transfers."""
    change = _changes(before, after)
    found: dict[str, float | None] = {
        name: change.get(f'vllm:prompt_tokens_by_source_total{{source="{source}"}}')
        for source, name in SOURCES.items()
    }
    for histogram, (name, factor) in MEANS.items():
        count = change.get(f"vllm:{histogram}_count")
        found[name] = change[f"vllm:{histogram}_sum"] / count * factor if count else None
    found["nixl_transfers"] = change.get("vllm:nixl_xfer_time_seconds_count")
    found["engines_preemptions"] = change.get("vllm:num_preemptions_total")
    found["engines_kv_use_share"] = _fullest(after.values())
    found |= _speculation(change)
    return {name: value for name, value in found.items() if value is not None}


def _changes(before: Samples, after: Samples) -> dict[str, float]:
    change: dict[str, float] = {}
    for engine, values in after.items():
        if engine in before:
            for name, value in values.items():
                change[name] = change.get(name, 0.0) + value - before[engine].get(name, 0.0)
    return change


def _fullest(engines: Iterable[Mapping[str, float]]) -> float | None:
    shares = [values.get("vllm:kv_cache_usage_perc") for values in engines]
    return max((share for share in shares if share is not None), default=None)


def _speculation(change: Mapping[str, float]) -> dict[str, float | None]:
    """Tokens a step (the one that is sure, and those accepted), and of the drafted the share
    that was accepted, in all and at each position."""
    drafts = change.get("vllm:spec_decode_num_drafts_total")
    drafted = change.get("vllm:spec_decode_num_draft_tokens_total")
    if not drafts or not drafted:
        return {}
    accepted = change.get("vllm:spec_decode_num_accepted_tokens_total", 0.0)
    found: dict[str, float | None] = {
        "mtp_tokens_a_step": 1 + accepted / drafts,
        "mtp_accepted_share": accepted / drafted,
    }
    for name, count in change.items():
        if at := _POSITION.fullmatch(name):
            found[f"mtp_accepted_share_pos{int(at[1])}"] = count / drafts
    return found
