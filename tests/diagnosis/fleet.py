"""Deployments to judge: a clean pair of engines, changed where a test says so."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from twolane.diagnosis.deployment import Deployment, Engine

DENSE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "dtype": "bfloat16",
}
HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "hidden_size": 2048,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "max_position_embeddings": 262144,
    "dtype": "bfloat16",
}
MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "dtype": "bfloat16",
}
SLIDING: dict[str, Any] = {
    **DENSE,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 6,
}
MODELS = {"dense": DENSE, "hybrid": HYBRID, "mla": MLA, "sliding": SLIDING}
MTP = """--speculative-config={"method":"mtp","num_speculative_tokens":1}"""


def transfer(role: str, connector: str = "NixlConnector", **more: Any) -> str:
    return json.dumps({"kv_connector": connector, "kv_role": role, **more})


def engine(
    name: str, role: Any, port: int, args: str, kv: dict[str, Any], env: dict[str, str], **more: Any
) -> Engine:
    kv_role = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}[role]
    argv = ["vllm", "serve", "Qwen/Qwen3-8B", "--port", str(port)]
    if role != "both":
        argv += ["--kv-transfer-config", transfer(**{"role": kv_role, **kv})]
    return Engine(name=name, role=role, argv=argv + args.split(), env=env, **more)


def pair(
    p: str = "",
    d: str = "",
    *,
    both: str = "",
    model: str | dict[str, Any] = "dense",
    kv: dict[str, Any] | None = None,
    pkv: dict[str, Any] | None = None,
    dkv: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    penv: dict[str, str] | None = None,
    denv: dict[str, str] | None = None,
    phost: str = "",
    dhost: str = "",
    pdev: list[int] | None = None,
    ddev: list[int] | None = None,
    **fields: Any,
) -> Deployment:
    """A prefill engine p0 and a decode engine d0 on one CUDA host that agree in everything."""
    config = MODELS[model] if isinstance(model, str) else model
    state = {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"} if model == "hybrid" else {}
    ports = ({"VLLM_NIXL_SIDE_CHANNEL_PORT": port} for port in ("5600", "5700"))
    penv, denv = (
        {**state, **port, **(env or {}), **(own or {})}
        for port, own in zip(ports, (penv, denv), strict=True)
    )
    prefill, decode = (
        engine(name, role, port, f"{both} {args}", {**(kv or {}), **(own or {})}, envs,
               host=host, devices=devices)
        for name, role, port, args, own, envs, host, devices in (
            ("p0", "prefill", 8100, p, pkv, penv, phost, pdev),
            ("d0", "decode", 8200, d, dkv, denv, dhost, ddev),
        )
    )  # fmt: skip
    return Deployment(model_config=config, engines=[prefill, decode], **fields)


def unconnected(deployment: Deployment, *names: str) -> Deployment:
    """The same engines, those of `names` without a KV connector."""
    engines = []
    for one in deployment.engines:
        argv, at = list(one.argv), one.argv.index("--kv-transfer-config")
        if one.name in names:
            del argv[at : at + 2]
        engines.append(msgspec.structs.replace(one, argv=argv))
    return msgspec.structs.replace(deployment, engines=engines)


def single(args: str = "", *, model: str = "dense", env: Any = None, **fields: Any) -> Deployment:
    """One aggregated engine."""
    one = engine("e0", "both", 8000, args, {}, env or {})
    return Deployment(model_config=MODELS[model], engines=[one], **fields)
