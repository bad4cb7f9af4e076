"""What the engines say of themselves: room for KV, and failures that no request shows.

Rules of this file: pure. A handful of samples is picked out of an engine's /metrics line by line,
without parsing the rest; sums over the engines behind one port.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_USAGE = b"vllm:kv_cache_usage_perc"
_CONFIG = b"vllm:cache_config_info"
_COMPUTED = b"vllm:prompt_tokens_by_source_total{"
# Counters that must not grow, by what it means if they do.
_COUNTERS = {
    b"vllm:nixl_num_kv_expired_reqs_total": "kv_expired",
    b"vllm:nixl_num_notifications_after_expiry_total": "late_notification",
    b"vllm:nixl_num_failed_transfers_total": "failed_transfer",
    b"vllm:nixl_num_failed_notifications_total": "failed_notification",
}
ALARMS = (*_COUNTERS.values(), "decode_computes_prompts")
_SMALL_PROMPTS = 2048  # tokens a scrape that D may compute itself: ends of prompts, warm-ups


@dataclass
class Reading:
    """One scrape. Tokens; None where the engine does not say."""

    kv_tokens: int | None = None
    kv_usage: float | None = None
    counters: dict[str, float] = field(default_factory=dict)
    computed: float = 0.0
    transferred: float = 0.0
    given: int = 0  # bytes of prompts that the engine had been given to compute by then, and
    given_before: int = 0  # ... by the scrape before
    caches_prefixes: bool = True


def read(text: bytes) -> Reading:
    """The samples of an exposition that matter here."""
    reading = Reading()
    usages: list[float] = []
    for line in text.splitlines():
        if not line.startswith(b"vllm:"):
            continue
        name = line.partition(b"{")[0].partition(b" ")[0]
        if name == _USAGE:
            usages.append(_value(line))
        elif name == _CONFIG:
            reading.kv_tokens = _room(line)
            reading.caches_prefixes = b'enable_prefix_caching="False"' not in line
        elif name in _COUNTERS:
            known = reading.counters.get(_COUNTERS[name], 0.0)
            reading.counters[_COUNTERS[name]] = known + _value(line)
        elif line.startswith(_COMPUTED):
            _source(reading, line)
    reading.kv_usage = max(usages, default=None)
    return reading


def _value(line: bytes) -> float:
    try:
        return float(line.rpartition(b" ")[2])
    except ValueError:
        return 0.0


def _room(line: bytes) -> int | None:
    """Tokens that fit: vLLM tells them, or blocks and their size."""
    tokens = _label(line, b"kv_cache_size_tokens")
    if tokens:
        return tokens
    blocks, size = _label(line, b"num_gpu_blocks"), _label(line, b"block_size")
    return blocks * size if blocks and size else None


def _label(line: bytes, name: bytes) -> int:
    _, found, rest = line.partition(name + b'="')
    digits = rest.partition(b'"')[0]
    return int(digits) if found and digits.isdigit() else 0


def _source(reading: Reading, line: bytes) -> None:
    if b'source="local_compute"' in line:
        reading.computed += _value(line)
    elif b'source="external_kv_transfer"' in line:
        reading.transferred += _value(line)


def alarms(before: Reading, now: Reading, *, decodes: bool) -> list[str]:
    """What grew between two scrapes that should not have, for an engine that `decodes` only. What
    it was given to compute, also shortly before, may have up to a token a byte."""
    grown = [name for name, value in now.counters.items() if value > before.counters.get(name, 0.0)]
    computed = now.computed - before.computed
    moved = now.transferred - before.transferred
    given = now.given - before.given_before
    if decodes and computed > max(_SMALL_PROMPTS, moved) + given:
        grown.append("decode_computes_prompts")
    return grown
