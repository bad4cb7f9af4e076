"""Checks behind the rules of pair.py: small pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side, pairs
from twolane.diagnosis.rule import Context, Hit, Match

CPU_BLOCK = 128  # platforms/cpu.py, for models without MLA
LAYOUT = "VLLM_KV_CACHE_LAYOUT"
ALIAS = {"NHD": "LBNHC", "HND": "LBHNC"}
DTYPES = {"half": "float16", "float": "float32"}


def dtype_of(side: Side) -> str | None:
    """The dtype the model will have, None where it depends on the host."""
    said = side.args.text("dtype") or "auto"
    if said != "auto":
        return DTYPES.get(said, said)
    model = side.shape.dtype.removeprefix("torch.") if side.shape else ""
    return model if model in ("bfloat16", "float16") and side.platform != "cpu" else None


def factors(side: Side) -> dict[str, tuple[str | None, str]]:
    """What the NIXL compatibility hash sees of a command line -> value and option."""
    backend = side.args.text("attention_backend")
    return {
        "model": (side.args.model, "model"),
        "dtype": (dtype_of(side), "dtype"),
        "kv-cache-dtype": (side.args.text("kv_cache_dtype") or "auto", "kv_cache_dtype"),
        "attention-backend": (backend.upper() if backend else None, "attention_backend"),
        "hybrid KV manager": (
            str(not side.args.flag("disable_hybrid_kv_cache_manager") and side.keeps_hma()),
            "disable_hybrid_kv_cache_manager",
        ),
        "transfer": ("push" if side.push else "pull", "kv_transfer_config"),
    }


def hash_factors(prefill: Side, decode: Side) -> Iterator[Hit]:
    if not (prefill.nixl and decode.nixl):
        return
    theirs = factors(prefill)
    for name, (ours, at) in factors(decode).items():
        other = theirs[name][0]
        if ours is not None and other is not None and ours != other:
            yield Hit(f"{name}: {prefill.name} has {other}, {decode.name} has {ours}", at)


def block(side: Side) -> int | None:
    """Tokens a block: as given, or on CPUs the default; on GPUs the attention backend has its own.

    Unknown where neither applies.
    """
    plain = side.platform == "cpu" and side.mla is False
    return side.block or (CPU_BLOCK if plain else None)


def blocks(prefill: Side, decode: Side) -> tuple[int, int] | None:
    """(P, D) block sizes where both are known and nothing inflates them."""
    known = prefill.nixl and decode.nixl and not decode.stateful
    both = (block(prefill), block(decode))
    return (both[0], both[1]) if known and both[0] and both[1] else None


def said_blocks(sizes: tuple[int, int], extra: str = "") -> Hit:
    return Hit(f"block size {sizes[0]} on prefill, {sizes[1]} on decode{extra}", "block_size")


def blocks_divide(prefill: Side, decode: Side) -> Iterator[Hit]:
    sizes = blocks(prefill, decode)
    if sizes and sizes[1] % sizes[0]:
        yield said_blocks(sizes)


def blocks_and_tp(prefill: Side, decode: Side) -> Iterator[Hit]:
    sizes = blocks(prefill, decode)
    if sizes and sizes[0] != sizes[1] and prefill.tp > decode.tp and decode.mla is False:
        yield said_blocks(sizes, f", TP {prefill.tp} and {decode.tp}")


def blocks_and_host_buffer(prefill: Side, decode: Side) -> Iterator[Hit]:
    sizes = blocks(prefill, decode)
    bounced = (decode.transfer or {}).get("kv_buffer_device") == "cpu" and decode.platform != "cpu"
    if sizes and sizes[0] != sizes[1] and bounced:
        yield said_blocks(sizes, ", kv_buffer_device=cpu")


def block_once(prefill: Side, decode: Side) -> Iterator[Hit]:
    if prefill.nixl and decode.nixl and (prefill.block is None) != (decode.block is None):
        one = prefill if prefill.block else decode
        yield Hit(f"--block-size {one.block} on {one.name} alone", "block_size", side=one.name)


def connector_once(prefill: Side, decode: Side) -> Iterator[Hit]:
    """One engine of a pair can hand over or take KV, the other cannot."""
    lacks = [
        s for s in (prefill, decode) if s.transfer is None and not s.args.text("kv_transfer_config")
    ]
    if len(lacks) == 1:
        yield Hit(
            f"no --kv-transfer-config on {lacks[0].name}", "kv_transfer_config", side=lacks[0].name
        )


def tp_divide(prefill: Side, decode: Side) -> Iterator[Hit]:
    small, large = sorted((prefill.tp, decode.tp))
    if prefill.nixl and decode.nixl and large % small:
        yield Hit(f"TP {prefill.tp} on prefill, {decode.tp} on decode", "tensor_parallel_size")


def replicated_heads(prefill: Side, decode: Side) -> Iterator[Hit]:
    shape = decode.shape
    if shape is None or shape.mla or shape.stateful or not shape.kv_heads:
        return
    if prefill.nixl and decode.nixl and prefill.tp > max(decode.tp, shape.kv_heads):
        value = f"TP {prefill.tp} on prefill, {decode.tp} on decode, {shape.kv_heads} KV heads"
        fix = fix_tp(prefill.tp, decode.tp, shape.kv_heads)
        yield Hit(value, "tensor_parallel_size", fix=fix)


def fix_tp(prefill: int, decode: int, heads: int) -> str:
    return (
        f"Prefill TP {prefill} > decode TP {decode} with num_key_value_heads {heads}: make "
        f"TP(P) <= {heads}, or TP(D) >= TP(P)."
    )


def tp_sizes(_: list[Match], context: Context) -> str:
    deployment = context.deployment
    sides = [Side(engine, deployment) for engine in deployment.engines] if deployment else []
    for prefill, decode in pairs(sides):
        if decode.shape and decode.shape.kv_heads:
            return fix_tp(prefill.tp, decode.tp, decode.shape.kv_heads)
    return (
        "The prefill TP exceeds the decode TP and num_key_value_heads: make TP(P) <= "
        "num_key_value_heads, or TP(P) <= TP(D)."
    )


def layout(side: Side) -> str:
    said = side.env.get(LAYOUT) or "LBHNC"  # what NIXL asks for where nothing is set
    return ALIAS.get(said, said)


def layouts(prefill: Side, decode: Side) -> Iterator[Hit]:
    ours, theirs = layout(decode), layout(prefill)
    if not (prefill.nixl and decode.nixl) or ours == theirs or decode.mla:
        return
    permuted = (decode.transfer or {}).get("enable_permute_local_kv")
    if not (permuted and (theirs, ours) == ("LBHNC", "LBNHC")):
        one = decode if decode.env.get(LAYOUT) else prefill
        yield Hit(f"{prefill.name} has {theirs}, {decode.name} has {ours}", LAYOUT, side=one.name)


def layout_side(found: list[Match], context: Context) -> str:
    local, remote = found[0].groups[:2]
    name = {"LBNHC": "LBNHC (NHD)", "LBHNC": "LBHNC (HND)"}
    return (f"This engine has {name.get(local, local)}, its peer {name.get(remote, remote)}: unset "
            f"{LAYOUT} on both sides (NIXL asks for LBHNC itself), or set the same.")  # fmt: skip


def heads_contiguous(prefill: Side, decode: Side) -> Iterator[Hit]:
    shape = decode.shape
    both = layout(prefill) == layout(decode) == "LBNHC"
    if not both or prefill.tp == decode.tp or shape is None or shape.mla:
        return
    if prefill.nixl and decode.nixl and prefill.tp <= (shape.kv_heads or 0):
        yield Hit(f"TP {prefill.tp} and {decode.tp} with layout LBNHC", LAYOUT)


def push_hybrid(prefill: Side, decode: Side) -> Iterator[Hit]:
    if not (prefill.push and decode.push and decode.hybrid_attention) or decode.mla:
        return
    sizes = blocks(prefill, decode)
    if sizes and sizes[0] != sizes[1]:
        yield said_blocks(sizes)
    if decode.tp > prefill.tp:
        yield Hit(f"TP {prefill.tp} on prefill, {decode.tp} on decode", "tensor_parallel_size")


def draft_counts(prefill: Side, decode: Side) -> Iterator[Hit]:
    counts = (prefill.drafts, decode.drafts)
    if prefill.method == decode.method == "mtp" and all(counts) and counts[0] != counts[1]:
        yield Hit(f"num_speculative_tokens {counts[0]} and {counts[1]}", "speculative_config")


def unreachable(_: list[Match], context: Context) -> str:
    host, port = peer(context)
    where = f"{host}:{port}" if host else "the prefill engine's side channel"
    inside = " (an address inside Docker)" if host.startswith("172.17.") else ""
    return (f"The decode engine cannot reach {where}{inside}: is that engine alive, and is "
            "VLLM_NIXL_SIDE_CHANNEL_HOST on it an address that other hosts can reach? Try a TCP "
            "connection from the decode engine's namespace, or use the host network.")  # fmt: skip


def peer(context: Context) -> tuple[str, str]:
    """Host and port of the remote engine, from the Context of a transfer failure."""
    for match in (*context.matches.get("RUN21", []), *context.matches.get("RUN03", [])):
        host = between(match.line, "'remote_host': '", "'")
        port = between(match.line, "'remote_port': ", ",", "}")
        if host:
            return host, port
    return "", ""


def between(text: str, start: str, *ends: str) -> str:
    _, found, rest = text.partition(start)
    cut = min((rest.find(end) for end in ends if end in rest), default=len(rest))
    return rest[:cut].strip() if found else ""
