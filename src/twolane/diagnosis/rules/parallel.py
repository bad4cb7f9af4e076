"""Parallel sizes: tensor, pipeline, context and data."""

from __future__ import annotations

from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Rule
from twolane.diagnosis.rules import parallel_checks as checks

RULES = (
    Rule(
        id="CP01",
        title="heads % TP",
        severity="error",
        when="num_attention_heads % TP != 0",
        so="The engine refuses to start.",
        fix="TP that divides the heads.",
        source="config/model.py",
        confirmed="executed",
        seen="config/model.py",
        log=(
            (
                r"Total number of attention heads \((\d+)\) must be divisible by tensor"
                r" parallel size \((\d+)\)"
            ),
        ),
        engine=checks.heads_divide,
    ),
    Rule(
        id="CP02",
        title="world size > GPUs",
        severity="error",
        when=(
            "TP x PP x PCP above the devices of the node (DCP reuses TP ranks), one node, "
            "no --distributed-executor-backend"
        ),
        so="The engine refuses to start.",
        fix=("TP x PCP x PP (x DP local) <= GPUs; on 8 GPUs use e.g. TP1xPCP8 or TP4xPCP2."),
        source="config/parallel.py:1053; vllm#47846 (TP8xPCP8=64)",
        confirmed="source",
        seen="config/parallel.py",
        log=(
            r"World size \((\d{1,9})\) is larger than the number of available GPUs \((\d{1,9})\)",
        ),
        engine=checks.world_size,
        tell=checks.ways_to_split,
    ),
    Rule(
        id="CP03",
        title="DCP on GQA needs TP > KV heads",
        severity="error",
        when="not MLA, DCP>1, TP <= num_key_value_heads",
        so="The engine refuses to start.",
        fix="Larger TP, or DCP=1.",
        source="config/model.py:1570",
        confirmed="source",
        seen="config/model.py",
        log=(r"Decode context parallelism for GQA/MQA requires",),
        engine=checks.dcp_needs_tp,
    ),
    Rule(
        id="CP04",
        title="DCP over its maximum",
        severity="error",
        when="DCP > TP/num_key_value_heads (GQA)",
        so="The engine refuses to start.",
        fix="Lower DCP.",
        source="config/model.py",
        confirmed="source",
        seen="config/model.py",
        log=(
            (
                r"--decode-context-parallel-size` \((\d+)\) exceeds the maximum"
                r" supported value \((\d+)\)"
            ),
        ),
        engine=checks.dcp_maximum,
    ),
    Rule(
        id="CP05",
        title="TP % DCP",
        severity="error",
        when="PCP = 1 and TP % DCP != 0",
        so="The engine refuses to start.",
        fix="DCP divides TP.",
        source="config/parallel.py",
        confirmed="executed",
        seen="config/parallel.py",
        log=(r"tp_size=\d+ must be divisible by dcp_size=\d+",),
        engine=checks.dcp_divides,
    ),
    Rule(
        id="CP06",
        title="PCP/DCP shape",
        severity="error",
        when="PCP > 1 and DCP not 1, PCP or TP x PCP",
        so="The engine refuses to start.",
        fix="DCP in the listed sizes.",
        source="config/parallel.py",
        confirmed="executed",
        seen="config/parallel.py",
        log=(r"When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full",),
        engine=checks.pcp_dcp,
    ),
    Rule(
        id="CP07",
        title="PCP on model runner V1",
        severity="error",
        when=("PCP>1 with VLLM_USE_V2_MODEL_RUNNER=0 (or a model that falls back to V1)"),
        so="The engine refuses to start.",
        fix="Use V2 runner; else PCP=1.",
        source="config/vllm.py:705-739",
        confirmed="source",
        seen="config/vllm.py",
        log=(r"Model Runner V1 does not support: .*prefill context parallel",),
        engine=checks.pcp_runner,
    ),
    Rule(
        id="CP08",
        title="PCP model limits",
        severity="error",
        when=(
            "PCP>1 and model not MLA; PCP+DCP not sparse MLA; draft other than "
            "single-module MTP/DSpark; sparse MLA with cudagraphs"
        ),
        so="The engine refuses to start.",
        fix=(
            "PCP only for MLA (DeepSeek/Kimi-K2/GLM-5 kind); for sparse MLA add "
            "-cc.cudagraph_mode=NONE."
        ),
        source="v1/worker/gpu/pcp_manager.py:135-176",
        confirmed="source",
        seen="v1/worker/gpu/pcp_manager.py",
        log=(
            r"MRV2 PCP currently supports MLA models only",
            r"MRV2 PCP \+ DCP supports sparse MLA models only",
            r"MRV2 PCP only supports DSpark or single-module MTP",
            r"MRV2 sparse MLA PCP does not support CUDA graphs yet",
        ),
        engine=checks.pcp_model,
    ),
    Rule(
        id="CP09",
        title="NIXL + PCP on decode / kv_both",
        severity="error",
        when="PCP>1 and kv_role in {kv_consumer,kv_both}",
        so="The engine refuses to start.",
        fix="PCP only on the prefill engine, role kv_producer.",
        source=("distributed/kv_transfer/kv_connector/v1/nixl/connector.py:107-114; vllm#52779"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/connector.py",
        log=(r"NixlConnector PCP currently supports kv_producer only",),
        engine=checks.pcp_role,
    ),
    Rule(
        id="CP10",
        title="NIXL + PCP + DCP shape",
        severity="error",
        when="PCP>1 and DCP>1 and (TP!=1 or DCP!=PCP)",
        so="The engine refuses to start.",
        fix=("TP=1, DCP==PCP on the producer; if P is PCP without DCP then D must not use DCP."),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/connector.py:115-123, "
            "base_worker.py:932-945"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/connector.py",
        log=(
            r"NixlConnector PCP\+DCP requires TP1 with DCP spanning",
            r"Remote NixlConnector PCP\+DCP does not span",
            r"Replicated PCP cannot be paired with a DCP-sharded NIXL peer",
        ),
        engine=checks.pcp_dcp_nixl,
    ),
    Rule(
        id="CP11",
        title="NIXL + DCP must be 1 or the whole TP group",
        severity="error",
        when="kv_connector=NixlConnector and DCP not 1 and not max(TP, PCP)",
        so="The engine refuses to start.",
        fix="DCP=1, or DCP = max(TP, PCP).",
        source="config/vllm.py:1483-1486; vllm#28476, #41623",
        confirmed="executed",
        seen="config/vllm.py",
        log=(
            (
                r"decode_context_parallel_size=\d+ must be 1 or equal to the NIXL"
                r" transfer parallel size"
            ),
        ),
        engine=checks.dcp_nixl,
    ),
    Rule(
        id="CP12",
        title="kv_connector spelt NixlPullConnector skips the DCP checks",
        severity="warn",
        when=(
            "kv_connector == NixlPullConnector and DCP>1 (config accepts, interleave not adjusted)"
        ),
        so="A check that would have caught a wrong combination does not run.",
        fix="Write NixlConnector; apply CP11 anyway.",
        source="config/vllm.py:3227 (has_connector compares the exact name)",
        rank=AFTERMATH,
        engine=checks.pull_spelling,
    ),
    Rule(
        id="CP13",
        title="PD + DCP on a non-MLA model",
        severity="error",
        when="KV connector + DCP>1 + not MLA",
        so="The engine refuses to start.",
        fix="DCP=1 with GQA models in PD.",
        source="config/vllm.py:1488",
        confirmed="source",
        seen="config/vllm.py",
        log=(r"PD with decode_context_parallel_size > 1 is only supported for MLA models",),
        engine=checks.dcp_not_mla,
    ),
    Rule(
        id="CP14",
        title="push connector + DCP",
        severity="error",
        when="NixlPushConnector and DCP>1",
        so="The engine refuses to start.",
        fix="Pull connector or DCP=1.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/connector.py:383",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/connector.py",
        log=(r"NixlPushConnector does not support decode_context_parallel_size > 1",),
        engine=checks.dcp_push,
    ),
    Rule(
        id="CP15",
        title="DCP sizes of P and D",
        severity="error",
        when="DCP(P), DCP(D) do not divide; or hybrid with different DCP",
        so="The engine refuses to start.",
        fix="Same DCP on both.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2427-2467",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            r"DCP sizes must divide one another",
            r"Hybrid MLA\+Mamba NIXL transfers require matching DCP sizes",
            r"DCP region pulls require matching logical and physical block sizes",
        ),
        pair=checks.dcp_pair,
    ),
    Rule(
        id="CP16",
        title="attention backend lacks CP",
        severity="error",
        when=("PCP/DCP with a backend without support, or MTP with cp_kv_cache_interleave_size>1"),
        so="The engine refuses to start.",
        fix=("Choose FlashAttention/FlashMLA/CUTLASS MLA... per message; interleave 1 with MTP."),
        source="v1/worker/cp_utils.py:37-53",
        confirmed="source",
        seen="v1/worker/cp_utils.py",
        log=(
            r"PCP requires attention backend support",
            r"to return the softmax LSE during decode",
            r"MTP with cp_kv_cache_interleave_size > 1 is not",
        ),
    ),
    Rule(
        id="CP17",
        title="external DP on a dense model",
        severity="error",
        when=("--data-parallel-external-lb, -hybrid-lb or -rank on a model without experts"),
        so="The engine refuses to start.",
        fix="For dense models start N independent servers behind the proxy.",
        source="config/parallel.py, engine/arg_utils.py",
        confirmed="executed",
        seen="engine/arg_utils.py",
        log=(
            r"Non-MoE models do not support external data parallel mode",
            r"`--data-parallel-external-lb` requires a data-parallel rank",
        ),
        engine=checks.external_lb,
    ),
    Rule(
        id="CP18",
        title="DP engines disagree",
        severity="error",
        when="multi-node DP with different argv",
        so="The engine refuses to start.",
        fix="Same argv on all DP ranks.",
        source="v1/engine/utils.py:1504",
        confirmed="source",
        seen="v1/engine/utils.py",
        log=(r"Configuration mismatch detected for engine",),
    ),
    Rule(
        id="CP19",
        title="tensor parallelism beyond any node",
        severity="warn",
        when="--tensor-parallel-size above 72, and nothing is known of the devices",
        so="Every layer waits for ranks on several hosts, if there are as many devices at all.",
        fix="TP of at most one NVLink domain's GPUs; --pipeline-parallel-size across hosts.",
        source="GB200 NVL72 joins 72 GPUs, the most of any node",
        engine=checks.beyond_sense,
    ),
)
