"""One engine's /metrics as flat numbers.

Sample names are vLLM's (docs/how-we-measure.md lists those that matter). Histogram buckets and
`*_created` stamps are left out: differences of `_sum` and `_count` say what we need. Series of
several engines behind one port (data parallel) are summed.
"""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from twolane.errors import EngineError

_DROPPED_LABELS = {"engine", "model_name"}


def scrape(url: str, *, timeout_s: float = 10.0) -> dict[str, float]:
    """Samples of `url`/metrics. Blocking: call it in a thread. Raises EngineError."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=timeout_s) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, urllib.error.URLError) as error:
        raise EngineError(
            f"metrics cannot be read: {error}", place=url, remedy="is the engine still running?"
        ) from None
    return parse(text)


def parse(text: str) -> dict[str, float]:
    """Flat samples of a Prometheus exposition: `name{label="value"}` -> value."""
    wanted = "\n".join(
        line
        for line in text.splitlines()
        if line.startswith("vllm:") and "_bucket{" not in line and "_created{" not in line
    )
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            labels = ",".join(
                f'{k}="{v}"' for k, v in sorted(sample.labels.items()) if k not in _DROPPED_LABELS
            )
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            values[key] = values.get(key, 0.0) + sample.value
    return values


def in_flight(values: dict[str, float]) -> float | None:
    """Requests that an engine runs or lets wait; None if it does not say."""
    counts = [values.get(f"vllm:num_requests_{state}") for state in ("running", "waiting")]
    return None if None in counts else sum(count or 0.0 for count in counts)


def cache_config(values: dict[str, float]) -> dict[str, str]:
    """The labels of `vllm:cache_config_info` among scraped `values`; empty if it is not there."""
    for key in values:
        if key.startswith("vllm:cache_config_info{"):
            pairs = key[key.index("{") + 1 : -1].split('",')
            return {k: v.strip('"') for k, _, v in (pair.partition("=") for pair in pairs)}
    return {}
