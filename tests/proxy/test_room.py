"""What the engines' metrics are read for: KV room and alarms. And serving without a split."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.proxy.rig import completion, expected, rig

from twolane.proxy.fault_answer import Behaviour
from twolane.proxy.ledger import LedgerLine
from twolane.proxy.scrape import Reading, alarms, read
from twolane.records import read_jsonl

EXPOSED = b"""# HELP vllm:kv_cache_usage_perc KV-cache usage.
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="128",num_gpu_blocks="1000",enable_prefix_caching="True"} 1.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 300.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 9000.0
vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2.0
vllm:nixl_num_kv_expired_reqs_total{engine="1"} 1.0
vllm:nixl_num_kv_expired_reqs_created{engine="1"} 1.7e9
other 3
"""


def test_the_samples_that_matter_are_found() -> None:
    assert read(EXPOSED) == Reading(128_000, 0.25, {"kv_expired": 3.0}, 300.0, 9000.0)
    assert read(b"") == Reading()


def test_vllms_own_number_of_tokens_is_preferred() -> None:
    line = b'vllm:cache_config_info{block_size="128",kv_cache_size_tokens="777"} 1.0'
    assert read(line).kv_tokens == 777


@pytest.mark.parametrize(
    ("now", "raised"),
    [
        (Reading(counters={"kv_expired": 3.0}), []),
        (Reading(counters={"kv_expired": 4.0}), ["kv_expired"]),
        (Reading(counters={"late_notification": 1.0}), ["late_notification"]),
        (Reading(computed=3000.0, transferred=90_000.0), []),
        (Reading(computed=3000.0, transferred=100.0), ["decode_computes_prompts"]),
        (Reading(computed=2000.0), []),
        (Reading(computed=30_000.0, given=28_000, given_before=1), []),
        (Reading(computed=31_000.0, given=28_000), ["decode_computes_prompts"]),
    ],
)
def test_what_grows_is_told(now: Reading, raised: list[str]) -> None:
    before = Reading(counters={"kv_expired": 3.0})
    assert alarms(before, now, decodes=True) == raised


def test_who_may_compute_prompts_raises_no_alarm_by_it() -> None:
    assert alarms(Reading(), Reading(computed=1e6), decodes=False) == []


async def test_a_full_decode_engine_gets_nothing_until_it_has_room() -> None:
    async with rig(kv_limit=0.5, queue_timeout_s=0.05) as r:
        engine = r.proxy.fleet.of("decode")[0]
        engine.reading = Reading(kv_tokens=1000, kv_usage=0.6)
        assert (await r.ask(completion())).text == expected()  # alone it would wait for ever
        engine.in_flight += 1
        assert (await r.ask(completion())).status == 503
        engine.reading = Reading(kv_tokens=1000, kv_usage=0.1)
        assert (await r.ask(completion())).text == expected()
        engine.in_flight -= 1


async def test_what_was_given_since_the_scrape_counts_until_the_next() -> None:
    async with rig() as r:
        engine = r.proxy.fleet.of("decode")[0]
        engine.reading = Reading(kv_tokens=1000, kv_usage=0.1)
        place = r.proxy.fleet.reserve("decode", 0)
        assert place is not None
        place.promise(200.0)
        assert engine.kv_taken == pytest.approx(0.3)
        await engine.scrape(1.0)
        assert place in engine.promised  # the engine had not seen it when it was asked
        place.arrived = True
        await engine.scrape(1.0)
        assert not engine.promised
        place.give_back()


async def test_without_a_prefill_engine_one_engine_serves_where_the_budget_allows(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ledger"
    async with rig(aggregated=1, fallback_share=0.5, ledger=file) as r:
        r.p.stop()
        statuses = [(await r.ask(completion(f"p{i}"))).status for i in range(4)]
        assert statuses == [503, 200, 503, 200]
        assert len(r.aggregated[0].asked) == 2
        text = (await r.get("/metrics")).body
        assert b'twolane_not_split_total{why="fallback"} 2.0' in text
        assert b"twolane_fallbacks_total 2.0" in text
    lines = list(read_jsonl(file, LedgerLine, []))
    assert [line.alone for line in lines] == [None, "fallback", None, "fallback"]
    assert lines[1].ledger.path == "direct"


async def test_what_the_client_did_wrong_is_not_tried_elsewhere() -> None:
    async with rig(aggregated=1, fallback_share=1.0) as r:
        r.p.behaviour = Behaviour(status=400)
        assert (await r.ask(completion())).status == 400
        assert not r.aggregated[0].asked


async def test_without_a_budget_nothing_falls_back() -> None:
    async with rig(aggregated=1) as r:
        r.p.behaviour = Behaviour(status=503)
        assert (await r.ask(completion())).status == 503
        assert not r.aggregated[0].asked
