"""The connector that moves KV between engines: its name, role, fields and limits."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import NIXL, Side
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Context, Hit, Match, Rule
from twolane.diagnosis.vllm_facts import facts

AT = "kv_transfer_config"
ROLES = ("kv_producer", "kv_consumer", "kv_both")
BUFFERS = {"cuda": ("cuda", "cpu"), "cpu": ("cpu",)}


def role_missing(side: Side) -> Iterator[Hit]:
    for connector in side.connectors:
        if connector.role is None:
            yield Hit(f"{connector.name} without kv_role", AT)


def role_misspelt(side: Side) -> Iterator[Hit]:
    for connector in side.connectors:
        if connector.role is not None and connector.role not in ROLES:
            yield Hit(f"kv_role={connector.role}", AT)


def role_against_engine(side: Side) -> Iterator[Hit]:
    wrong = {"prefill": "kv_consumer", "decode": "kv_producer"}
    for connector in side.connectors:
        if connector.role == wrong.get(side.engine.role):
            yield Hit(f"{side.name} is to {side.engine.role}, its kv_role is {connector.role}", AT)


def fields_gone(side: Side) -> Iterator[Hit]:
    unknown = sorted(set(side.transfer or {}) - facts().kv_transfer_fields)
    if unknown:
        yield Hit(", ".join(unknown), AT, fix=without(", ".join(unknown)))


def without(names: str) -> str:
    return (
        f"Delete {names} from --kv-transfer-config; NIXL finds its peer from the request's "
        "kv_transfer_params and VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT."
    )


def name_fields(found: list[Match], _: Context) -> str:
    return without(", ".join(dict.fromkeys(m.groups[0] for m in found if m.groups)))


def connector_unknown(side: Side) -> Iterator[Hit]:
    for connector in side.connectors:
        if connector.name not in facts().connectors and not connector.module:
            yield Hit(f"kv_connector={connector.name}", AT)


def policy_unknown(side: Side) -> Iterator[Hit]:
    policy = (side.transfer or {}).get("kv_load_failure_policy", "fail")
    if policy not in ("recompute", "fail"):
        yield Hit(f"kv_load_failure_policy={policy}", AT)


def kv_both(side: Side) -> Iterator[Hit]:
    for connector in side.connectors:
        if connector.name in NIXL and connector.role == "kv_both":
            yield Hit("kv_role=kv_both", AT)


def nixl_missing(side: Side) -> Iterator[Hit]:
    if side.nixl and side.deployment.nixl is False:
        yield Hit("nixl cannot be imported", AT)


def buffer_device(side: Side) -> Iterator[Hit]:
    device = (side.transfer or {}).get("kv_buffer_device")
    allowed = BUFFERS.get(side.platform)
    if side.nixl and device is not None and allowed and device not in allowed:
        yield Hit(f"kv_buffer_device={device} on {side.platform}", AT,
                  fix=f"Use kv_buffer_device={allowed[0]} or leave it out.")  # fmt: skip


def pipeline(side: Side) -> Iterator[Hit]:
    if side.pp == 1 or not side.nixl:
        return
    value = f"pipeline_parallel_size={side.pp}"
    if side.kv_role == "kv_consumer":
        yield Hit(f"{value} on a consumer", "pipeline_parallel_size")
    elif side.stateful:
        yield Hit(f"{value} with recurrent layers", "pipeline_parallel_size")
    elif side.hybrid_attention and not side.push:
        yield Hit(f"{value} with sliding-window layers on pull", "pipeline_parallel_size")


def push_bidirectional(side: Side) -> Iterator[Hit]:
    for connector in side.connectors:
        if connector.name == "NixlPushConnector" and connector.extra.get("bidirectional_kv_xfer"):
            yield Hit("bidirectional_kv_xfer=true", AT)


def loses_hma(side: Side) -> Iterator[Hit]:
    said = side.args.flag("disable_hybrid_kv_cache_manager")
    if side.connectors and side.stateful and said is None and not side.keeps_hma():
        yield Hit(", ".join(c.name for c in side.connectors), AT)


def forced_hma(side: Side) -> Iterator[Hit]:
    said = side.args.flag("disable_hybrid_kv_cache_manager")
    if side.connectors and said is False and not side.keeps_hma():
        yield Hit(", ".join(c.name for c in side.connectors), "disable_hybrid_kv_cache_manager")


def routed_experts(side: Side) -> Iterator[Hit]:
    if side.nixl and side.args.flag("enable_return_routed_experts"):
        yield Hit("--enable-return-routed-experts", "enable_return_routed_experts")


RULES = (
    Rule(
        id="CFG01",
        title="kv_role missing",
        severity="error",
        when="--kv-transfer-config has kv_connector, no kv_role",
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix='Add "kv_role":"kv_producer" (prefill) or "kv_consumer" (decode).',
        source="config/kv_transfer.py",
        confirmed="executed",
        seen="config/kv_transfer.py",
        log=(r"Please specify kv_role when kv_connector is set",),
        engine=role_missing,
    ),
    Rule(
        id="CFG02",
        title="kv_role misspelt",
        severity="error",
        when="kv_role not in {kv_producer,kv_consumer,kv_both}",
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix="Use one of the three literals.",
        source="config/kv_transfer.py (pydantic literal)",
        confirmed="executed",
        seen="config/kv_transfer.py",
        log=(r"Input should be 'kv_producer', 'kv_both' or 'kv_consumer'",),
        engine=role_misspelt,
    ),
    Rule(
        id="CFG03",
        title="fields that KVTransferConfig does not have",
        severity="error",
        when=(
            "--kv-transfer-config has a field that KVTransferConfig does not have (kv_rank,"
            " kv_parallel_size, kv_buffer_size, kv_ip of old tutorials, or a misspelt one)"
        ),
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix=(
            "Delete these fields; NIXL finds its peer from the request's kv_transfer_params"
            " + VLLM_NIXL_SIDE_CHANNEL_HOST/PORT."
        ),
        source="config/kv_transfer.py; vllm#20965 (old example)",
        confirmed="executed",
        seen="config/kv_transfer.py",
        log=(r"(kv_rank|kv_parallel_size|kv_buffer_size|kv_ip)\s+Unexpected keyword argument",),
        engine=fields_gone,
        over_lines="Unexpected keyword argument",
        tell=name_fields,
    ),
    Rule(
        id="CFG04",
        title="unknown/removed connector",
        severity="error",
        when=(
            "kv_connector not registered (PyNcclConnector, MooncakeStore old names...) and "
            "no kv_connector_module_path"
        ),
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix=(
            "Use NixlConnector / NixlPushConnector / MultiConnector / "
            "OffloadingConnector..., or set kv_connector_module_path."
        ),
        source="distributed/kv_transfer/kv_connector/factory.py",
        confirmed="executed",
        seen="distributed/kv_transfer/kv_connector/factory.py",
        log=(r"Unsupported connector type: \S+",),
        engine=connector_unknown,
    ),
    Rule(
        id="CFG05",
        title="kv_load_failure_policy value",
        severity="error",
        when="kv_load_failure_policy not in {recompute,fail}",
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix=(
            "Use recompute or fail. Say aloud that the default is 'fail' (request ends with"
            " an error)."
        ),
        source="config/kv_transfer.py; vllm#34896, #32200",
        confirmed="executed",
        seen="config/kv_transfer.py",
        log=(r"Input should be 'recompute' or 'fail'",),
        engine=policy_unknown,
        over_lines="Input should be",
    ),
    Rule(
        id="CFG06",
        title="kv_both is deprecated with NIXL",
        severity="info",
        when="NixlConnector/NixlPushConnector + kv_role=kv_both",
        so="It works today and stops working with a coming version.",
        fix="Prefill -> kv_producer, decode -> kv_consumer.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/connector.py:96-102",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/connector.py",
        rank=AFTERMATH,
        log=(r"Using kv_role='kv_both' with NixlConnector is deprecated",),
        log_severity="warn",
        engine=kv_both,
    ),
    Rule(
        id="CFG07",
        title="nixl package missing",
        severity="error",
        when=(
            "Nixl* connector and `import nixl`/`nixl_ep` fails in the interpreter that runs vllm"
        ),
        so="The engine dies when it makes its connector.",
        fix=(
            "Install nixl in the environment that runs vLLM, the wheel of torch's CUDA "
            "major (nixl-cu12, nixl-cu13). A broken wheel gives the same message, since the"
            " import error is swallowed: `python -c 'import nixl._api'` shows it."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:513; dynamo#3054, "
            "dynamo#10654, vllm#44143, vllm#45843"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"NIXL is not available",),
        engine=nixl_missing,
    ),
    Rule(
        id="CFG08",
        title="kv_buffer_device invalid for platform",
        severity="error",
        when="kv_buffer_device not in {cuda:[cuda,cpu], cpu:[cpu], xpu..., tpu...}",
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix="Use kv_buffer_device=cuda on CUDA (cpu = bounce through host, slower).",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:685-690",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(r"\w+ with \w+ kv_buffer is not supported",),
        engine=buffer_device,
    ),
    Rule(
        id="CFG09",
        title="pipeline parallelism where NIXL does not take it",
        severity="error",
        when=(
            "PP > 1 with a Nixl connector and: sliding-window model on the pull connector, "
            "any recurrent state, or kv_role=kv_consumer (pull or push alike)"
        ),
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix=(
            "PP=1 on decode; for PP prefill of a sliding-window/hybrid-attention model use "
            "NixlPushConnector; for Mamba hybrids PP=1 everywhere."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:758-779; "
            "vllm#40674, #52913, #22430"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            r"NixlConnector \(pull\) does not support pipeline_parallel_size > 1",
            r"does not support pipeline_parallel_size > 1 with Mamba",
            r"consumer \(decode\) does not support pipeline_parallel_size > 1",
        ),
        engine=pipeline,
    ),
    Rule(
        id="CFG10",
        title="push connector + bidirectional transfer",
        severity="error",
        when=("NixlPushConnector and kv_connector_extra_config.bidirectional_kv_xfer=true"),
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix="Remove the flag or use pull.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/push_scheduler.py:74",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/push_scheduler.py",
        log=(r"Bidirectional KV transfer is not supported for NIXL push",),
        engine=push_bidirectional,
    ),
    Rule(
        id="CFG11",
        title="connector without HMA on a hybrid model",
        severity="error",
        when=(
            "hybrid (SSM) model + connector that lacks SupportsHMA (or MultiConnector with "
            "one such child)"
        ),
        so=(
            "The hybrid KV cache manager is turned off: a model with recurrent state then "
            "fails to start."
        ),
        fix=(
            "Use a connector with HMA (Nixl*, Offloading...). For SSM hybrids this warning "
            "is followed by a start-up failure; for sliding window models it only costs KV "
            "capacity."
        ),
        source="config/vllm.py:2170-2190; vllm#42024, dynamo#10741",
        confirmed="executed",
        seen="config/vllm.py",
        rank=AFTERMATH,
        log=(r"Turning off hybrid kv cache manager because",),
        engine=loses_hma,
    ),
    Rule(
        id="CFG12",
        title="HMA forced on with a connector that lacks it",
        severity="error",
        when="--no-disable-hybrid-kv-cache-manager + connector without SupportsHMA",
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix="Drop the flag or change connector.",
        source="kv_connector/factory.py:57; config/vllm.py:2194-2203",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/factory.py",
        log=(
            r"Connector \w+ does not support HMA but HMA is enabled",
            r"Hybrid KV cache manager was explicitly enabled but is not",
        ),
        engine=forced_hma,
    ),
    Rule(
        id="CFG13",
        title="routed-experts capture + PD",
        severity="error",
        when="--enable-return-routed-experts with Nixl connector",
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix="Turn it off on PD engines.",
        source="config/vllm.py:1188",
        confirmed="source",
        seen="config/vllm.py",
        log=(r"PD auxiliary output is not supported",),
        engine=routed_experts,
    ),
    Rule(
        id="CFG14",
        title="MultiConnector children want different layouts",
        severity="error",
        when="MultiConnector with children that require different KV layouts",
        so=("The engine refuses to start, after the minutes that loading may already have taken."),
        fix="Use children that agree, or set VLLM_KV_CACHE_LAYOUT.",
        source="multi_connector.py:648",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/multi_connector.py",
        log=(r"KV cache layout mismatch: found \d+ different layouts",),
    ),
    Rule(
        id="CFG15",
        title="kv_role against the engine's part",
        severity="warn",
        when="a prefill engine with kv_consumer, or a decode engine with kv_producer",
        so=(
            "NixlConnector moves KV as each request says, so it may work; but which parallel "
            "layouts are allowed and which ranks report goes by this role, the other side's."
        ),
        fix="kv_producer on prefill, kv_consumer on decode.",
        source="nixl/connector.py:255,337; nixl/base_worker.py:775",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/connector.py",
        engine=role_against_engine,
    ),
)
