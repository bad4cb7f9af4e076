"""Slow, not broken: transfers, stalls, preemptions, prefills in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import AFTERMATH, EXPLAINED
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.service import PREFILLING, Service

SLOW = 5e9  # bytes/s of one rank between devices of a node; NVLink gives 20 to 100e9, TCP 0.3 to 3
SMALL = 32e6  # bytes: below, latency decides, not the path
MANY = 20_000  # descriptors a transfer (vllm#55434; unfragmented transfers show 1,500 to 2,400)
POSTING = 0.5  # of the transfer time spent on posting: the CPU is the bottleneck, not the link
ITSELF = 0.95  # external hit share below which a decode engine computes prompts


def many_descriptors(service: Service) -> bool:
    each = service.descriptors / service.transfers if service.transfers else 0.0
    big = service.transfers > 0 and service.transfer_bytes / service.transfers >= SMALL
    return each > MANY or (big and each > MANY / 10 and (service.posting or 0) > POSTING)


def said(service: Service) -> str:
    rate, each = service.bytes_s or 0.0, service.descriptors / max(1, service.transfers)
    return (f"{rate / 1e6:.0f} MB/s, {each:.0f} descriptors a transfer, posting "
            f"{service.posting or 0:.0%} of the time")  # fmt: skip


def slow_path(service: Service) -> Iterator[Hit]:
    rate = service.bytes_s
    big = service.transfers > 0 and service.transfer_bytes / service.transfers >= SMALL
    if rate is None or not big or rate >= SLOW or service.device == "CPU":
        return
    if not many_descriptors(service):
        yield Hit(said(service), "xfer")


def fragmented(service: Service) -> Iterator[Hit]:
    if many_descriptors(service):
        yield Hit(said(service), "xfer")


def prefills_itself(service: Service) -> Iterator[Hit]:
    """A decode engine that computes prompts: by tokens, by hit share, by prompt throughput."""
    local, whole = service.local_tokens, service.prompt_tokens
    if service.consumer and local and whole and local > 32 * max(1.0, service.requests or 1):
        yield Hit(f"{local:.0f} of {whole:.0f} prompt tokens computed here", "scrape")
        return
    partly = [hit for hit in service.external_hits if 0 < hit < ITSELF]
    rates = [i.prompt_tok_s for i in service.intervals if i.prompt_tok_s >= PREFILLING]
    if service.consumer is not False and partly:
        yield Hit(f"external hit rate {min(partly):.0%}", "prompt")
    elif service.consumer and rates:
        yield Hit(f"{max(rates):.0f} prompt tokens/s on a decode engine", "prompt")


def preempted(service: Service) -> Iterator[Hit]:
    if not service.preemptions:
        return
    running = max((i.running for i in service.intervals if i.preemptions), default=0)
    seqs = f"--max-num-seqs {max(1, running * 2 // 3)}" if running else "Fewer --max-num-seqs"
    yield Hit(f"{service.preemptions} preemptions", "preempt",
              fix=f"{seqs}, or more KV memory; cap what the proxy sends. On a decode engine a "
              "preempted request is prefilled again there: keep KV use below 90 %.")  # fmt: skip


def beyond_graphs(side: Side) -> Iterator[Hit]:
    largest = side.args.integer("max_cudagraph_capture_size")
    if largest and side.seqs and side.seqs * (1 + (side.drafts or 0)) > largest:
        yield Hit(f"{side.seqs} sequences, largest graph {largest}", "max_num_seqs")


RULES = (
    Rule(
        id="PERF01",
        title="KV transfer slow for one node",
        severity="warn",
        when=(
            "KV Transfer metrics Throughput < 5 GB/s per rank with P/D on one NVLink node "
            "(expect 20-100+ GB/s; PCIe 10-25; TCP 0.3-3)"
        ),
        so="First tokens or streams are slower than the layout allows.",
        fix=(
            "UCX fell back: UCX_TLS, IPC/PID namespaces, CUDA_VISIBLE_DEVICES isolation; "
            "UCX_LOG_LEVEL=info and look for cuda_ipc; else try NixlPushConnector."
        ),
        source=("v1 nixl/metrics; vllm#52607 (0.5 vs 49 GB/s), #26382, #55906; nixl#1097"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/stats.py",
        rank=AFTERMATH,
        load=slow_path,
    ),
    Rule(
        id="PERF02",
        title="too many descriptors: KV blocks fragmented",
        severity="warn",
        when=(
            "Avg number of descriptors > ~20k per transfer; near blocks x layers (tokens / "
            "block_size x layers), with post time over half of the transfer time"
        ),
        so="First tokens or streams are slower than the layout allows.",
        fix=(
            "TWOLANE_KV_RUNS=1 in both engines' environment, with twolane installed beside vLLM; "
            "else raise --block-size (16->128) equally on both sides, LBHNC/cross-layer layout; "
            "same TP."
        ),
        source=(
            "vllm#55434 (112k), #50913; seen on two H200s, vLLM 0.26, 14.7 GB: 222,732 "
            "descriptors, 3.22 s posting of 3.40 s, beside transfers of the same size in "
            "2,376 descriptors and 45 ms"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/stats.py",
        rank=AFTERMATH,
        load=fragmented,
    ),
    Rule(
        id="PERF03",
        title="D computes prompts itself",
        severity="warn",
        when=(
            "D (kv_consumer) log: Avg prompt throughput well above 0 and/or External prefix"
            " cache hit rate < 95%"
        ),
        so=("The decode engine stalls its streams with prefills that the split was to take away."),
        fix=(
            "kv_transfer_params lost (RUN07), failed transfers + recompute, preemption on "
            "D. Healthy D: 0.0 tokens/s, 100%."
        ),
        source="v1/metrics/loggers.py:335; vllm#26896, #22454",
        confirmed="source",
        seen="v1/metrics/loggers.py",
        rank=EXPLAINED,
        load=prefills_itself,
    ),
    Rule(
        id="PERF04",
        title="preemption",
        severity="warn",
        when=(
            "Preemptions > 0 in the stats line / vllm:num_preemptions_total grows (default "
            "log level shows no per-request warning)"
        ),
        so=(
            "Preempted requests are computed again; on a decode engine that means a local prefill."
        ),
        fix=(
            "Lower max_num_seqs, more KV memory; on D a preempted request is prefilled "
            "again locally: keep KV use < 90%."
        ),
        source="loggers.py; vllm#25815, #24256, #25538",
        confirmed="source",
        seen="v1/metrics/loggers.py",
        rank=AFTERMATH,
        load=preempted,
    ),
    Rule(
        id="PERF05",
        title="cudagraph sizes do not cover load",
        severity="warn",
        when="max_num_seqs > max capture size or off-grid",
        so="First tokens or streams are slower than the layout allows.",
        fix="Align (SPEC05).",
        source="vllm#57355, #51509",
        rank=AFTERMATH,
        engine=beyond_graphs,
    ),
)
