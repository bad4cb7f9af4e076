"""Proxies and load generators in front of the engines: mostly advice, hardly visible in logs."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.service import Service

WARM = 0.2  # share of prompt tokens found in the prefix cache that a fresh load does not have


def warm_cache(service: Service) -> Iterator[Hit]:
    hits, asked = service.cache_hits, service.cache_queries
    if hits and asked and hits / asked > WARM:
        yield Hit(f"{hits:.0f} of {asked:.0f} prompt tokens came from the prefix cache", "scrape")


RULES = (
    Rule(
        id="PROXY01",
        title="proxy client timeouts",
        severity="warn",
        when="httpx default 5 s read timeout / aiohttp total 300 s with 1M prompts",
        so="Requests fail or look healthy when they are not.",
        fix="timeout=None (read) for P and D calls, connect 5 s.",
        source="vaara#699; vllm#26122",
        rank=AFTERMATH,
    ),
    Rule(
        id="PROXY02",
        title="toy proxy hides errors",
        severity="warn",
        when=("proxy returns 200 always, or ignores finish_reason=error / kv_transfer_params=null"),
        so="Requests fail or look healthy when they are not.",
        fix="Pass status on; fail when P's kv_transfer_params is null.",
        source="vllm#23981; smg#2491",
        rank=AFTERMATH,
    ),
    Rule(
        id="PROXY03",
        title="batch prompts through PD",
        severity="error",
        when="prompt is a list / n>1 / best_of",
        so="Requests fail or look healthy when they are not.",
        fix="Split one prompt per request in the proxy.",
        source="vllm#54707",
        rank=AFTERMATH,
    ),
    Rule(
        id="PROXY04",
        title="abort leaves blocks pinned",
        severity="warn",
        when="client disconnect between P and D leg",
        so="Requests fail or look healthy when they are not.",
        fix=(
            "Proxy should still tell P (or accept the lease); watch "
            "vllm:nixl_num_kv_expired_reqs_total on P."
        ),
        source="vllm#46283, #41269",
        rank=AFTERMATH,
    ),
    Rule(
        id="BENCH01",
        title="warm prefix cache contaminates",
        severity="warn",
        when=(
            "same --seed (default 0) run twice on a server with prefix caching; hits_total "
            "delta > 0 on a random data set"
        ),
        so="The numbers do not mean what they seem to mean.",
        fix=(
            "New seed per run or POST /reset_prefix_cache (VLLM_SERVER_DEV_MODE=1) on P and"
            " D; report prefix_cache_hits/queries delta with every result."
        ),
        source="vllm#52884 (+86%), #54227 (TTFT 49x)",
        rank=AFTERMATH,
        load=warm_cache,
    ),
    Rule(
        id="BENCH02",
        title="bench asks for more than the server admits",
        severity="warn",
        when="--max-concurrency > max_num_seqs (D) or * (in+out) > KV tokens",
        so="The numbers do not mean what they seem to mean.",
        fix="queue time is measured, not the engine; print Waiting/queue share.",
        source="H",
        rank=AFTERMATH,
    ),
)
