"""Speculative decoding: MTP, EAGLE, drafts."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.service import Service
from twolane.diagnosis.vllm_facts import facts

AT = "speculative_config"
GRAPH_TOKENS = 512  # default ceiling of captured sizes below Blackwell (config/vllm.py)
USELESS = 0.20  # acceptance that costs more than it gives; healthy MTP shows 0.5 to 0.9
ENOUGH = 200  # drafted tokens before a share means anything
NEEDS_SYNC = ("ngram", "suffix", "medusa", "mlp_speculator", "custom_class")


def no_mtp(side: Side) -> Iterator[Hit]:
    """The config mentions no MTP layer anywhere, and no other model is to draft."""
    config = side.deployment.model_config
    if side.method != "mtp" or side.shape is None or (side.spec or {}).get("model"):
        return
    text = str(config).lower()
    if not any(word in text for word in ("nextn", "mtp", "n_predict")):
        yield Hit("method mtp, no MTP layers in config.json", AT)


def old_method(side: Side) -> Iterator[Hit]:
    method = (side.spec or {}).get("method")
    if isinstance(method, str) and method != "mtp" and method in facts().mtp_methods:
        yield Hit(f"method {method}", AT)


def many_drafts(side: Side) -> Iterator[Hit]:
    if side.method == "mtp" and (side.drafts or 0) > 1:
        yield Hit(f"num_speculative_tokens {side.drafts}", AT)


def multiple(side: Side) -> Iterator[Hit]:
    layers = side.shape.mtp_layers if side.shape else 0
    drafts = side.drafts or 0
    if side.method == "mtp" and layers and drafts > layers and drafts % layers:
        yield Hit(f"num_speculative_tokens {drafts}, n_predict {layers}", AT)


def graph_sizes(side: Side) -> Iterator[Hit]:
    wide = (side.seqs or 0) * (1 + (side.drafts or 0))
    chosen = side.args.spelt.keys() & {"cudagraph_capture_sizes", "max_cudagraph_capture_size",
                                       "compilation_config", "enforce_eager"}  # fmt: skip
    if side.drafts and wide > GRAPH_TOKENS and not chosen and side.platform != "cpu":
        yield Hit(f"{side.seqs} x {1 + side.drafts} = {wide} tokens a step", "max_num_seqs")


def async_drafter(side: Side) -> Iterator[Hit]:
    if side.args.flag("async_scheduling") and side.method in NEEDS_SYNC:
        yield Hit(f"--async-scheduling with {side.method}", "async_scheduling")


def useless_draft(service: Service) -> Iterator[Hit]:
    share = service.acceptance
    if share is not None and share < USELESS and service.drafted >= ENOUGH:
        value = f"{share:.1%} of {service.drafted:.0f} drafted tokens accepted"
        fix = (
            f"The draft is useless here ({share:.0%}): check that prefill and decode share "
            "--speculative-config, else turn it off."
        )
        yield Hit(value, "spec", fix=fix)


def draft_once(prefill: Side, decode: Side) -> Iterator[Hit]:
    if prefill.nixl and decode.nixl and prefill.draft_has_kv != decode.draft_has_kv:
        one = prefill if prefill.draft_has_kv else decode
        yield Hit(f"{one.method} on {one.name} alone", AT, side=one.name)
    elif prefill.nixl and decode.nixl and prefill.draft_has_kv and prefill.method != decode.method:
        yield Hit(f"{prefill.method} on prefill, {decode.method} on decode", AT)


RULES = (
    Rule(
        id="SPEC01",
        title="MTP on a model without MTP weights",
        severity="error",
        when="method mtp and no num_nextn_predict_layers/mtp layers in config.json",
        so="The engine refuses to start.",
        fix="Remove speculative_config or use a checkpoint with MTP.",
        source="config/speculative.py:1390",
        confirmed="executed",
        seen="config/speculative.py",
        log=(r"Unsupported speculative method: 'mtp'",),
        engine=no_mtp,
    ),
    Rule(
        id="SPEC02",
        title="old per-model method name",
        severity="warn",
        when="method like qwen3_next_mtp, deepseek_mtp",
        so="Drafting costs more than it gives.",
        fix='"method":"mtp"',
        source="config/speculative.py:1142",
        confirmed="executed",
        seen="config/speculative.py",
        rank=AFTERMATH,
        log=(r"method `\w+` is deprecated and replaced with mtp",),
        engine=old_method,
    ),
    Rule(
        id="SPEC03",
        title="one MTP layer drafts several positions",
        severity="info",
        when=(
            "num_speculative_tokens > 1 with MTP (vLLM warns whatever the number of MTP "
            "layers; step3p5_mtp and inkling_mtp excepted)"
        ),
        so="Acceptance falls with every further position.",
        fix="Expect falling acceptance per position; measure 1,2,3.",
        source="config/speculative.py:1381",
        confirmed="source",
        seen="config/speculative.py",
        rank=AFTERMATH,
        log=(r"will run multiple times of forward on same MTP layer",),
        engine=many_drafts,
    ),
    Rule(
        id="SPEC04",
        title="not divisible by n_predict",
        severity="error",
        when="num_speculative_tokens above n_predict and no multiple of it",
        so="The engine refuses to start.",
        fix="multiple of n_predict",
        source="config/speculative.py:1498",
        confirmed="source",
        seen="config/speculative.py",
        log=(r"num_speculative_tokens:\d+ must be divisible by n_predict=\d+",),
        engine=multiple,
    ),
    Rule(
        id="SPEC05",
        title="capture list too small for spec decode",
        severity="info",
        when=(
            "max_num_seqs*(1+num_spec) > max_cudagraph_capture_size (default ceiling 512 "
            "tokens, 1024 on B200)"
        ),
        so="Acceptance falls with every further position.",
        fix=(
            "Lower max_num_seqs or raise the capture size; beyond it decode runs without "
            "graphs (30-50% slower, steps in ITL)."
        ),
        source=(
            "config/vllm.py:2519; vllm#54933 (42 truncated to 40: 25 -> 133 tok/s once "
            "kept), #57355, #37865, #51509, #46329 (comment)"
        ),
        confirmed="source",
        seen="config/vllm.py",
        rank=AFTERMATH,
        log=(r"Truncating max_cudagraph_capture_size to (\d+)",),
        engine=graph_sizes,
    ),
    Rule(
        id="SPEC06",
        title="async scheduling asked for with a drafter that lacks it",
        severity="error",
        when=(
            "--async-scheduling given with a drafter outside EAGLE, MTP, draft model, "
            "n-gram GPU, DSpark and DFlash (without the option vLLM turns it off silently)"
        ),
        so="The engine refuses to start.",
        fix="Drop --async-scheduling, or use one of those drafters.",
        source="config/vllm.py:1571",
        confirmed="executed",
        seen="config/vllm.py",
        log=(r"Currently, async scheduling is only supported",),
        engine=async_drafter,
    ),
    Rule(
        id="SPEC07",
        title="MTP acceptance collapses on D",
        severity="warn",
        when=(
            "Avg Draft acceptance rate < 20% on D while an aggregated server has 60-90% "
            "(draft KV not transferred)"
        ),
        so="Drafting costs more than it gives.",
        fix=("Same speculative_config on P and D; else compare with ngram; file upstream."),
        source="vllm#54926; vllm-ascend#16980 (0%); noonghunna/club-3090#1052",
        rank=AFTERMATH,
        load=useless_draft,
    ),
    Rule(
        id="SPEC08",
        title="MTP on D only",
        severity="error",
        when=(
            "speculative_config(mtp/eagle/draft) on one side only -> PAIR01 at first "
            "request, not at start-up"
        ),
        so=("The compatibility hash differs: the first request fails, not the start-up."),
        fix="Copy it to P.",
        source="executed hash; vllm#49230",
        pair=draft_once,
    ),
)
