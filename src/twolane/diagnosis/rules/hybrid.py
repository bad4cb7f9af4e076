"""Models with recurrent state (Mamba, linear attention) beside attention."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.kv_memory import MARGIN, kv_need
from twolane.diagnosis.rule import Context, Hit, Match, Rule
from twolane.diagnosis.rules.memory import kv_available, state_value
from twolane.diagnosis.vllm_facts import facts

LAYOUT = "VLLM_SSM_CONV_STATE_LAYOUT"


def state_layout(side: Side) -> Iterator[Hit]:
    said = side.env.get(LAYOUT)
    by_itself = side.platform == "cpu" and said is None  # platforms/cpu.py sets DS
    if side.stateful and side.nixl and said in (None, "SD") and not by_itself:
        yield Hit(f"{LAYOUT} {'is not set' if said is None else '= ' + said}", LAYOUT)


def state_layout_value(side: Side) -> Iterator[Hit]:
    said = side.env.get(LAYOUT)
    if said is not None and said not in facts().variable_choices[LAYOUT]:
        yield Hit(f"{LAYOUT}={said}", LAYOUT)


def manager_disabled(side: Side) -> Iterator[Hit]:
    attention = side.shape is not None and bool(side.shape.full or side.shape.sliding)
    if side.stateful and attention and side.args.flag("disable_hybrid_kv_cache_manager"):
        yield Hit("--disable-hybrid-kv-cache-manager", "disable_hybrid_kv_cache_manager")


def mamba_block(side: Side) -> Iterator[Hit]:
    said = side.args.integer("mamba_block_size")
    if said is not None and said != side.context and not side.caching:
        yield Hit(f"--mamba-block-size {said}", "mamba_block_size")


def align_unchunked(side: Side) -> Iterator[Hit]:
    if side.stateful and side.caching and not side.chunked:
        yield Hit("--no-enable-chunked-prefill", "enable_chunked_prefill")


def unchunked(side: Side) -> Iterator[Hit]:
    if not side.chunked:
        yield Hit("--no-enable-chunked-prefill", "enable_chunked_prefill")


def state_blocks(side: Side) -> Iterator[Hit]:
    """Every running sequence holds one state: do as many fit as may run?"""
    available, shape = kv_available(side), side.shape
    if available is None or shape is None or side.seqs is None or side.platform == "cpu":
        return
    one = kv_need(shape, 1, tp=side.tp, state_value=state_value(side)).state
    if one and side.seqs * one > available * MARGIN:
        fit = available // one
        yield Hit(f"max_num_seqs={side.seqs}, memory for about {fit}", "max_num_seqs",
                  fix=f"--max-num-seqs {max(1, fit)} at most, or more KV memory.")  # fmt: skip


def seqs_that_fit(found: list[Match], _: Context) -> str:
    blocks = found[0].groups[1] if len(found[0].groups) > 1 else "what fits"
    return f"--max-num-seqs {blocks} at most (better: what clients really use), or more KV memory."


def state_pages(prefill: Side, decode: Side) -> Iterator[Hit]:
    """Whether TP splits state and attention pages in the same ratio on both sides."""
    shape = decode.shape
    if shape is None or not shape.stateful or not shape.kv_heads or not shape.full:
        return
    if not (prefill.nixl and decode.nixl and prefill.caching and decode.caching):
        return
    spread = [ceil(shape.kv_heads / side.tp) * side.tp for side in (prefill, decode)]
    if spread[0] != spread[1]:
        yield Hit(f"TP {prefill.tp} and {decode.tp} with {shape.kv_heads} KV heads",
                  "tensor_parallel_size")  # fmt: skip


def replayssm(side: Side) -> Iterator[Hit]:
    if side.args.flag("use_replayssm") and side.transfer:
        yield Hit("--use-replayssm", "use_replayssm")


RULES = (
    Rule(
        id="HYB01",
        title="hybrid SSM + NIXL needs DS conv layout",
        severity="error",
        when=(
            "the model has recurrent layers (Mamba, linear attention), a Nixl connector "
            "(also inside MultiConnector), and VLLM_SSM_CONV_STATE_LAYOUT is not DS; on the"
            " CPU vLLM sets DS itself, so only an explicit SD fails there"
        ),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix=("Set VLLM_SSM_CONV_STATE_LAYOUT=DS on every engine of the split, prefill and decode."),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:606-609; "
            "platforms/cpu.py:424-440; vllm#54387; 1CatAI/1Cat-vLLM#555"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"3-read Mamba conv transfer requires DS conv state layout",),
        engine=state_layout,
    ),
    Rule(
        id="HYB02",
        title="bad VLLM_SSM_CONV_STATE_LAYOUT value",
        severity="error",
        when="value not exactly SD or DS (case-sensitive)",
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="Use upper-case DS.",
        source="envs.py (validated on first use, i.e. after the weights are loaded)",
        confirmed="source",
        seen="envs.py",
        log=(r"Invalid value '\w+' for VLLM_SSM_CONV_STATE_LAYOUT",),
        engine=state_layout_value,
    ),
    Rule(
        id="HYB03",
        title="hybrid model with HMA disabled",
        severity="error",
        when=(
            "hybrid SSM model and --disable-hybrid-kv-cache-manager (accepted by config, "
            "dies when KV caches are made; on the NIXL path it can also be the bare `assert"
            " self._is_hma_required`)"
        ),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix=(
            "Remove --disable-hybrid-kv-cache-manager (old tutorials for PD have it because"
            " NIXL once lacked HMA)."
        ),
        source=("v1/core/kv_cache_utils.py:1760; base_worker.py:601; dynamo#10741, vllm#42024"),
        confirmed="source",
        seen="v1/core/kv_cache_utils.py",
        log=(
            r"Failed to promote local KV cache specs to one unified type",
            r"Hybrid KV cache manager is disabled but failed to convert the KV cache specs",
            r"assert self\._is_hma_required",
        ),
        engine=manager_disabled,
    ),
    Rule(
        id="HYB04",
        title="--mamba-block-size without prefix caching",
        severity="error",
        when=("--mamba-block-size other than max_model_len, and --no-enable-prefix-caching"),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="Drop one of the two.",
        source="config/vllm.py:3314",
        confirmed="executed",
        seen="config/vllm.py",
        log=(r"--mamba-block-size can only be set with --enable-prefix-caching",),
        engine=mamba_block,
    ),
    Rule(
        id="HYB05",
        title="mamba align without chunked prefill",
        severity="error",
        when=(
            "hybrid + prefix caching (default -> mamba_cache_mode=align) + "
            "--no-enable-chunked-prefill"
        ),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="Keep chunked prefill, or --no-enable-prefix-caching.",
        source="model_executor/models/config.py:695",
        confirmed="source",
        seen="model_executor/models/config.py",
        log=(r"Chunked prefill is required for mamba cache mode 'align'",),
        engine=align_unchunked,
    ),
    Rule(
        id="HYB06",
        title="more sequences than Mamba blocks",
        severity="error",
        when=(
            "recurrent state, full CUDA graphs, and max_num_seqs above the cache blocks "
            "that the KV memory gives (known from --kv-cache-memory-bytes or "
            "VLLM_CPU_KVCACHE_SPACE)"
        ),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix=(
            "--max-num-seqs <= second number (better: what the client really uses, e.g. "
            "64-256), or more KV memory."
        ),
        source="config/compilation.py:1510-1524; vllm#49064 (1024 > 969, H100)",
        confirmed="source",
        seen="config/compilation.py",
        log=(r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)",),
        engine=state_blocks,
        tell=seqs_that_fit,
    ),
    Rule(
        id="HYB07",
        title="attention block inflated by Mamba page",
        severity="info",
        when=(
            "hybrid: vLLM grows attention block so that an attention page >= a Mamba page "
            "(can be 528..8320 tokens)"
        ),
        so="Short prompts never hit the prefix cache and take a whole block each.",
        fix=(
            "Report block: prompts shorter than one block never hit the prefix cache (block"
            " 8320 > max_model_len 4096 => cache inert), short requests still take a whole "
            "block, P/D must show the same number."
        ),
        source="platforms/interface.py:1097; vllm#48401, #48402, #54458",
        confirmed="source",
        seen="platforms/interface.py",
        rank=AFTERMATH,
        log=(
            (
                r"Setting attention block size to (\d+) tokens to ensure that attention"
                r" page size is >= mamba page size"
            ),
        ),
    ),
    Rule(
        id="HYB08",
        title="hybrid external-KV + align assertion (older)",
        severity="error",
        when=(
            "recurrent state, prefix caching and a KV connector on a vLLM before 0.32 "
            "(neither text is in 0.32)"
        ),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="Upgrade, or --no-enable-prefix-caching on the decode engine.",
        source="vllm#43508; dynamo#12197",
        log=(
            r"External KV connector is not verified yet",
            r"SSM can only have one local block",
        ),
    ),
    Rule(
        id="HYB09",
        title="physical blocks per logical differ with APC",
        severity="error",
        when=(
            "hybrid PD, prefix caching on, P and D end with different attention block sizes"
            " (different TP/DP -> different mamba page)"
        ),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="Same TP on both sides, or --no-enable-prefix-caching on both.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:2468-2480",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            (
                r"Prefix caching with heterogeneous physical_blocks_per_logical is not"
                r" supported for Mamba hybrid models"
            ),
        ),
        pair=state_pages,
    ),
    Rule(
        id="HYB10",
        title="conv transfer for unsupported SSM type",
        severity="error",
        when=(
            "hybrid model whose state is not Mamba1/Mamba2/GDN (e.g. short-conv, lightning "
            "attn) with NIXL"
        ),
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="Run aggregated; NIXL cannot split this state.",
        source="kv_connector/v1/ssm_conv_transfer_utils.py:134",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/ssm_conv_transfer_utils.py",
        log=(r"Conv transfer only supports",),
    ),
    Rule(
        id="HYB11",
        title="ReplaySSM + KV connector",
        severity="error",
        when="--use-replayssm and --kv-transfer-config",
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="Remove --use-replayssm.",
        source="config/vllm.py:3410",
        confirmed="source",
        seen="config/vllm.py",
        log=(r"--use-replayssm is incompatible with KV connectors",),
        engine=replayssm,
    ),
    Rule(
        id="HYB12",
        title="chunked prefill switched off on a model that needs it",
        severity="warn",
        when="--no-enable-chunked-prefill on any model that generates text",
        so=("vLLM does not support it officially: outputs and memory use may be wrong."),
        fix="Leave chunked prefill on.",
        source="engine/arg_utils.py:3005",
        confirmed="executed",
        seen="engine/arg_utils.py",
        rank=AFTERMATH,
        log=(r"This model does not officially support disabling chunked prefill",),
        engine=unchunked,
    ),
    Rule(
        id="HYB13",
        title="mamba page padding assert with spec decode",
        severity="error",
        when="hybrid + num_speculative_tokens>=2 + prefix caching",
        so="The engine dies at start-up, most often after the weights were loaded.",
        fix="num_speculative_tokens=1, or upgrade, or prefix caching off.",
        source="v1/kv_cache_interface.py:1068; vllm#57721, #39809",
        confirmed="source",
        seen="v1/kv_cache_interface.py",
        log=(r"assert self\.page_size_padded >= page_size",),
    ),
)
