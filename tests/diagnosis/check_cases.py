"""For each rule that judges a deployment: one that it refuses, and the nearest that it takes."""

from __future__ import annotations

from tests.diagnosis.fleet import DENSE, MTP, pair, single, unconnected

from twolane.diagnosis.deployment import Deployment

EXPAND = "expandable_segments:True"
STATE, LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_KV_CACHE_LAYOUT"
SIDE, HOST = "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST"
PUSH = {"connector": "NixlPushConnector"}
NGRAM = '--speculative-config={"method":"ngram","num_speculative_tokens":3}'


def mtp(count: int, method: str = "mtp") -> str:
    return f'--speculative-config={{"method":"{method}","num_speculative_tokens":{count}}}'


CASES: dict[str, tuple[Deployment, Deployment]] = {
    "CFG01": (pair(pkv={"role": None}), pair()),
    "CFG02": (pair(dkv={"role": "consumer"}), pair()),
    "CFG03": (pair(kv={"kv_rank": 0}), pair(kv={"kv_port": 14579})),
    "CFG04": (
        pair(kv={"connector": "PyNcclConnector"}),
        pair(kv={"connector": "Own", "kv_connector_module_path": "own.module"}),
    ),
    "CFG05": (
        pair(dkv={"kv_load_failure_policy": "retry"}),
        pair(dkv={"kv_load_failure_policy": "recompute"}),
    ),
    "CFG06": (pair(pkv={"role": "kv_both"}), pair()),
    "CFG07": (pair(nixl=False), single(nixl=False)),
    "CFG08": (
        pair(kv={"kv_buffer_device": "cuda"}, platform="cpu"),
        pair(kv={"kv_buffer_device": "cpu"}),
    ),
    "CFG09": (pair(d="-pp 2"), pair(p="-pp 2")),
    "CFG10": (
        pair(kv={**PUSH, "kv_connector_extra_config": {"bidirectional_kv_xfer": True}}),
        pair(kv={"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}),
    ),
    "CFG11": (
        pair(model="hybrid", kv={"connector": "LMCacheConnectorV1"}),
        pair(model="hybrid", kv={"connector": "OffloadingConnector"}),
    ),
    "CFG12": (
        pair(both="--no-disable-hybrid-kv-cache-manager", kv={"connector": "LMCacheConnectorV1"}),
        pair(both="--no-disable-hybrid-kv-cache-manager"),
    ),
    "CFG13": (
        pair(p="--enable-return-routed-experts"),
        pair(p="--no-enable-return-routed-experts"),
    ),
    "CFG15": (pair(pkv={"role": "kv_consumer"}), pair()),
    "HYB01": (pair(model="hybrid", denv={STATE: "SD"}), pair(model="hybrid")),
    "HYB02": (pair(model="hybrid", denv={STATE: "ds"}), pair(model="hybrid")),
    "HYB03": (
        pair(model="hybrid", both="--disable-hybrid-kv-cache-manager"),
        pair(model="sliding", both="--disable-hybrid-kv-cache-manager"),
    ),
    "HYB04": (
        pair(model="hybrid", p="--mamba-block-size 64 --no-enable-prefix-caching"),
        pair(model="hybrid", p="--mamba-block-size 64"),
    ),
    "HYB05": (
        pair(model="hybrid", p="--no-enable-chunked-prefill"),
        pair(model="hybrid", p="--no-enable-chunked-prefill --no-enable-prefix-caching"),
    ),
    "HYB06": (
        pair(model="hybrid", d="--kv-cache-memory-bytes 1G --max-num-seqs 512"),
        pair(model="hybrid", d="--kv-cache-memory-bytes 64G --max-num-seqs 512"),
    ),
    "HYB09": (pair(model="hybrid", p="-tp 4", d="-tp 2"), pair(model="hybrid", p="-tp 2")),
    "HYB11": (pair(model="hybrid", d="--use-replayssm"), single("--use-replayssm")),
    "HYB12": (pair(p="--no-enable-chunked-prefill"), pair(p="--enable-chunked-prefill")),
    "PAIR01": (pair(p="--kv-cache-dtype fp8"), pair(both="--kv-cache-dtype fp8")),
    "PAIR03": (
        pair(p="--block-size 64", d="--block-size 16"),
        pair(p="--block-size 16", d="--block-size 64"),
    ),
    "PAIR04": (pair(p="-tp 3", d="-tp 2"), pair(p="-tp 2", d="-tp 4")),
    "PAIR05": (pair(p="-tp 16", d="-tp 4"), pair(p="-tp 8", d="-tp 4")),
    "PAIR06": (
        pair(p="-tp 4 --block-size 16", d="-tp 2 --block-size 32"),
        pair(p="-tp 2 --block-size 16", d="-tp 4 --block-size 32"),
    ),
    "PAIR07": (pair(denv={LAYOUT: "NHD"}), pair(denv={LAYOUT: "HND"})),
    "PAIR08": (
        pair(p="-tp 2", d="-tp 4", env={LAYOUT: "NHD"}),
        pair(p="-tp 2", d="-tp 2", env={LAYOUT: "NHD"}),
    ),
    "PAIR11": (
        pair(p="--block-size 16", d="--block-size 32", dkv={"kv_buffer_device": "cpu"}),
        pair(both="--block-size 16", dkv={"kv_buffer_device": "cpu"}),
    ),
    "PAIR12": (
        pair(model="sliding", kv=PUSH, p="-tp 1", d="-tp 2"),
        pair(model="sliding", kv=PUSH, p="-tp 2", d="-tp 1"),
    ),
    "PAIR13": (pair(model="mla", p=mtp(1), d=mtp(2)), pair(model="mla", both=MTP)),
    "PAIR16": (pair(d="--block-size 16"), pair(both="--block-size 16")),
    "PAIR18": (unconnected(pair(), "d0"), unconnected(pair(), "p0", "d0")),
    "PORT01": (pair(p="-dp 128", penv={SIDE: "5600"}, denv={SIDE: "5700"}), pair(p="-dp 100")),
    "PORT02": (
        pair(phost="10.0.0.1", dhost="10.0.0.2", penv={HOST: "10.0.0.2"}),
        pair(phost="10.0.0.1", dhost="10.0.0.2", penv={HOST: "10.0.0.1"}),
    ),
    "PORT03": (
        pair(phost="10.0.0.1", dhost="10.0.0.2"),
        pair(phost="10.0.0.1", dhost="10.0.0.2", penv={HOST: "10.0.0.1"}),
    ),
    "PORT04": (pair(penv={SIDE: "8100"}), pair(penv={SIDE: "8101"})),
    "PORT05": (pair(d="--port 8100"), pair(d="--port 8101")),
    "MEM11": (
        single("--kv-cache-memory-bytes 64G", platform="cpu", free_gib=20.0),
        single("--kv-cache-memory-bytes 16G", platform="cpu", free_gib=20.0),
    ),
    "PORT06": (
        pair(both="-dp 2 --data-parallel-rpc-port 13345"),
        pair(p="-dp 2 --data-parallel-rpc-port 13345", d="--data-parallel-rpc-port 13346"),
    ),
    "PORT07": (
        pair(phost="a", dhost="b", penv={HOST: "a"}, rdma=False),
        pair(phost="a", dhost="b", penv={HOST: "a"}, denv={HOST: "b"}, rdma=False, kv=PUSH),
    ),
    "CP01": (single("-tp 3"), single("-tp 4")),
    "CP02": (single("-tp 16", device_count=8), single("-tp 8 -dcp 8", device_count=8)),
    "CP03": (single("-tp 8 -dcp 2"), single("-tp 16 -dcp 2")),
    "CP04": (single("-tp 16 -dcp 4"), single("-tp 16 -dcp 2")),
    "CP05": (single("-tp 4 -dcp 3", model="mla"), single("-tp 4 -dcp 2", model="mla")),
    "CP06": (
        single("-tp 4 -pcp 2 -dcp 4", model="mla"),
        single("-tp 4 -pcp 2 -dcp 8", model="mla"),
    ),
    "CP07": (
        single("-pcp 2", model="mla", env={"VLLM_USE_V2_MODEL_RUNNER": "0"}),
        single("-pcp 2", model="mla"),
    ),
    "CP08": (single("-pcp 2"), single("-pcp 2", model="mla")),
    "CP09": (pair(d="-pcp 2", model="mla"), pair(p="-pcp 2", model="mla")),
    "CP10": (
        pair(p="-tp 2 -pcp 2 -dcp 2", model="mla"),
        pair(both="-pcp 2 -dcp 2", dkv={"role": "kv_producer"}, model="mla"),
    ),
    "CP11": (pair(both="-tp 8 -dcp 2", model="mla"), pair(both="-tp 8 -dcp 8", model="mla")),
    "CP12": (
        pair(both="-tp 8 -dcp 8", model="mla", kv={"connector": "NixlPullConnector"}),
        pair(both="-tp 8 -dcp 8", model="mla"),
    ),
    "CP13": (pair(both="-tp 16 -dcp 2"), pair(both="-tp 2 -dcp 2", model="mla")),
    "CP14": (pair(both="-tp 2 -dcp 2", model="mla", kv=PUSH), pair(model="mla", kv=PUSH)),
    "CP15": (
        pair(p="-tp 2 -dcp 2", d="-tp 3 -dcp 3", model="mla"),
        pair(p="-tp 2 -dcp 2", d="-tp 4 -dcp 4", model="mla"),
    ),
    "CP17": (
        single("-dp 2 --data-parallel-external-lb"),
        single("-dp 2 --data-parallel-external-lb", model="mla"),
    ),
    "TOK01": (single("--max-model-len 1m"), single("--max-model-len 40960")),
    "TOK02": (
        single("--no-enable-chunked-prefill --max-num-batched-tokens 8192"),
        single("--no-enable-chunked-prefill --max-num-batched-tokens 40960"),
    ),
    "TOK03": (
        single("--max-num-batched-tokens 64 --max-num-seqs 128"),
        single("--max-num-batched-tokens 128 --max-num-seqs 128"),
    ),
    "TOK04": (
        single("--max-num-batched-tokens 8193 --max-num-seqs 1 --max-model-len 8192"),
        single("--max-num-batched-tokens 8192 --max-num-seqs 1 --max-model-len 8192"),
    ),
    "TOK05": (
        single("--long-prefill-token-threshold 50000"),
        single("--long-prefill-token-threshold 4096"),
    ),
    "TOK06": (
        pair(both="--max-num-batched-tokens 1048576"),
        pair(both="--max-num-batched-tokens 32k"),
    ),
    "TOK07": (
        single("--max-num-batched-tokens 8192", prefill_tok_s=2400.0),
        single("--max-num-batched-tokens 8192", prefill_tok_s=2400.0, stall_ms=4000.0),
    ),
    "TOK08": (
        single(f"{MTP} --max-num-batched-tokens 2048", model="mla"),
        single(f"{MTP} --max-num-batched-tokens 8192", model="mla"),
    ),
    "TOK09": (
        single(f"{mtp(64, 'dflash')} --max-num-batched-tokens 64"),
        single(f"{mtp(64, 'dflash')} --max-num-batched-tokens 128"),
    ),
    "TOK11": (
        single("--max-num-active-seqs 300 --max-num-seqs 256"),
        single("--max-num-active-seqs 256 --max-num-seqs 256"),
    ),
    "TOK12": (pair(d="--max-model-len 8192"), pair(both="--max-model-len 8192")),
    "TOK13": (
        single("--max-model-len 1m", env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
        single("--max-model-len 40k", env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
    ),
    "MEM01": (
        single("--kv-cache-memory-bytes 1G --max-model-len 32768"),
        single("--kv-cache-memory-bytes 5G --max-model-len 32768"),
    ),
    "MEM03": (
        pair(pdev=[0], ddev=[0]),
        pair(pdev=[0], ddev=[0], both="--gpu-memory-utilization 0.4"),
    ),
    "MEM07": (single("--kv-cache-memory-bytes 8G"), single("--gpu-memory-utilization 0.9")),
    "MEM09": (single("--gpu-memory-utilization 90"), single("--gpu-memory-utilization 0.90")),
    "ATTN05": (pair(env={LAYOUT: "NHC"}), pair(env={LAYOUT: "HND"})),
    "ATTN06": (single("--kv-cache-dtype fp16"), single("--kv-cache-dtype fp8")),
    "ATTN07": (
        single("--kv-cache-dtype nvfp4", model="mla"),
        single("--kv-cache-dtype nvfp4_ds_mla", model="mla"),
    ),
    "ATTN08": (
        pair(both="--kv-cache-dtype fp8", p="--attention-backend FLASHINFER"),
        pair(both="--kv-cache-dtype fp8 --attention-backend FLASHINFER"),
    ),
    "SPEC01": (single(MTP), single(MTP, model="mla")),
    "SPEC02": (single(mtp(1, "deepseek_mtp"), model="mla"), single(MTP, model="mla")),
    "SPEC03": (single(mtp(2), model="mla"), single(MTP, model="mla")),
    "SPEC04": (
        pair(both=mtp(3), model={**DENSE, "num_nextn_predict_layers": 2}),
        pair(both=mtp(4), model={**DENSE, "num_nextn_predict_layers": 2}),
    ),
    "SPEC05": (
        single(f"{MTP} --max-num-seqs 512", model="mla"),
        single(f"{MTP} --max-num-seqs 256", model="mla"),
    ),
    "SPEC06": (single(f"{NGRAM} --async-scheduling"), single(NGRAM)),
    "SPEC08": (pair(d=MTP, model="mla"), pair(d=NGRAM)),
    "ENV01": (
        pair(env={"PYTORCH_CUDA_ALLOC_CONF": f"max_split_size_mb:64,{EXPAND}"}),
        pair(both="--enable-sleep-mode", env={"PYTORCH_CUDA_ALLOC_CONF": EXPAND}),
    ),
    "ENV02": (
        pair(env={"PYTORCH_ALLOC_CONF": f"garbage_collection_threshold:0.6,{EXPAND}"}),
        pair(env={"PYTORCH_ALLOC_CONF": "expandable_segments:False"}),
    ),
    "ENV03": (
        single(env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
        single(env={"VLLM_LOGGING_LEVEL": "DEBUG"}),
    ),
    "ENV04": (single("--swap-space 4"), single("--disable-log-stats")),
    "ENV14": (pair(env={"TWOLANE_KV_RUN": "1"}), pair(env={"TWOLANE_KV_RUNS": "1"})),
    "ENV15": (pair(env={"TWOLANE_KV_RUNS": "yes"}), pair(env={"TWOLANE_KV_RUNS": "0"})),
    "ENV16": (
        single(env={"TWOLANE_NIXL_ASCENDING": "1"}),
        pair(env={"TWOLANE_NIXL_ASCENDING": "1"}),
    ),
    "ENV17": (
        pair(penv={"TWOLANE_NIXL_ASCENDING": "1"}),
        pair(denv={"TWOLANE_NIXL_ASCENDING": "1"}),
    ),
    "ENV06": (pair(env={"UCX_TLS": "tcp,rc"}), pair(env={"UCX_TLS": "rc,cuda_copy,cuda_ipc,sm"})),
    "ENV08": (pair(d="--enforce-eager"), pair(p="--enforce-eager")),
    "ENV09": (pair(pdev=[0, 0]), pair(pdev=[0, 1], ddev=[2, 3], device_count=4)),
    "ENV10": (
        single('--kv-events-config={"enable_kv_cache_events":true}'),
        single(
            '--kv-events-config={"enable_kv_cache_events":true}', env={"PYTHONHASHSEED": "0"}
        ),
    ),
    "ENV11": (single("--max-num-seqs many"), single("--max-num-seqs 64")),
    "ENV12": (single(env={"A=B": "1"}), single(env={"A": "B=1"})),
    "CP19": (single("-tp 1000"), single("-tp 8")),
    "RUN25": (pair(model_trouble="m/config.json is missing"), pair(nixl=True)),
    "PERF05": (
        single("--max-num-seqs 256 --max-cudagraph-capture-size 128"),
        single("--max-num-seqs 128 --max-cudagraph-capture-size 128"),
    ),
}  # fmt: skip
