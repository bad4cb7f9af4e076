"""Stats lines and metric scrapes -> a Service.

Rules of this file: the formats of vLLM 0.32's v1/metrics/loggers.py, nixl/stats.py,
spec_decode/metrics.py and its /metrics, turned into figures. Thresholds belong to the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from twolane.diagnosis.service import Interval, Service
from twolane.errors import QuestionError

MOST_INTERVALS = 4096
MB = 1_000_000
NUMBER = r"([\d.]{1,40})"
COUNT = r"(\d{1,18})"

STATS = re.compile(
    rf"(?:Engine \d+|\d+ Engines Aggregated): Avg prompt throughput: {NUMBER} tokens/s, "
    rf"Avg generation throughput: {NUMBER} tokens/s, Running: {COUNT} reqs, Waiting: {COUNT} reqs"
    rf"(?:, Deferred: \d+ reqs)?(?:, KV fetch: {COUNT} waiting to start, {COUNT} in progress, "
    rf"\d+ completed waiting)?(?:, Preemptions: {COUNT})?, (\w+) KV cache usage: {NUMBER}%"
)
EXTERNAL = re.compile(rf"External prefix cache hit rate: {NUMBER}%")
NIXL = re.compile(
    rf"KV Transfer metrics: Num successful transfers={COUNT}, Avg xfer time \(ms\)={NUMBER}, "
    rf"P90 xfer time \(ms\)={NUMBER}, Avg post time \(ms\)={NUMBER}, P90 post time "
    rf"\(ms\)={NUMBER}, Avg MB per transfer={NUMBER}, Throughput \(MB/s\)={NUMBER}, "
    rf"Avg number of descriptors={NUMBER}(?:, Num failed transfers={COUNT}, Num KV expired "
    rf"reqs={COUNT}, Num notifs after expiry={COUNT})?"  # vLLM 0.26 ends before these three
)
SPEC = re.compile(rf"SpecDecoding metrics: .*Accepted: {COUNT} tokens, Drafted: {COUNT} tokens")
BUDGET = re.compile(rf"Chunked prefill is enabled with max_num_batched_tokens={COUNT}")
DEVICE = re.compile(r"(GPU|CPU) KV cache size")


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # a line cut short or damaged
        return 0.0


def read_line(service: Service, text: str) -> None:
    """Adds what one log line says, if it is one that says figures."""
    if match := STATS.search(text):
        add_interval(service, match, text)
    elif match := NIXL.search(text):
        add_transfers(service, match, text)
    elif match := SPEC.search(text):
        service.accepted += number(match[1])
        service.drafted += number(match[2])
        service.evidence["spec"] = text
    elif match := BUDGET.search(text):
        service.budget = int(match[1])
    elif match := DEVICE.search(text):
        service.device = match[1]


def add_interval(service: Service, match: re.Match[str], text: str) -> None:
    external = EXTERNAL.search(text)
    interval = Interval(
        prompt_tok_s=number(match[1]),
        output_tok_s=number(match[2]),
        running=int(match[3]),
        waiting=int(match[4]),
        fetching=int(match[5] or 0) + int(match[6] or 0),
        preemptions=int(match[7] or 0),
        kv_used=number(match[9]) / 100,
        external_hit=number(external[1]) / 100 if external else None,
    )
    service.device = match[8]
    service.preemptions += interval.preemptions
    if interval.preemptions:
        service.evidence["preempt"] = text
    if interval.prompt_tok_s > 0 or (interval.external_hit or 1) < 1:
        service.evidence["prompt"] = text
    if interval.output_tok_s == 0 and interval.running:
        service.evidence["silent"] = text
    if len(service.intervals) < MOST_INTERVALS:
        service.intervals.append(interval)


def add_transfers(service: Service, match: re.Match[str], text: str) -> None:
    done = int(match[1])
    service.transfers += done
    service.transfer_s += done * number(match[2]) / 1e3
    service.post_s += done * number(match[4]) / 1e3
    service.transfer_bytes += done * number(match[6]) * MB
    service.descriptors += done * number(match[8])
    failed, expired, late = (int(match[i] or 0) for i in (9, 10, 11))
    service.failed += failed
    service.expired += expired
    service.late += late
    for topic, there in (("xfer", done), ("failed", failed), ("expired", expired), ("late", late)):
        if there:
            service.evidence[topic] = text


# ------------------------------------------------------------------------------- metric scrapes


def read_scrape(text: str, place: str) -> dict[str, float]:
    """Prometheus text -> sample name with its telling labels -> value, summed over engines.

    Raises QuestionError at `place` if it is not the Prometheus text format.
    """
    values: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name + label(sample.labels)
                values[key] = values.get(key, 0.0) + float(sample.value)
    except (ValueError, KeyError, IndexError) as error:
        raise QuestionError(
            f"not a metrics scrape: {error}", place=place, remedy="save an engine's /metrics there"
        ) from error
    return values


def label(labels: Mapping[str, str]) -> str:
    for name in ("source", "reason", "stage", "finished_reason"):
        if name in labels:
            return f'{{{name}="{labels[name]}"}}'
    return ""


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What every series grew by; a counter that fell was restarted and counts from zero."""
    return {k: v - before.get(k, 0.0) if v >= before.get(k, 0.0) else v for k, v in after.items()}


def _consumer(external: float | None, grown: Mapping[str, float]) -> bool | None:
    """Whether it takes KV from another engine; None if these counters do not say so.

    Who counts a transfer is who posts it: the taker that pulls, or the giver that pushes.
    """
    posts = bool(grown.get("vllm:nixl_bytes_transferred_count"))
    return True if external or (posts and external is None) else None


def from_metrics(before: Mapping[str, float], after: Mapping[str, float], where: str) -> Service:
    """What an engine did between two scrapes of its /metrics."""
    grown = growth(before, after)
    by_source = "vllm:prompt_tokens_by_source_total"
    external = grown.get(f'{by_source}{{source="external_kv_transfer"}}')
    queries = grown.get("vllm:external_prefix_cache_queries_total", 0.0)
    late = int(grown.get("vllm:nixl_num_notifications_after_expiry_total", 0))
    return Service(
        where=where,
        consumer=_consumer(external, grown),
        preemptions=int(grown.get("vllm:num_preemptions_total", 0)),
        transfers=int(grown.get("vllm:nixl_xfer_time_seconds_count", 0)),
        transfer_bytes=grown.get("vllm:nixl_bytes_transferred_sum", 0.0),
        transfer_s=grown.get("vllm:nixl_xfer_time_seconds_sum", 0.0),
        post_s=grown.get("vllm:nixl_post_time_seconds_sum", 0.0),
        descriptors=grown.get("vllm:nixl_num_descriptors_sum", 0.0),
        failed=int(grown.get("vllm:nixl_num_failed_transfers_total", 0)),
        expired=int(grown.get("vllm:nixl_num_kv_expired_reqs_total", 0)),
        late=late,
        drafted=grown.get("vllm:spec_decode_num_draft_tokens_total", 0.0),
        accepted=grown.get("vllm:spec_decode_num_accepted_tokens_total", 0.0),
        local_tokens=grown.get(f'{by_source}{{source="local_compute"}}'),
        external_tokens=external if queries or external else None,
        prompt_tokens=grown.get("vllm:prompt_tokens_total"),
        cache_hits=grown.get("vllm:prefix_cache_hits_total"),
        cache_queries=grown.get("vllm:prefix_cache_queries_total"),
        requests=grown.get("vllm:request_prompt_tokens_count"),
        stuck_kv=stuck(before, after),
        evidence={"scrape": f"{where}: difference of two scrapes"},
    )


def stuck(before: Mapping[str, float], after: Mapping[str, float]) -> int:
    """Requests that waited for KV at both scrapes while no token came out between them."""
    stage = 'vllm:num_requests_kv_fetch_by_stage{{stage="{}"}}'
    waiting = [
        sum(scrape.get(stage.format(s), 0.0) for s in ("waiting_to_start", "in_progress"))
        for scrape in (before, after)
    ]
    tokens = growth(before, after).get("vllm:generation_tokens_total", 0.0)
    return int(min(waiting)) if tokens == 0 else 0
