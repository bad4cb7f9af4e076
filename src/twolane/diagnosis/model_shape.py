"""A model's shape out of its config.json: layers by kind, heads, state sizes, context.

Rules of this file: pure and total. A config is somebody's file: a missing or absurd value makes
the field None, never an exception. Names follow vLLM's model_arch_config_convertor.
"""

from __future__ import annotations

from typing import Any

import msgspec

from twolane.diagnosis.vllm_facts import facts

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
STATE_KINDS = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "kda", "gdn")
SANE = 2**40


class State(msgspec.Struct, frozen=True):
    """Values of one recurrent layer for one sequence, before tensor parallelism."""

    conv: int
    recurrent: int
    kind: str  # gdn, mamba2 or mamba1


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Counts are of layers of the target model; `window` and lengths are in tokens.

    `stateful` says that some layer keeps a recurrent state (Mamba, linear attention).
    """

    model_type: str
    full: int
    sliding: int
    recurrent: int
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    mla: bool
    mla_dim: int | None  # kv_lora_rank + qk_rope_head_dim
    window: int | None
    state: State | None
    stateful: bool
    positions: int | None  # derived maximum length, rope scaling applied
    longer: int | None  # model_max_length, which vLLM accepts as well
    dtype: str
    mtp_layers: int
    moe: bool

    @property
    def layers(self) -> int:
        return self.full + self.sliding + self.recurrent


def whole(value: Any, least: int = 1) -> int | None:
    """`value` as a whole number that can be a size, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not least <= value < SANE or value != int(value):
        return None
    return int(value)


def first(config: dict[str, Any], *names: str) -> int | None:
    return next((n for name in names if (n := whole(config.get(name))) is not None), None)


def words(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list | tuple) else []


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a multi-modal config, or the config itself."""
    for _ in range(3):
        below = next((config[n] for n in NESTED if isinstance(config.get(n), dict)), None)
        if below is None:
            return config
        config = below
    return config


def shape_of(config: object) -> ModelShape | None:
    """The shape that `config` (a parsed config.json) describes; None where it says too little."""
    if not isinstance(config, dict) or not config:
        return None
    text = text_config(config)
    layers = first(text, "num_hidden_layers", "n_layer", "num_layers")
    if layers is None or layers > 10_000:
        return None
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    heads = first(text, "num_attention_heads", "n_head")
    window = whole(text.get("sliding_window"))
    kinds = layer_kinds(text, layers, window, stateful(config, text))
    lora = whole(text.get("kv_lora_rank"))
    mla = lora is not None and model_type in facts().mla_model_types
    return ModelShape(
        model_type=model_type,
        full=kinds.count("full"),
        sliding=kinds.count("sliding"),
        recurrent=kinds.count("state"),
        heads=heads,
        kv_heads=first(text, "n_head_kv", "num_kv_heads", "num_key_value_heads",
                       "multi_query_group_num", "num_attention_groups") or heads,
        head_dim=head_dim(text, heads),
        mla=mla,
        mla_dim=(lora + (whole(text.get("qk_rope_head_dim")) or 0)) if mla and lora else None,
        window=window,
        state=state_of(text),
        stateful=stateful(config, text),
        positions=positions(text),
        longer=first(text, "model_max_length"),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype")
                  or config.get("torch_dtype") or ""),
        mtp_layers=first(text, "num_nextn_predict_layers", "mtp_num_hidden_layers",
                         "mtp_num_layers", "num_mtp_modules", "n_predict") or 0,
        moe=first(text, "num_experts", "n_routed_experts", "num_local_experts",
                  "moe_num_experts") is not None,
    )  # fmt: skip


def head_dim(text: dict[str, Any], heads: int | None) -> int | None:
    said = first(text, "head_dim", "hidden_size_per_head", "attention_head_dim")
    hidden = first(text, "hidden_size", "n_embd")
    return said or (hidden // heads if hidden and heads and hidden >= heads else None)


def stateful(config: dict[str, Any], text: dict[str, Any]) -> bool:
    named = set(words(config.get("architectures"))) & facts().stateful_architectures
    listed = [*words(text.get("layer_types")), *words(text.get("layers_block_type"))]
    return bool(named) or any(kind in STATE_KINDS for kind in listed)


def layer_kinds(text: dict[str, Any], layers: int, window: int | None, state: bool) -> list[str]:
    """`full`, `sliding`, `state` or `none` for each layer."""
    listed = words(text.get("layer_types")) or words(text.get("layers_block_type"))
    if listed:
        return [kind_of(name) for name in listed[:layers]]
    pattern = text.get("hybrid_override_pattern")  # nemotron_h: M state, * attention, - neither
    if isinstance(pattern, str):
        return [{"M": "state", "*": "full"}.get(sign, "none") for sign in pattern[:layers]]
    every = first(text, "full_attention_interval", "attn_layer_period")
    if state and every:
        offset = whole(text.get("attn_layer_offset"), 0)
        at = (every - 1 if offset is None else offset) % every
        return ["full" if i % every == at else "state" for i in range(layers)]
    if state:
        return ["state"] * layers
    if window and text.get("use_sliding_window", True):
        every = first(text, "sliding_window_pattern")
        return ["full" if every and (i + 1) % every == 0 else "sliding" for i in range(layers)]
    return ["full"] * layers


def kind_of(name: str) -> str:
    if name in STATE_KINDS:
        return "state"
    if name in ("sliding_attention", "chunked_attention"):
        return "sliding"
    return "full" if "attention" in name or name == "hybrid" else "none"


def state_of(text: dict[str, Any]) -> State | None:
    """State values of one recurrent layer, from vLLM's mamba_utils.MambaStateShapeCalculator."""
    k_heads, v_heads = first(text, "linear_num_key_heads"), first(text, "linear_num_value_heads")
    k_dim, v_dim = first(text, "linear_key_head_dim"), first(text, "linear_value_head_dim")
    if k_heads and v_heads and k_dim and v_dim:
        taps = (first(text, "linear_conv_kernel_dim") or 4) - 1
        conv = (2 * k_heads * k_dim + v_heads * v_dim) * taps
        return State(conv, v_heads * v_dim * k_dim, "gdn")
    size = first(text, "ssm_state_size", "mamba_d_state", "state_size")
    taps = (first(text, "conv_kernel", "mamba_d_conv") or 4) - 1
    heads = first(text, "mamba_num_heads", "mamba_n_heads")
    dim = first(text, "mamba_head_dim", "mamba_d_head")
    if size and heads and dim:
        groups = first(text, "n_groups", "mamba_n_groups") or 1
        return State((heads * dim + 2 * groups * size) * taps, heads * dim * size, "mamba2")
    hidden = first(text, "hidden_size")
    inner = first(text, "intermediate_size") if text.get("model_type") == "mamba" else None
    inner = inner or ((first(text, "mamba_expand") or 2) * hidden if hidden else None)
    return State(inner * taps, inner * size, "mamba1") if size and inner else None


# max_position_embeddings of these is the scaled length already (config/model.py of 0.32).
SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")


def positions(text: dict[str, Any]) -> int | None:
    """vLLM's derived maximum length: positions times the rope factor, where vLLM applies it."""
    base = first(text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length",
                 "max_sequence_length", "max_seq_length", "seq_len")  # fmt: skip
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if base is None or not isinstance(scaling, dict) or "gemma3" in str(text.get("model_type")):
        return base
    factor = scaling.get("factor")
    if scaling.get("rope_type", scaling.get("type")) in SCALED or isinstance(factor, bool):
        return base
    good = isinstance(factor, int | float) and 0 < factor < 1e6
    return int(base * float(factor)) if good and factor else base
