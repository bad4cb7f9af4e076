"""Token budget, sequences and context length."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.service import Service

BUDGET, LENGTH = "max_num_batched_tokens", "max_model_len"
HUGE_BUDGET = 65_536  # from here on, activations of the profiling step dominate (vllm#15446)
FALL = 5.0  # a stream's rate in quiet intervals over that beside a prefill (docs/how-we-measure)
HELD = 0.1  # seconds: the stall that a reader hardly notices, where the deployment names none


def over_length(side: Side) -> tuple[int, int] | None:
    """(asked, derived) where the context asked for is longer than the model's."""
    asked, shape = side.args.integer(LENGTH), side.shape
    if asked is None or shape is None or shape.positions is None:
        return None
    over = asked > shape.positions and (shape.longer is None or asked > shape.longer)
    return (asked, shape.positions) if over else None


def silenced(side: Side) -> bool:
    return side.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0").lower() in ("1", "true")


def too_long(side: Side) -> Iterator[Hit]:
    over = over_length(side)
    if over and not silenced(side):
        yield Hit(f"--max-model-len {over[0]}, the model has {over[1]}", LENGTH)


def too_long_silenced(side: Side) -> Iterator[Hit]:
    over = over_length(side)
    if over and silenced(side):
        yield Hit(f"--max-model-len {over[0]}, the model has {over[1]}", LENGTH)


def budget_below_context(side: Side) -> Iterator[Hit]:
    if not side.chunked and side.budget and side.context and side.budget < side.context:
        yield Hit(f"budget {side.budget}, context {side.context}, no chunked prefill", BUDGET)


def budget_below_seqs(side: Side) -> Iterator[Hit]:
    if side.budget and side.seqs and side.budget < side.seqs:
        yield Hit(f"budget {side.budget}, max_num_seqs {side.seqs}", BUDGET)


def budget_unusable(side: Side) -> Iterator[Hit]:
    if side.budget and side.seqs and side.context and side.budget > side.seqs * side.context:
        yield Hit(f"budget {side.budget} > {side.seqs} x {side.context}", BUDGET)


def threshold(side: Side) -> Iterator[Hit]:
    said = side.args.integer("long_prefill_token_threshold")
    if said and side.context and said > side.context:
        yield Hit(f"{said} > {side.context}", "long_prefill_token_threshold")


def budget_huge(side: Side) -> Iterator[Hit]:
    if side.budget and side.budget >= HUGE_BUDGET:
        yield Hit(f"--max-num-batched-tokens {side.budget}", BUDGET)


def stall(side: Side) -> Iterator[Hit]:
    """The stall that the budget will cause, where the prefill rate is known."""
    rate, budget = side.deployment.prefill_tok_s, side.budget
    if side.role != "both" or not rate or not budget or rate <= 0:
        return
    held = (side.deployment.stall_ms or HELD * 1e3) / 1e3
    if budget / rate > held:
        fits = int(rate * held)
        yield Hit(f"{budget} tokens / {rate:.0f} tok/s = {budget / rate:.2f} s a step", BUDGET,
                  fix=f"--max-num-batched-tokens {fits} keeps a step within {held * 1e3:.0f} ms; "
                  "or split prefill from decode.")  # fmt: skip


def stalls(service: Service) -> Iterator[Hit]:
    """Streams that stand still while prompts are computed, from stats lines."""
    rates = service.stall()
    if rates is None or rates[0] < FALL * max(rates[1], 0.01):
        return
    quiet, beside, prefill = rates
    budget = service.budget
    step = f"; a step of {budget} tokens takes {budget / prefill:.2f} s" if budget else ""
    value = (
        f"a stream gets {quiet:.0f} tok/s in quiet, {beside:.1f} beside prefills of "
        f"{prefill:.0f} tok/s{step}"
    )
    fix = (
        f"--max-num-batched-tokens {int(prefill * HELD)} would keep a step within "
        f"{HELD * 1e3:.0f} ms at this prefill rate; or split prefill from decode."
    )
    yield Hit(value, "prompt", fix=fix)


def no_slot(side: Side) -> Iterator[Hit]:
    """Parallel drafters take their slots of a step's budget first (config/speculative.py)."""
    parallel = side.method in ("draft_model", "dflash", "dspark")
    if side.budget and parallel and (side.drafts or 0) >= side.budget:
        yield Hit(f"budget {side.budget}, drafts take {side.drafts}", BUDGET)


def active_seqs(side: Side) -> Iterator[Hit]:
    active = side.args.integer("max_num_active_seqs")
    if active and side.seqs and active > side.seqs:
        yield Hit(f"{active} > {side.seqs}", "max_num_active_seqs")


def lengths(prefill: Side, decode: Side) -> Iterator[Hit]:
    if prefill.context and decode.context and prefill.context != decode.context:
        yield Hit(f"{prefill.context} on prefill, {decode.context} on decode", LENGTH)


def small_step(side: Side) -> Iterator[Hit]:
    if side.spec and side.budget and side.budget < 8192:  # the bound of vLLM's own warning
        yield Hit(f"budget {side.budget} with drafting", BUDGET)


RULES = (
    Rule(
        id="TOK01",
        title="max_model_len above the model's",
        severity="error",
        when=(
            "--max-model-len above max_position_embeddings x rope factor (the factor of "
            "yarn, llama3 and longrope is not applied again: 0.32 takes those configs as "
            "scaled), without VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        ),
        so="The engine refuses to start.",
        fix=(
            "Lower it, or supply the model's documented rope scaling via --hf-overrides. "
            "The env only silences the check: positions beyond the trained range give "
            "NaN/garbage."
        ),
        source="config/model.py:2646; vllm#16757, #8793",
        confirmed="executed",
        seen="config/model.py",
        log=(
            (
                r"User-specified max_model_len \((\d+)\) is greater than the derived"
                r" max_model_len .* To allow overriding this maximum"
            ),
        ),
        engine=too_long,
    ),
    Rule(
        id="TOK02",
        title="budget below context with chunked prefill off",
        severity="error",
        when="--no-enable-chunked-prefill and max_num_batched_tokens < max_model_len",
        so="The engine refuses to start.",
        fix="Keep chunked prefill, or raise the budget.",
        source="config/scheduler.py; vllm#18681, #21652",
        confirmed="executed",
        seen="config/scheduler.py",
        log=(r"max_num_batched_tokens \((\d+)\) is smaller than max_model_len \((\d+)\)",),
        engine=budget_below_context,
    ),
    Rule(
        id="TOK03",
        title="budget below max_num_seqs",
        severity="error",
        when="max_num_batched_tokens < max_num_seqs",
        so="The engine refuses to start.",
        fix="Lower max_num_seqs or raise budget.",
        source="config/scheduler.py",
        confirmed="executed",
        seen="config/scheduler.py",
        log=(
            (
                r"max_num_batched_tokens \((\d+)\) must be greater than or equal to"
                r" max_num_seqs \((\d+)\)"
            ),
        ),
        engine=budget_below_seqs,
    ),
    Rule(
        id="TOK04",
        title="budget cannot be used",
        severity="warn",
        when="max_num_batched_tokens > max_num_seqs*max_model_len",
        so="It runs, slower or with less than was asked for.",
        fix="Lower the budget.",
        source="config/scheduler.py:345",
        confirmed="executed",
        seen="config/scheduler.py",
        rank=AFTERMATH,
        log=(r"max_num_batched_tokens \((\d+)\) exceeds max_num_seqs \* max_model_len",),
        engine=budget_unusable,
    ),
    Rule(
        id="TOK05",
        title="long_prefill_token_threshold > max_model_len",
        severity="error",
        when="as said",
        so="The engine refuses to start.",
        fix="Lower it.",
        source="config/scheduler.py",
        confirmed="executed",
        seen="config/scheduler.py",
        log=(r"long_prefill_token_threshold \((\d+)\) cannot be greater than the max_model_len",),
        engine=threshold,
    ),
    Rule(
        id="TOK06",
        title="budget = context (profiling OOM)",
        severity="warn",
        when=(
            "max_num_batched_tokens >= 64k (people set it to max_model_len for 128k..1M): "
            "activation memory of the profiling step grows with the budget"
        ),
        so=(
            "The profiling step computes that many tokens at once and can run out of "
            "memory; later one step takes seconds."
        ),
        fix=(
            "Chunk: 8192-16384 on P, 2048-4096 on D/aggregated. Context length does not "
            "need to fit in the budget."
        ),
        source="gpu_worker profile run; ROCm/vllm#539 (Llama4 1M OOM), vllm#15446",
        rank=AFTERMATH,
        engine=budget_huge,
    ),
    Rule(
        id="TOK07",
        title="decode stall by long prefill (aggregated)",
        severity="warn",
        when=(
            "aggregated engine, budget B, prefill rate R tok/s: every decode step waits B/R"
            " seconds while a prefill runs (8192/2400 = 3.4 s)"
        ),
        so=(
            "Every stream that is being read stands still for budget / prefill rate while a"
            " prompt is computed."
        ),
        fix=(
            "B <= R * tolerated ITL (e.g. 0.1 s * 8000 = 800 -> 1024); or PD split; "
            "long_prefill_token_threshold alone is not applied when only one request runs."
        ),
        source=(
            "v1/core/sched/scheduler.py:640-655; blazux/qwen3.8-Flash-DGX#9 (30->0.2 "
            "tok/s), local-inference-lab/vllm#541 (270->6.6)"
        ),
        confirmed="source",
        seen="v1/metrics/loggers.py",
        rank=AFTERMATH,
        engine=stall,
        load=stalls,
    ),
    Rule(
        id="TOK08",
        title="small step budget with drafting",
        severity="info",
        when=(
            "speculative_config and a budget below 8192 (0.32 only warns; it no longer "
            "reduces what a step may schedule)"
        ),
        so="vLLM warns of suboptimal speed.",
        fix="Nothing, or --max-num-batched-tokens 8192.",
        source="config/vllm.py:2276",
        confirmed="source",
        seen="config/vllm.py",
        rank=AFTERMATH,
        log=(
            (
                r"max_num_scheduled_tokens is set to (\d+) based on the speculative"
                r" decoding settings\. This may"
            ),
        ),
        engine=small_step,
    ),
    Rule(
        id="TOK09",
        title="no slot for a token",
        severity="error",
        when=(
            "the slots of a parallel drafter (DFlash, DSpark, PARD) fill the budget; MTP, "
            "EAGLE and n-grams take none in 0.32"
        ),
        so="The engine refuses to start.",
        fix="Raise max_num_batched_tokens or lower max_num_seqs.",
        source="config/vllm.py:2285",
        confirmed="source",
        seen="config/vllm.py",
        log=(
            r"VllmConfig does not have enough slots to schedule a token",
            (
                r"max_num_scheduled_tokens is set to -?\d+ based on the speculative"
                r" decoding settings, which does not allow"
            ),
        ),
        engine=no_slot,
    ),
    Rule(
        id="TOK10",
        title="request longer than max_model_len",
        severity="error",
        when="prompt+max_tokens > max_model_len",
        so="That request is refused.",
        fix=(
            "Raise --max-model-len on BOTH P and D, or shorten the request. The proxy must "
            "hand the 400 back as it is."
        ),
        source="v1/engine/input_processor.py:588",
        confirmed="source",
        seen="v1/engine/input_processor.py",
        log=(
            r"The decoder prompt \(length \d+\) is longer than the maximum model length of \d+",
            r"This model's maximum context length is",
        ),
    ),
    Rule(
        id="TOK11",
        title="max_num_active_seqs > max_num_seqs",
        severity="error",
        when="as said",
        so="The engine refuses to start.",
        fix="Lower it.",
        source="config/scheduler.py",
        confirmed="executed",
        seen="config/scheduler.py",
        log=(r"max_num_active_seqs \(\d+\) cannot be greater than max_num_seqs",),
        engine=active_seqs,
    ),
    Rule(
        id="TOK12",
        title="max_model_len differs between P and D",
        severity="warn",
        when="P.max_model_len != D.max_model_len (hash does not see it)",
        so=("The smaller side refuses requests that the larger one already worked for."),
        fix=(
            "The smaller one rejects; with D smaller the prefill was wasted and P's blocks "
            "stay pinned until the lease ends."
        ),
        source="hash executed; vllm#41269",
        rank=AFTERMATH,
        pair=lengths,
    ),
    Rule(
        id="TOK13",
        title="max_model_len above the model's, check silenced",
        severity="warn",
        when="VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 and --max-model-len > derived length",
        so=(
            "Positions past the trained ones give NaN or garbage, and KV memory is sized "
            "for the long length."
        ),
        fix=(
            "Warn: text beyond the trained positions is garbage/NaN; KV memory is sized for"
            " the long length too."
        ),
        source="config/model.py:2646-2668",
        confirmed="executed",
        seen="config/model.py",
        rank=AFTERMATH,
        log=(
            (
                r"User-specified max_model_len \((\d+)\) is greater than the derived"
                r" max_model_len \(\w+=(\d{1,18})(?:(?!To allow).)* VLLM_ALLOW_LONG_MAX_MODEL_LEN"
            ),
        ),
        engine=too_long_silenced,
    ),
)
