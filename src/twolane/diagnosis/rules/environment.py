"""Environment variables, limits and devices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from twolane.diagnosis.deployment import Deployment, Side
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Context, Hit, Match, Rule
from twolane.diagnosis.rules.arguments import nearest_of
from twolane.diagnosis.rules.memory import devices_of, sharing
from twolane.diagnosis.vllm_facts import facts

OLD_ALLOC, NEW_ALLOC = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
SEGMENTS = re.compile(r"expandable_segments\s*:\s*true", re.IGNORECASE)
REPLACED = {
    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "kv_connector_extra_config.kv_lease_duration",
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_ALL2ALL_BACKEND": "--all2all-backend",
    "VLLM_FLASH_ATTN_VERSION": "--attention-config.flash_attn_version",
    "VLLM_USE_V1": "nothing: V1 is the only engine",
}


def remapping(side: Side) -> bool:
    """Whether the allocator may remap memory below a connector."""
    exempt = side.args.flag("enable_cumem_allocator") or side.args.flag("enable_sleep_mode")
    return bool(side.connectors) and not exempt and side.platform != "cpu"


def segments(side: Side) -> Iterator[Hit]:
    said = side.env.get(OLD_ALLOC, "")
    if remapping(side) and "expandable_segments:True" in said:  # vLLM's own, literal test
        yield Hit(f"{OLD_ALLOC}={said}", OLD_ALLOC)


def segments_unseen(side: Side) -> Iterator[Hit]:
    for name in (OLD_ALLOC, NEW_ALLOC) if remapping(side) else ():
        said = side.env.get(name, "")
        seen = name == OLD_ALLOC and "expandable_segments:True" in said
        if SEGMENTS.search(said) and not seen:
            yield Hit(f"{name}={said}", name)


def unknown_variables(side: Side) -> Iterator[Hit]:
    for name in sorted(side.env):
        if name.startswith("VLLM_") and name not in facts().variables:
            yield Hit(name, name, fix=replacement([name]))


def replacement(names: list[str]) -> str:
    return "No effect in this version. " + "; ".join(map(instead, names)) + "."


def instead(name: str) -> str:
    if name in REPLACED:
        return f"{name} -> {REPLACED[name]}"
    meant = nearest_of(name, facts().variables)
    return f"{name}: did you mean {meant}?" if meant else f"{name}: remove it"


def replacements(found: list[Match], _: Context) -> str:
    return replacement(list(dict.fromkeys(m.groups[0] for m in found if m.groups)))


def ucx_without_cuda(side: Side) -> Iterator[Hit]:
    said = side.env.get("UCX_TLS", "")
    named = "cuda" in said or said.startswith("^") or "all" in said.split(",")
    if side.nixl and side.platform == "cuda" and said and not named:
        yield Hit(f"UCX_TLS={said}", "UCX_TLS")


def no_names(side: Side) -> Iterator[Hit]:
    for name in side.env:
        if not name or "=" in name or "\0" in name:
            yield Hit(f"variable {name!r}", name)


def eager_decode(side: Side) -> Iterator[Hit]:
    decodes = side.role == "decode" and side.platform != "cpu"
    if decodes and side.args.flag("enforce_eager"):
        yield Hit("--enforce-eager", "enforce_eager")


def devices(deployment: Deployment, sides: list[Side]) -> Iterator[Hit]:
    for one, other, device in sharing(sides):
        if "gpu_memory_utilization" not in one.args.spelt | other.args.spelt:
            yield Hit(f"{one.name} and {other.name} both use device {device}",
                      "CUDA_VISIBLE_DEVICES", side=other.name)  # fmt: skip
    for side in sides:
        own, count = devices_of(side), deployment.device_count
        if len(set(own)) < len(own) or (count is not None and any(d >= count for d in own)):
            yield Hit(f"devices {own} of {count}", "CUDA_VISIBLE_DEVICES", side=side.name)


def hash_seed(side: Side) -> Iterator[Hit]:
    if side.args.mapping("kv_events_config") and "PYTHONHASHSEED" not in side.env:
        yield Hit("PYTHONHASHSEED is not set", "PYTHONHASHSEED")


RULES = (
    Rule(
        id="ENV01",
        title="expandable_segments with a KV connector",
        severity="error",
        when=(
            "PYTORCH_CUDA_ALLOC_CONF contains expandable_segments:True, KV connector set, "
            "sleep mode/cumem off"
        ),
        so="The engine refuses to start, or transfers wrong data.",
        fix="Unset it.",
        source="config/vllm.py:1217-1235; vllm#41237; InferenceX#2822",
        confirmed="executed",
        seen="config/vllm.py",
        log=(r"incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
        engine=segments,
    ),
    Rule(
        id="ENV02",
        title="expandable_segments through PYTORCH_ALLOC_CONF (not caught by vLLM)",
        severity="error",
        when=(
            "PYTORCH_ALLOC_CONF contains expandable_segments:True and a KV connector: "
            "vLLM's guard reads only the old name"
        ),
        so="Registered memory may be remapped below NIXL: wrong KV and no error.",
        fix=("Unset it: registered memory may be remapped under NIXL -> wrong KV, no error."),
        source=(
            "config/vllm.py:1217 (reads one name only); executed: config accepted; torch "
            "2.13 reads both"
        ),
        confirmed="executed",
        seen="config/vllm.py",
        engine=segments_unseen,
    ),
    Rule(
        id="ENV03",
        title="env var that 0.32 does not know",
        severity="warn",
        when=(
            "VLLM_* not in envs.environment_variables: VLLM_NIXL_ABORT_REQUEST_TIMEOUT, "
            "VLLM_ATTENTION_BACKEND, VLLM_USE_V1, VLLM_ALL2ALL_BACKEND, "
            "VLLM_FLASH_ATTN_VERSION, VLLM_USE_TRTLLM_ATTENTION, "
            "VLLM_V1_USE_PREFILL_DECODE_ATTENTION..."
        ),
        so="The setting has no effect, or costs speed.",
        fix=(
            "Replace: NIXL timeout -> kv_connector_extra_config.kv_lease_duration; "
            "attention -> --attention-backend; all2all -> --all2all-backend. Or add "
            "--fail-on-environ-validation."
        ),
        source="platforms/interface.py:1448-1458",
        confirmed="executed",
        seen="platforms/interface.py",
        rank=AFTERMATH,
        log=(r"Unknown vLLM environment variable detected: (VLLM_\w+)",),
        engine=unknown_variables,
        tell=replacements,
    ),
    Rule(
        id="ENV05",
        title="UCX/NIXL import order",
        severity="info",
        when="nixl imported before vllm sets UCX_RCACHE_MAX_UNRELEASED",
        so="Seen beside other troubles; harmless by itself.",
        fix="export UCX_RCACHE_MAX_UNRELEASED=1024 yourself.",
        source="distributed/nixl_utils.py:26",
        confirmed="source",
        seen="distributed/nixl_utils.py",
        rank=AFTERMATH,
        log=(r"NIXL was already imported, we can't reset",),
    ),
    Rule(
        id="ENV06",
        title="UCX_TLS without cuda transports",
        severity="warn",
        when=("UCX_TLS set and lacks cuda_ipc/cuda_copy (e.g. 'tcp' or 'rc') for P/D on one node"),
        so="The setting has no effect, or costs speed.",
        fix=(
            "Unset, or all / rc,cuda_copy,cuda_ipc,sm,tcp. With separate containers: share "
            "PID namespace and --ipc=host or UCX falls back to TCP."
        ),
        source="vllm#55906, #26382; nixl#1097, #1195, #922",
        rank=AFTERMATH,
        engine=ucx_without_cuda,
    ),
    Rule(
        id="ENV07",
        title="open-file limit",
        severity="info",
        when="ulimit -n < 65535",
        so="Seen beside other troubles; harmless by itself.",
        fix="ulimit -n 65535",
        source="utils/system_utils.py:255",
        confirmed="source",
        seen="utils/system_utils.py",
        rank=AFTERMATH,
        log=(r"Found ulimit of (\d+) and failed to automatically increase",),
    ),
    Rule(
        id="ENV08",
        title="enforce-eager left from debugging",
        severity="info",
        when="--enforce-eager on a decode engine of a GPU host",
        so="The setting has no effect, or costs speed.",
        fix="Remove for benchmarks (decode 2-5x slower).",
        source="config/vllm.py:1698-1704",
        confirmed="executed",
        seen="config/vllm.py",
        rank=AFTERMATH,
        log=(r"Enforce eager set, disabling torch\.compile(?:,| and) CUDAGraphs",),
        engine=eager_decode,
    ),
    Rule(
        id="ENV09",
        title="CUDA_VISIBLE_DEVICES",
        severity="error",
        when=("P and D share a GPU id, or ids count < TP*PCP*PP*DP_local, or id not on the node"),
        so="The engine refuses to start, or transfers wrong data.",
        fix=(
            "Disjoint sets; NIXL P and D in one container may keep all devices visible for "
            "cuda_ipc, but ranks must be disjoint."
        ),
        source="vllm#58063; nixl#1614",
        together=devices,
    ),
    Rule(
        id="ENV10",
        title="prefix-caching hash seed differs",
        severity="info",
        when="PYTHONHASHSEED unset and external KV event consumers/routers in use",
        so="Seen beside other troubles; harmless by itself.",
        fix=("Set PYTHONHASHSEED equal everywhere when a KV-aware router or shared store is used."),
        source="v1/core/kv_cache_utils.py (NONE_HASH)",
        rank=AFTERMATH,
        engine=hash_seed,
    ),
    Rule(
        id="ENV12",
        title="name of a variable that is none",
        severity="error",
        when="an engine's environment has a name that is empty or has an = in it",
        so="The engine cannot be started: the system takes no such name.",
        fix="Write the name alone on the left, and what it is to be on the right.",
        source="POSIX environ; Python's os.execve: illegal environment variable name",
        engine=no_names,
    ),
)
