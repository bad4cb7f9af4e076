"""How much memory one sequence's cache takes, by kind of layer.

Rules of this file: pure arithmetic on a ModelShape. The formulas are those of vLLM 0.32's
v1/kv_cache_interface.py (max_memory_usage_bytes) and layers/mamba/mamba_utils.py. vLLM also pads
pages so that layer kinds share one pool; MARGIN covers that, so an estimate can convict only
where it exceeds what is there by more than the margin.
"""

from __future__ import annotations

from math import ceil

import msgspec

from twolane.diagnosis.model_shape import ModelShape

MARGIN = 1.25
BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "auto": 2}
GIB = 2**30


class KvNeed(msgspec.Struct, frozen=True):
    """Bytes of one sequence on one rank, by layer kind."""

    full: int = 0
    mla: int = 0
    sliding: int = 0
    state: int = 0

    @property
    def total(self) -> int:
        return self.full + self.mla + self.sliding + self.state


def value_bytes(cache_dtype: str, model_dtype: str) -> float:
    """Bytes a cached value takes: the cache's dtype, which `auto` takes from the model."""
    if cache_dtype.startswith(("fp8", "int8")):
        return 1
    if "4" in cache_dtype and cache_dtype.startswith(("nvfp4", "int4")):
        return 0.5625  # 4 bits and a scale byte for every 16 values
    if cache_dtype == "auto":
        return BYTES.get(model_dtype.removeprefix("torch."), 2)
    return BYTES.get(cache_dtype, 2)


def kv_need(
    shape: ModelShape,
    tokens: int,
    *,
    tp: int = 1,
    dcp: int = 1,
    block: int = 16,
    in_flight: int = 8192,
    value: float = 2,
    state_value: float = 2,
) -> KvNeed:
    """Bytes that one sequence of `tokens` needs on one rank.

    `tp` and `dcp` are parallel sizes, `block` tokens per block, `in_flight` the tokens scheduled
    and not yet settled (they extend a sliding window), `value` and `state_value` bytes per value.
    Full attention with G heads: 2 G/tp d per token. MLA: one latent per token, on every rank.
    Sliding window: as full, of at most window - 1 + in_flight tokens and one block. Recurrent
    layers: a constant. Layers whose sizes are unknown count nothing.
    """
    blocks = ceil(ceil(tokens / dcp) / block) * block
    heads = ceil(shape.kv_heads / tp) if shape.kv_heads else 0
    per_token = 2 * heads * (shape.head_dim or 0) * value
    state = shape.state
    return KvNeed(
        full=0 if shape.mla else int(shape.full * blocks * per_token),
        mla=int(shape.full * blocks * (shape.mla_dim or 0) * value) if shape.mla else 0,
        sliding=int(shape.sliding * held(shape.window, tokens, in_flight, block) * per_token),
        state=int(shape.recurrent * (state.conv + state.recurrent) / tp * state_value)
        if state
        else 0,
    )


def held(window: int | None, tokens: int, in_flight: int, block: int) -> int:
    """Tokens that a sliding-window layer holds at most, in whole blocks."""
    if window is None:
        return ceil(tokens / block) * block
    return (ceil(min(window - 1 + in_flight, tokens) / block) + 1) * block


def longest(shape: ModelShape, available: int, **how: float) -> int:
    """The most tokens one sequence can have in `available` bytes, by bisection; 0 if none."""
    low, high = 0, 2**27
    while low < high:
        middle = (low + high + 1) // 2
        fits = kv_need(shape, middle, **how).total <= available  # type: ignore[arg-type]
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
