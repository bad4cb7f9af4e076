"""Attention backends, KV cache dtypes and layouts."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.vllm_facts import facts

LAYOUT = "VLLM_KV_CACHE_LAYOUT"


def layout_value(side: Side) -> Iterator[Hit]:
    said = side.env.get(LAYOUT)
    if said is not None and said not in facts().variable_choices[LAYOUT]:
        yield Hit(f"{LAYOUT}={said}", LAYOUT)


def cache_dtype(side: Side) -> Iterator[Hit]:
    for problem in side.args.problems:
        if problem.option == "--kv-cache-dtype" and problem.kind == "choice":
            yield Hit(f"--kv-cache-dtype {problem.value}", "kv_cache_dtype")


def nvfp4(side: Side) -> Iterator[Hit]:
    said = side.args.text("kv_cache_dtype") or ""
    if side.mla and said.startswith("nvfp4") and not said.endswith("_ds_mla"):
        yield Hit(f"--kv-cache-dtype {said} on an MLA model", "kv_cache_dtype")


def fp8_backends(prefill: Side, decode: Side) -> Iterator[Hit]:
    fp8 = (decode.args.text("kv_cache_dtype") or "").startswith("fp8")
    backends = [side.args.text("attention_backend") for side in (prefill, decode)]
    if fp8 and prefill.nixl and decode.nixl and backends[0] != backends[1]:
        yield Hit(f"fp8 KV with {backends[0]} and {backends[1]}", "attention_backend")


RULES = (
    Rule(
        id="ATTN01",
        title="attention backend invalid",
        severity="error",
        when=(
            "--attention-backend given and not valid for head size / dtype / kv dtype / "
            "block size / compute capability"
        ),
        so=("The engine refuses to start or dies while it chooses an attention backend."),
        fix="Drop the option (automatic choice) or follow the reason.",
        source="platforms/cuda.py:436",
        confirmed="source",
        seen="platforms/cuda.py",
        log=(r"Selected backend (\S+) is not valid for this configuration\. Reason: (.+)",),
    ),
    Rule(
        id="ATTN02",
        title="no valid backend",
        severity="error",
        when=("combination of kv dtype/block size/head size/sinks unsupported on this GPU"),
        so=("The engine refuses to start or dies while it chooses an attention backend."),
        fix=("Read the per-backend reasons; usually --kv-cache-dtype or --block-size."),
        source="platforms/cuda.py:471",
        confirmed="source",
        seen="platforms/cuda.py",
        log=(r"No valid attention backend found for \S+",),
    ),
    Rule(
        id="ATTN03",
        title="block size cost a faster backend",
        severity="warn",
        when="--block-size set",
        so="It runs slower, or answers may differ between the two sides.",
        fix="Remove --block-size.",
        source="platforms/cuda.py:497",
        confirmed="source",
        seen="platforms/cuda.py",
        rank=AFTERMATH,
        log=(r"--block-size \d+ precluded higher-priority backend\(s\)",),
    ),
    Rule(
        id="ATTN04",
        title="no common kernel block size",
        severity="error",
        when="hybrid/multi-backend + --block-size",
        so=("The engine refuses to start or dies while it chooses an attention backend."),
        fix="Remove --block-size (let vLLM align).",
        source="v1/worker/utils.py:555; platforms/interface.py:741,821",
        confirmed="source",
        seen="v1/worker/utils.py",
        log=(
            r"No common block size for \d+",
            r"share no supported KV cache block size",
            r"Aligned KV cache block size \d+ is not supported by",
        ),
    ),
    Rule(
        id="ATTN05",
        title="VLLM_KV_CACHE_LAYOUT invalid",
        severity="error",
        when="value outside the list (LBNHC LBHNC LHBNC NHD HND BLHNC BLNHC BHLNC)",
        so=("The engine refuses to start or dies while it chooses an attention backend."),
        fix=(
            "Unset it; the connector asks for what it needs. The env beats the connector's request."
        ),
        source="envs.py; v1/attention/backends/utils.py:331",
        confirmed="source",
        seen="v1/attention/backends/utils.py",
        log=(
            r"Invalid value '\w+' for VLLM_KV_CACHE_LAYOUT",
            r"VLLM_KV_CACHE_LAYOUT=\w+ does not satisfy every",
        ),
        engine=layout_value,
    ),
    Rule(
        id="ATTN06",
        title="kv-cache-dtype typo",
        severity="error",
        when="--kv-cache-dtype fp16 etc.",
        so=("The engine refuses to start or dies while it chooses an attention backend."),
        fix="auto | bfloat16 | fp8 | fp8_e4m3 | fp8_e5m2 | ...",
        source="engine/arg_utils.py",
        confirmed="executed",
        seen="config/cache.py",
        log=(r"argument --kv-cache-dtype: invalid choice",),
        engine=cache_dtype,
    ),
    Rule(
        id="ATTN07",
        title="nvfp4 KV + MLA",
        severity="error",
        when="--kv-cache-dtype nvfp4* other than nvfp4_ds_mla, on an MLA model",
        so=("The engine refuses to start or dies while it chooses an attention backend."),
        fix="fp8.",
        source="config/vllm.py:3297",
        confirmed="source",
        seen="config/vllm.py",
        log=(r"nvfp4 KV cache is not supported with MLA",),
        engine=nvfp4,
    ),
    Rule(
        id="ATTN08",
        title="fp8 KV in a hybrid PD split",
        severity="warn",
        when="hybrid/GQA + --kv-cache-dtype fp8 + PD + different backends on P and D",
        so="It runs slower, or answers may differ between the two sides.",
        fix=(
            "Compare answers with bf16 KV first; same backend and version both sides; "
            "calibrated scales in the checkpoint."
        ),
        source="vllm#42179, #54035",
        rank=AFTERMATH,
        pair=fp8_backends,
    ),
)
