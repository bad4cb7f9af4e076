"""Checks behind the rules of parallel.py: small pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.rule import Context, Hit, Match

DCP, PCP, TP = (
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "tensor_parallel_size",
)


LARGEST_NODE = 72
"""GPUs that one NVLink domain joins at most (GB200 NVL72)."""


def heads_divide(side: Side) -> Iterator[Hit]:
    heads = side.shape.heads if side.shape else None
    if heads and heads % side.tp:
        yield Hit(f"{heads} attention heads, TP {side.tp}", TP)


def visible(side: Side) -> int | None:
    """Devices the engine can use, None where nobody said."""
    if side.engine.devices is not None:
        return len(side.engine.devices)
    said = side.env.get("CUDA_VISIBLE_DEVICES")
    return len(said.split(",")) if said else side.deployment.device_count


def world_size(side: Side) -> Iterator[Hit]:
    ranks, devices = side.tp * side.pp * side.pcp, visible(side)
    elsewhere = side.args.text("distributed_executor_backend") or side.size("nnodes") > 1
    if devices is not None and ranks > devices and side.platform != "cpu" and not elsewhere:
        yield Hit(f"TP {side.tp} x PP {side.pp} x PCP {side.pcp} ranks, {devices} devices",
                  TP, fix=splits(ranks, devices, side.pcp > 1))  # fmt: skip


def beyond_sense(side: Side) -> Iterator[Hit]:
    """Only where nobody said how many devices there are: else CP02 knows better."""
    if side.tp > LARGEST_NODE and (visible(side) is None or side.platform == "cpu"):
        yield Hit(f"TP {side.tp}", TP)


def splits(ranks: int, devices: int, context_parallel: bool) -> str:
    if not context_parallel:
        return f"TP x PP x PCP of at most {devices}, or --nnodes, or more devices."
    ways = [f"TP{tp} x PCP{devices // tp}" for tp in (1, 2, 4, 8) if devices // tp > 1]
    return f"{ranks} ranks do not fit {devices} devices: use {' or '.join(ways)}."


def ways_to_split(found: list[Match], _: Context) -> str:
    ranks, devices = (int(group) for group in found[0].groups[:2])
    return f"TP x PCP x PP is {ranks}. " + splits(ranks, devices, True) + " DCP costs no ranks."


def dcp_needs_tp(side: Side) -> Iterator[Hit]:
    heads = side.shape.kv_heads if side.shape else None
    if side.mla is False and heads and side.dcp > 1 and side.tp <= heads:
        yield Hit(f"DCP {side.dcp}, TP {side.tp}, {heads} KV heads", DCP)


def dcp_maximum(side: Side) -> Iterator[Hit]:
    heads = side.shape.kv_heads if side.shape else None
    if side.mla is False and heads and side.tp > heads and side.dcp > side.tp // heads:
        yield Hit(f"DCP {side.dcp} above {side.tp // heads}", DCP)


def dcp_divides(side: Side) -> Iterator[Hit]:
    if side.pcp == 1 and side.tp % side.dcp:
        yield Hit(f"TP {side.tp}, DCP {side.dcp}", DCP)


def pcp_dcp(side: Side) -> Iterator[Hit]:
    if side.pcp > 1 and side.dcp not in (1, side.pcp, side.tp * side.pcp):
        yield Hit(f"PCP {side.pcp}, DCP {side.dcp}", DCP)


def pcp_runner(side: Side) -> Iterator[Hit]:
    if side.pcp > 1 and side.env.get("VLLM_USE_V2_MODEL_RUNNER") == "0":
        yield Hit("VLLM_USE_V2_MODEL_RUNNER=0", "VLLM_USE_V2_MODEL_RUNNER")


def pcp_model(side: Side) -> Iterator[Hit]:
    if side.pcp > 1 and side.mla is False:
        yield Hit(f"PCP {side.pcp} on a model without MLA", PCP)


def pcp_role(side: Side) -> Iterator[Hit]:
    if side.nixl and side.pcp > 1 and side.kv_role in ("kv_consumer", "kv_both"):
        yield Hit(f"PCP {side.pcp} with {side.kv_role}", PCP)


def pcp_dcp_nixl(side: Side) -> Iterator[Hit]:
    if side.nixl and side.pcp > 1 and side.dcp > 1 and (side.tp != 1 or side.dcp != side.pcp):
        yield Hit(f"TP {side.tp}, PCP {side.pcp}, DCP {side.dcp}", DCP)


def named(side: Side, name: str) -> bool:
    """Whether the connector, or one nested in it, is spelt exactly so."""
    return any(connector.name == name for connector in side.connectors)


def dcp_nixl(side: Side) -> Iterator[Hit]:
    if named(side, "NixlConnector") and side.dcp not in (1, max(side.tp, side.pcp)):
        yield Hit(f"DCP {side.dcp}, TP {side.tp}, PCP {side.pcp}", DCP)


def pull_spelling(side: Side) -> Iterator[Hit]:
    if named(side, "NixlPullConnector") and side.dcp > 1:
        yield Hit(f"NixlPullConnector, DCP {side.dcp}", "kv_transfer_config")


def dcp_not_mla(side: Side) -> Iterator[Hit]:
    if side.nixl and side.dcp > 1 and side.mla is False:
        yield Hit(f"DCP {side.dcp} on a model without MLA", DCP)


def dcp_push(side: Side) -> Iterator[Hit]:
    if side.push and side.dcp > 1:
        yield Hit(f"NixlPushConnector, DCP {side.dcp}", DCP)


def dcp_pair(prefill: Side, decode: Side) -> Iterator[Hit]:
    if not (prefill.nixl and decode.nixl):
        return
    small, large = sorted((prefill.dcp, decode.dcp))
    if large % small or (decode.stateful and small != large):
        yield Hit(f"DCP {prefill.dcp} on prefill, {decode.dcp} on decode", DCP)


def external_lb(side: Side) -> Iterator[Hit]:
    flags = ("data_parallel_external_lb", "data_parallel_hybrid_lb")
    asked = [flag for flag in flags if side.args.flag(flag)]
    if asked and side.dp > 1 and side.shape is not None and not side.shape.moe:
        yield Hit("external load balancing on a dense model", asked[0])
