"""Device memory: KV cache, weights, and whoever else holds it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from twolane.diagnosis.deployment import Deployment, Side, apart
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.kv_memory import BYTES, GIB, MARGIN, kv_need, longest, value_bytes
from twolane.diagnosis.rule import Context, Hit, Match, Rule
from twolane.diagnosis.vllm_args import plain_int

DEFAULT_SHARE = 0.92  # config/cache.py
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
FULL = 0.95  # sum of shares of one device above which the last engine finds too little


def share(side: Side) -> float:
    said = side.args.values.get("gpu_memory_utilization")
    return said if isinstance(said, float) else DEFAULT_SHARE


def kv_available(side: Side) -> int | None:
    """Bytes for KV cache on one rank: as asked for, or at most what the device can give."""
    said = side.args.integer("kv_cache_memory_bytes")
    space = plain_int(side.env.get(KV_SPACE, ""))
    if side.platform == "cpu" and space is not None and space > 0:
        return space * GIB
    if said is not None and said > 0:
        return said
    device = side.deployment.device_gib
    return int(device * min(share(side), 1.0) * GIB) if device and 0 < device < 1e6 else None


def host_memory(deployment: Deployment, sides: list[Side]) -> Iterator[Hit]:
    """CPU engines whose KV caches together are larger than what the host has free."""
    free = deployment.free_gib
    asked = {s.name: kv_available(s) for s in sides if s.platform == "cpu"}
    total = sum(size or 0 for size in asked.values()) / GIB
    if not asked or free is None or total <= free:
        return
    largest = max(asked, key=lambda name: asked[name] or 0)
    yield Hit(f"{total:.0f} GiB asked for, {free:.0f} GiB free", KV_SPACE, side=largest)


def model_dtype(side: Side) -> str:
    said = side.args.text("dtype") or "auto"
    return said if said != "auto" else (side.shape.dtype if side.shape else "")


def state_value(side: Side) -> float:
    said = side.args.text("mamba_ssm_cache_dtype") or "auto"
    return BYTES.get(said if said != "auto" else model_dtype(side).removeprefix("torch."), 2)


def one_request(side: Side) -> Iterator[Hit]:
    """Whether one request of the asked length fits, by layer kind."""
    available, shape, context = kv_available(side), side.shape, side.context
    if available is None or shape is None or context is None:
        return
    value = value_bytes(side.args.text("kv_cache_dtype") or "auto", model_dtype(side))
    how: dict[str, float] = {
        "tp": side.tp * side.pp,  # layers divide over pipeline stages as heads over ranks
        "dcp": side.dcp,
        "block": side.block or 16,
        "in_flight": side.budget or 2048,
        "value": value,
        "state_value": state_value(side),
    }
    need = kv_need(shape, context, **how)  # type: ignore[arg-type]
    margin = MARGIN if shape.sliding or shape.recurrent else 1.0
    if need.total > available * margin:
        fits = longest(shape, available, **how)
        yield Hit(
            f"{context} tokens need {need.total / GIB:.2f} GiB on a rank, "
            f"{available / GIB:.2f} GiB are there",
            "max_model_len",
            fix=f"--max-model-len {fits} at most with this memory (or -1: fit by itself), or an "
            "fp8 KV cache, more TP, more memory.",
        )


def length_that_fits(found: list[Match], context: Context) -> str:
    _, _, rest = found[0].line.partition("estimated maximum model length is ")
    fits = plain_int(rest.split(".")[0])
    trained = [int(m.groups[1]) for m in context.matches.get("TOK13", [])]
    if fits and trained and trained[0] <= fits:
        return (
            f"--max-model-len {trained[0]}: it is what the model was trained for, and it fits "
            f"(up to {fits} would)."
        )
    longest = f"--max-model-len {fits} at most" if fits else "A shorter --max-model-len"
    return (
        f"{longest} with this memory (or -1), or an fp8 KV cache, more TP or DCP, a higher "
        "--gpu-memory-utilization, a smaller --max-num-batched-tokens."
    )


def devices_of(side: Side) -> list[int]:
    if side.engine.devices is not None:
        return side.engine.devices
    said = side.env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [number for text in said if (number := plain_int(text)) is not None]


def sharing(sides: list[Side]) -> Iterator[tuple[Side, Side, int]]:
    """Pairs of engines on one host that use the same device."""
    for one, other in combinations(sides, 2):
        both = set(devices_of(one)) & set(devices_of(other))
        if both and not apart(one, other) and one.platform != "cpu":
            yield one, other, min(both)


def shared_devices(_: Deployment, sides: list[Side]) -> Iterator[Hit]:
    for one, other, device in sharing(sides):
        if share(one) + share(other) > FULL:
            yield Hit(f"{one.name} takes {share(one):.2f} and {other.name} {share(other):.2f} of "
                      f"device {device}", "gpu_memory_utilization", side=other.name)  # fmt: skip


def held_by_others(found: list[Match], _: Context) -> str:
    device, free, total = found[0].groups[:3]
    held = float(total) - float(free)
    return (f"{held:.1f} GiB on {device} is held by another process: stop it (nvidia-smi; an "
            "orphan VLLM::Worker after a kill -9?), or use other devices.")  # fmt: skip


def kv_bytes(side: Side) -> Iterator[Hit]:
    if side.args.integer("kv_cache_memory_bytes") and side.platform != "cpu":
        yield Hit("--kv-cache-memory-bytes", "kv_cache_memory_bytes")


def utilization(side: Side) -> Iterator[Hit]:
    said = side.args.values.get("gpu_memory_utilization")
    if isinstance(said, float) and not 0 < said <= 1:
        yield Hit(f"--gpu-memory-utilization {said:g}", "gpu_memory_utilization")


# Where a traceback through one of these ends, and what helps there.
STAGES = (
    ("profile_run", "in profile_run, which computes one full budget: set "
     "--max-num-batched-tokens to 8192-16384"),
    ("load_model", "while loading the weights: more TP, or a quantised model"),
    ("capture", "while capturing CUDA graphs: fewer capture sizes"),
    ("initialize_kv_cache", "while allocating the KV cache: a lower --gpu-memory-utilization"),
    ("execute_model", "while serving: --gpu-memory-utilization lower by 0.02 to 0.05"),
)  # fmt: skip


def oom_stage(found: list[Match], context: Context) -> str:
    text = "\n".join(found[0].before)
    hint = "Do not set expandable_segments with a KV connector, whatever torch advises."
    for name, remedy in STAGES:
        if name in text:
            return (
                f"Out of memory {remedy}{asked(context) if name == 'profile_run' else ''}. {hint}"
            )
    return f"Lower --gpu-memory-utilization or the budget, or use more TP. {hint}"


def asked(context: Context) -> str:
    deployment = context.deployment
    sides = [Side(engine, deployment) for engine in deployment.engines] if deployment else []
    budgets = [side.budget for side in sides if side.budget]
    return f" (it is {max(budgets)})" if budgets else ""


RULES = (
    Rule(
        id="MEM01",
        title="KV cache does not hold one request",
        severity="error",
        when=(
            "KV bytes/token x max_model_len (per rank) > util*GPU - weights - activations - graphs"
        ),
        so="The engine dies at start-up, after the weights were loaded.",
        fix=(
            "Take the estimate in the same message as --max-model-len (or -1 = auto-fit), "
            "or: fp8 KV, more TP/DCP, higher --gpu-memory-utilization, smaller "
            "max_num_batched_tokens."
        ),
        source="v1/core/kv_cache_utils.py:1030; wtdcode/vllm-backport#15",
        confirmed="source",
        seen="v1/core/kv_cache_utils.py",
        log=(
            (
                r"To serve at least one request with the models?'s max seq len \((\d+)\),"
                r" \(?([\d.]+) GiB KV cache is needed, which is larger than the available KV cache"
                r" memory \(([\d.]+) GiB\)"
            ),
        ),
        engine=one_request,
        tell=length_that_fits,
    ),
    Rule(
        id="MEM02",
        title="nothing left for KV",
        severity="error",
        when="weights+activations >= util*GPU",
        so="The engine dies at start-up, after the weights were loaded.",
        fix=(
            "Higher --gpu-memory-utilization, more TP, quantised weights, smaller "
            "max_num_batched_tokens."
        ),
        source="v1/core/kv_cache_utils.py:1010",
        confirmed="source",
        seen="v1/core/kv_cache_utils.py",
        log=(r"No available memory for the cache blocks",),
    ),
    Rule(
        id="MEM03",
        title="GPU already in use at start",
        severity="error",
        when=(
            "free memory < util*total at start (another engine, zombie worker, P and D on "
            "one GPU with 0.92+0.92)"
        ),
        so="The engine refuses to start beside another user of the device.",
        fix=(
            "Find the holder (nvidia-smi; orphan 'VLLM::Worker' after a kill -9 of the API "
            "server), or give each engine its share (sum < 0.95)."
        ),
        source="v1/worker/utils.py:763; vllm#58063, #20305, #50135",
        confirmed="source",
        seen="v1/worker/utils.py",
        log=(r"Free memory on device (\S+) \((\d{1,9}\.?\d*)/(\d{1,9}\.?\d*) GiB\) on startup",),
        together=shared_devices,
        tell=held_by_others,
    ),
    Rule(
        id="MEM04",
        title="another process freed memory while profiling",
        severity="error",
        when="P and D started at once on one GPU, or a dying engine on it",
        so="The engine dies at start-up, after the weights were loaded.",
        fix=("Start engines one after another on a shared GPU; wait for the old one to be gone."),
        source="v1/worker/gpu_worker.py:719",
        confirmed="source",
        seen="v1/worker/gpu_worker.py",
        log=(r"Error in memory profiling\. Initial free memory",),
    ),
    Rule(
        id="MEM05",
        title="auto-fit shortened the context",
        severity="warn",
        when="--max-model-len -1",
        so="It runs with other memory or another length than the numbers suggest.",
        fix="Tell the user the real length (and compare P and D).",
        source="v1/core/kv_cache_utils.py:2478",
        confirmed="source",
        seen="v1/core/kv_cache_utils.py",
        rank=AFTERMATH,
        log=(r"Auto-fit max_model_len: reduced from (\d+) to (\d+) to fit",),
    ),
    Rule(
        id="MEM06",
        title="auto-fit impossible",
        severity="error",
        when="--max-model-len -1, no room",
        so="The engine dies at start-up, after the weights were loaded.",
        fix="as MEM02",
        source="v1/core/kv_cache_utils.py:2455",
        confirmed="source",
        seen="v1/core/kv_cache_utils.py",
        log=(r"Cannot auto-fit max_model_len",),
    ),
    Rule(
        id="MEM07",
        title="kv_cache_memory_bytes overrides profiling",
        severity="info",
        when="--kv-cache-memory-bytes set",
        so=(
            "The KV cache gets exactly this, gpu_memory_utilization is ignored, and nobody "
            "measured whether the largest step fits beside it: it may run out of memory later."
        ),
        fix="Nothing, where the size was chosen with room to spare; else leave the option out.",
        source="v1/worker/gpu_worker.py:661",
        confirmed="source",
        seen="v1/worker/gpu_worker.py",
        rank=AFTERMATH,
        log=(r"skipped memory profiling\. This does not respect the",),
        engine=kv_bytes,
    ),
    Rule(
        id="MEM08",
        title="CUDA OOM",
        severity="error",
        when="any",
        so="The engine dies for want of device memory.",
        fix=(
            "Stage matters: in load_model -> weights do not fit (TP/quant); in profile_run "
            "-> lower max_num_batched_tokens; in capture -> fewer capture sizes; in "
            "execute_model -> lower utilization by 0.02-0.05. Do NOT follow torch's "
            "expandable_segments hint with NIXL (ENV01/02)."
        ),
        source="torch; wtdcode/vllm-backport#94",
        log=(r"(torch\.(cuda\.)?OutOfMemoryError|CUDA out of memory)",),
        tell=oom_stage,
    ),
    Rule(
        id="MEM09",
        title="utilization out of range",
        severity="error",
        when="gpu_memory_utilization > 1 (e.g. 90)",
        so="The engine dies at start-up, after the weights were loaded.",
        fix="0.90, not 90.",
        source="config/cache.py",
        confirmed="executed",
        seen="config/cache.py",
        log=(r"gpu_memory_utilization\s+Input should be less than or equal to 1",),
        engine=utilization,
        over_lines="Input should be",
    ),
    Rule(
        id="MEM10",
        title="host shared memory",
        severity="error",
        when="docker without --ipc=host/--shm-size",
        so="The engine dies at start-up, after the weights were loaded.",
        fix="--ipc=host or --shm-size=16g.",
        source="torch/NCCL",
        log=(
            r"No space left on device.*shm",
            r"Bus error",
            r"unhandled system error.*\n?.*shm",
        ),
        over_lines="shm",
    ),
    Rule(
        id="MEM11",
        title="host memory below the KV cache asked for (CPU)",
        severity="error",
        when="CPU platform: --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE above free memory",
        so="The engine dies at start-up, after the weights were loaded.",
        fix="Less --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE, or stop what holds memory.",
        source="v1/worker/cpu_worker.py:218-246",
        confirmed="source",
        seen="v1/worker/cpu_worker.py",
        log=(r"GiB\) on kv cache allocation is less than requested memory for kv",),
        together=host_memory,
    ),
)
