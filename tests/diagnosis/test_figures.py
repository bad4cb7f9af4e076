"""Stats lines and metric scrapes, and the rules over them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.fleet import pair

from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.figures import from_metrics, read_line, read_scrape
from twolane.diagnosis.postmortem import diagnose
from twolane.diagnosis.service import Interval, Service
from twolane.errors import QuestionError


def stats(prompt: float, output: float, running: int = 8, extra: str = "", tail: str = "") -> str:
    return (
        f"Engine 000: Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: "
        f"{output} tokens/s, Running: {running} reqs, Waiting: 0 reqs{extra}, GPU KV cache usage: "
        f"12.0%, Prefix cache hit rate: 0.0%{tail}"
    )


def nixl(
    ms: float, post: float, mb: float, descriptors: float, fail: int = 0, late: int = 0
) -> str:
    return (
        f"KV Transfer metrics: Num successful transfers=3, Avg xfer time (ms)={ms}, P90 xfer time "
        f"(ms)={ms}, Avg post time (ms)={post}, P90 post time (ms)={post}, Avg MB per "
        f"transfer={mb}, Throughput (MB/s)=1.0, Avg number of descriptors={descriptors}, Num "
        f"failed transfers={fail}, Num KV expired reqs=0, Num notifs after expiry={late}"
    )


def served(*lines: str, **fields: object) -> Service:
    service = Service(where="d0.log", **fields)  # type: ignore[arg-type]
    for line in lines:
        read_line(service, line)
    return service


def fired(service: Service) -> dict[str, str]:
    return {
        rule.id: hit.value
        for rule in RULES.values()
        for hit in (rule.load(service) if rule.load else ())
    }


QUIET, BUSY = [stats(0.0, 900.0)] * 3, [stats(2400.0, 30.0)] * 3
BUDGET = "Chunked prefill is enabled with max_num_batched_tokens=8192."
CASES = {
    "RUN01": (served(nixl(20, 2, 700, 1500), expired=2), served(nixl(20, 2, 700, 1500))),
    "RUN02": (served(nixl(20, 2, 700, 1500, late=1)), served(nixl(20, 2, 700, 1500))),
    "RUN03": (served(nixl(20, 2, 700, 1500, fail=1)), served(nixl(20, 2, 700, 1500))),
    "RUN23": (
        served(*[stats(0.0, 0.0, 0, ", KV fetch: 3 waiting to start, 0 in progress, 0 completed "
                                    "waiting")] * 3),
        served(*[stats(0.0, 9.0, 2, ", KV fetch: 3 waiting to start, 0 in progress, 0 completed "
                                    "waiting")] * 3),
    ),
    "RUN24": (served(*[stats(0.0, 0.0)] * 3), served(*[stats(0.0, 0.0)] * 2, QUIET[0])),
    "SPEC07": (
        served("SpecDecoding metrics: Mean acceptance length: 1.03, Accepted: 9 tokens, Drafted: "
               "900 tokens, Per-position acceptance rate: 0.020"),
        served("SpecDecoding metrics: Mean acceptance length: 2.5, Accepted: 450 tokens, Drafted: "
               "900 tokens, Per-position acceptance rate: 0.7"),
    ),
    "PERF01": (served(nixl(1000, 20, 700, 1500)), served(nixl(24, 2, 700, 1500))),
    "PERF02": (served(nixl(3400, 3220, 14700, 222732)), served(nixl(45, 20, 14700, 2376))),
    "PERF03": (
        served(stats(6553.1, 88.0), consumer=True),
        served(stats(0.0, 88.0, tail=", External prefix cache hit rate: 100.0%"), consumer=True),
    ),
    "PERF04": (served(stats(0.0, 9.0, extra=", Preemptions: 31")), served(*QUIET)),
    "TOK07": (served(BUDGET, *QUIET, *BUSY), served(BUDGET, *QUIET, *[stats(2400.0, 700.0)] * 3)),
    "BENCH01": (
        served(cache_hits=900.0, cache_queries=1000.0),
        served(cache_hits=10.0, cache_queries=1000.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_fires(rule: str) -> None:
    assert rule in fired(CASES[rule][0])


@pytest.mark.parametrize("rule", CASES)
def test_does_not_fire_on_the_near_miss(rule: str) -> None:
    assert rule not in fired(CASES[rule][1])


def test_every_rule_over_figures_has_a_case() -> None:
    assert set(CASES) == {rule.id for rule in RULES.values() if rule.load}


def test_a_slow_path_and_fragmented_blocks_are_told_apart() -> None:
    fragmented, slow = fired(CASES["PERF02"][0]), fired(CASES["PERF01"][0])
    assert "PERF01" not in fragmented
    assert "PERF02" not in slow
    assert fragmented["PERF02"] == (
        "4324 MB/s, 222732 descriptors a transfer, posting 95% of the time"
    )


def test_small_transfers_and_cpu_hosts_are_not_called_slow() -> None:
    assert "PERF01" not in fired(served(nixl(7, 2, 1.5, 60)))
    assert "PERF01" not in fired(served(nixl(1000, 20, 700, 1500), device="CPU"))


def test_a_prefill_engine_may_show_an_external_hit_rate_of_nothing() -> None:
    line = stats(2400.0, 8.0, tail=", External prefix cache hit rate: 0.0%")
    assert "PERF03" not in fired(served(line))


def test_a_stall_names_the_step_and_the_budget_that_would_hold() -> None:
    service = CASES["TOK07"][0]
    rule = RULES["TOK07"]
    assert rule.load is not None
    (hit,) = rule.load(service)
    assert "a step of 8192 tokens takes 3.41 s" in hit.value
    assert "--max-num-batched-tokens 240" in hit.fix


def test_a_stall_is_found_where_the_log_does_not_say_the_budget() -> None:
    assert "takes" not in fired(served(*QUIET, *BUSY))["TOK07"]


def test_a_stats_line_is_read_in_full() -> None:
    extra = ", Deferred: 1 reqs, KV fetch: 2 waiting to start, 1 in progress, 4 completed waiting"
    service = served(stats(1.5, 2.5, 7, extra + ", Preemptions: 3"))
    assert service.intervals == [
        Interval(prompt_tok_s=1.5, output_tok_s=2.5, running=7, waiting=0, preemptions=3,
                 kv_used=0.12, fetching=3)
    ]  # fmt: skip
    assert service.device == "GPU"


BEFORE = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
"""
AFTER = """\
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 8100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 100.0
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 4000.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 4000.0
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 5.0
# TYPE vllm:nixl_num_notifications_after_expiry counter
vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="m"} 2.0
"""


def test_two_scrapes_give_differences_summed_over_engines() -> None:
    service = from_metrics(read_scrape(BEFORE, "a"), read_scrape(AFTER, "b"), "d0")
    assert (service.prompt_tokens, service.preemptions, service.late) == (8100.0, 0, 2)
    assert {"PERF03", "RUN02"} <= set(fired(service))


@pytest.mark.parametrize(("external", "consumer"), [(0.0, None), (4000.0, True), (None, True)])
def test_who_posts_transfers_pulls_or_pushes(external: float | None, consumer: bool | None) -> None:
    after = {"vllm:nixl_bytes_transferred_count": 3.0, "vllm:prompt_tokens_total": 8000.0}
    by_source = "vllm:prompt_tokens_by_source_total"
    if external is not None:
        after[f'{by_source}{{source="external_kv_transfer"}}'] = external
    after[f'{by_source}{{source="local_compute"}}'] = 8000.0 - (external or 0.0)
    service = from_metrics({}, after, "an engine")
    assert service.consumer is consumer
    assert ("PERF03" in fired(service)) == bool(consumer)


def test_the_metrics_alone_can_be_diagnosed(tmp_path: Path) -> None:
    before, after = tmp_path / "before.prom", tmp_path / "after.prom"
    before.write_text(BEFORE)
    after.write_text(AFTER)
    answer = diagnose([], pair(), before, after)
    assert answer.cause == "RUN02"


def test_what_is_no_scrape_is_a_bad_question() -> None:
    with pytest.raises(QuestionError, match="not a metrics scrape"):
        read_scrape("vllm:x{ 1 2 3 nonsense", "scrape.prom")


def test_the_shorter_transfer_line_of_an_older_engine_tells_as_much() -> None:
    older = nixl(20, 2, 700, 1500).split(", Num failed")[0]
    service = served(older)
    assert (service.transfers, service.transfer_s, service.descriptors) == (3, 0.06, 4500.0)
    assert (service.failed, service.expired, service.late) == (0, 0, 0)
    assert fired(served(nixl(20, 2, 700, 1500))) == fired(service)
