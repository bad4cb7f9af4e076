"""A prefill and a decode engine that must agree."""

from __future__ import annotations

from twolane.diagnosis.findings import AFTERMATH, SYMPTOM
from twolane.diagnosis.rule import Rule
from twolane.diagnosis.rules import pair_checks as checks

RULES = (
    Rule(
        id="PAIR01",
        title="compatibility hash differs",
        severity="error",
        when=(
            "compare P and D: vLLM version, --model STRING (path vs repo id counts as "
            "different), dtype, --kv-cache-dtype (explicit bfloat16 != auto), attention "
            "backend, KV layout, HMA on/off, connector pull/push, MTP/EAGLE present on one "
            "side only. NOT hashed: role, block size, TP, max_model_len, ngram, prefix "
            "caching, num_speculative_tokens"
        ),
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix=(
            "Make these settings textually identical; do not set "
            "enforce_handshake_compat=false to get past it."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:1073-1092; "
            "vllm#49230, #48221; dynamo#10027, #12821"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"NIXL compatibility hash mismatch\. Local: (\w+), Remote: (\w+)",),
        pair=checks.hash_factors,
    ),
    Rule(
        id="PAIR02",
        title="engine id mismatch",
        severity="error",
        when=(
            "kv_transfer_params (from the proxy) name engine A but host:port answers as "
            "engine B: VLLM_NIXL_SIDE_CHANNEL_HOST unset (default 'localhost', so D asks "
            "itself), P restarted, two P share a port, wrong DP rank offset"
        ),
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix=(
            "Set VLLM_NIXL_SIDE_CHANNEL_HOST to the P machine's reachable IP; unique ports;"
            " restart D/proxy after P restarts."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:1115; vllm#27083; "
            "srt-slurm#158; vllm#49238"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        rank=SYMPTOM,
        log=(r"Remote NIXL agent engine ID mismatch\. Expected (\S+?),\s*received (\S+)",),
    ),
    Rule(
        id="PAIR03",
        title="block sizes do not divide (D must be a multiple of P)",
        severity="error",
        when=("block_size(D) % block_size(P) != 0 (hybrids: after inflation, see HYB07)"),
        so=(
            "The server stays healthy while every transfer fails; answers come from "
            "recomputed or wrong KV."
        ),
        fix=(
            "Same --block-size on both. Note the server stays 'healthy' and every request "
            "is decoded from recomputed/garbage KV or fails."
        ),
        source=("kv_transfer/kv_connector/utils.py:516; vllm#42895 (GSM8K 0.031 with /health 200)"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/utils.py",
        log=(r"Local block size (\d+) is not divisible by remote block size (\d+)",),
        pair=checks.blocks_divide,
    ),
    Rule(
        id="PAIR04",
        title="TP sizes do not divide",
        severity="error",
        when="neither TP(P)%TP(D)==0 nor TP(D)%TP(P)==0",
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix="Choose TP sizes where one divides the other.",
        source="kv_connector/utils.py:503-511",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/utils.py",
        log=(
            r"Local tensor parallel size \d+ is not divisible by remote tensor parallel size",
            r"Remote tensor parallel size \d+ is not divisible by local tensor parallel size",
        ),
        pair=checks.tp_divide,
    ),
    Rule(
        id="PAIR05",
        title="P TP > D TP with replicated KV heads (empty AssertionError)",
        severity="error",
        when="not MLA, not Mamba, TP(P) > TP(D) and TP(P) > num_key_value_heads",
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix=(
            "TP(P) <= num_key_value_heads or TP(P) <= TP(D). The exception text is empty: "
            "match function + source line (Python 3.12 prints only 'assert not (', "
            "3.11/3.13 print the condition; all executed)."
        ),
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2448-2452",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            r"tp_ratio < 0 and self\.transfer_topo\.is_kv_replicated\(remote_engine_id\)",
            r"in _validate_remote_agent_handshake\s+assert not \(",
        ),
        pair=checks.replicated_heads,
        over_lines="assert not (",
        tell=checks.tp_sizes,
    ),
    Rule(
        id="PAIR06",
        title="block size differs while TP(P) > TP(D)",
        severity="error",
        when="TP(P)>TP(D) and block sizes differ",
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix="Same block size.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2602",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"Different local/remote block sizes are not supported when P TP > D TP",),
        pair=checks.blocks_and_tp,
    ),
    Rule(
        id="PAIR07",
        title="KV layout differs (LBNHC vs LBHNC / NHD vs HND)",
        severity="error",
        when=(
            "VLLM_KV_CACHE_LAYOUT means another layout on one side (unset with NIXL means "
            "LBHNC = HND; NHD = LBNHC), not MLA, and not P LBHNC to D LBNHC with "
            "enable_permute_local_kv"
        ),
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix=(
            "Unset VLLM_KV_CACHE_LAYOUT on both sides (NIXL asks for LBHNC itself), or set "
            "the same."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2509-2516; "
            "vllm#46204, #37703"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"Heterogeneous TP expects same kv_cache_layout \(local (\w+), remote (\w+)\)",),
        pair=checks.layouts,
        tell=checks.layout_side,
    ),
    Rule(
        id="PAIR08",
        title="hetero TP with non-contiguous layout",
        severity="error",
        when="TP differ, not MLA, layout not block-contiguous",
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix="Use LBHNC (HND) on the prefill side.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2541-2546",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"Heterogeneous TP head-dimension splitting requires contiguous heads",),
        pair=checks.heads_contiguous,
    ),
    Rule(
        id="PAIR09",
        title="draft layers on one side only",
        severity="error",
        when=("MTP/EAGLE speculative_config on D, not on P (hash check off or old version)"),
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix=(
            "Same speculative_config on P and D (P does not draft, but must allocate the "
            "draft layers' KV)."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2573; vllm#48221, #54926"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"Number of KV layers must match between prefill and decode",),
    ),
    Rule(
        id="PAIR10",
        title="KV page size differs when replicated",
        severity="error",
        when="kv dtype/MLA page/backends differ",
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix="Same kv-cache-dtype, attention backend, block size.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2566-2613",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            r"KV cache sizes must match between P and D when replicated",
            r"SPLIT region \d+: remote P KV block_len",
            r"Hybrid MLA kernel-granularity block lengths must match",
        ),
    ),
    Rule(
        id="PAIR11",
        title="hetero block size + host buffer",
        severity="error",
        when="kv_buffer_device=cpu and block sizes differ",
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix="Same block size, or kv_buffer_device=cuda.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2487",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"Heterogeneous block sizes are not supported with host buffer",),
        pair=checks.blocks_and_host_buffer,
    ),
    Rule(
        id="PAIR12",
        title="push + hybrid attention: equal block sizes and TP(D)<=TP(P)",
        severity="error",
        when=(
            "NixlPushConnector + sliding-window/hybrid attention, block sizes differ or TP(D)>TP(P)"
        ),
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix="Match them.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2202-2210",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            r"Attention-HMA push requires identical P/D block sizes",
            r"Attention-HMA push does not support decode TP greater than",
        ),
        pair=checks.push_hybrid,
    ),
    Rule(
        id="PAIR13",
        title="num_speculative_tokens differ between P and D",
        severity="warn",
        when=("MTP on both, different num_speculative_tokens (hash equal, nothing is logged)"),
        so="Each side cuts the last prompt tokens differently.",
        fix=(
            "Same number on both sides: each side computes its own truncation of the last "
            "prompt tokens."
        ),
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py:383-431",
        rank=AFTERMATH,
        pair=checks.draft_counts,
    ),
    Rule(
        id="PAIR14",
        title="wheel/protocol differ",
        severity="error",
        when="P and D run different vLLM/NIXL versions",
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix="Same image on both sides.",
        source=("distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:1062; llm-d#355"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            r"Failed to decode NixlHandshakePayload",
            r"Failed to decode NixlAgentMetadata",
        ),
    ),
    Rule(
        id="PAIR15",
        title="handshake unreachable",
        severity="error",
        when=(
            "D cannot reach side channel host:port within 5 s (firewall, container network,"
            " P dead, P blocked, localhost across machines)"
        ),
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix=(
            "From D's namespace: TCP connect to remote_host:remote_port shown in the "
            "Context dict. Fix host/port/network."
        ),
        source=("distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:1040-1046,1261"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        rank=SYMPTOM,
        log=(r"zmq\.error\.Again: Resource temporarily unavailable",),
        tell=checks.unreachable,
    ),
    Rule(
        id="PAIR16",
        title="block_size set on one side only",
        severity="warn",
        when="--block-size in argv of one side only",
        so="Nothing reports it; one side works with other numbers than its peer.",
        fix="Put shared settings in one YAML anchor used by both roles.",
        source="hash does not contain block size (executed)",
        rank=AFTERMATH,
        pair=checks.block_once,
    ),
    Rule(
        id="PAIR17",
        title="more decode blocks than prefill blocks",
        severity="error",
        when=(
            "proxy changed the prompt between P and D (appended a token / different chat "
            "template / different tokenizer), or P truncated"
        ),
        so=("Both engines start and look healthy; the first request that needs a transfer fails."),
        fix=(
            "Proxy must send the identical body to P and D (except max_tokens and "
            "kv_transfer_params)."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:3355,3413; vllm#50558"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            r"Decode allocated more KV pages than the prefill worker supplied",
            r"Remote KV pages do not cover the requested range",
        ),
    ),
    Rule(
        id="PAIR18",
        title="KV connector on one side only",
        severity="error",
        when="a prefill and a decode engine, --kv-transfer-config in argv of one side only",
        so="Both start and answer; no KV moves, and the decode engine prefills every prompt again.",
        fix=(
            "Give both sides --kv-transfer-config with the same kv_connector: kv_role kv_producer "
            "on prefill, kv_consumer on decode."
        ),
        source="PERF03 is what it looks like afterwards",
        pair=checks.connector_once,
    ),
)
