"""Ways to make real engines fail, each with the rule that must name the cause.

A `Failure` of start-up is one engine with other arguments or surroundings; `known` says whether
preflight alone must catch it, `quick` whether it always runs.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import twolane.models.needle

NEEDLE = twolane.models.needle.path()
SIDE_HOST, SIDE_PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
PORT, SIDE = 31811, 31812  # held by the test itself where a failure wants a taken port


@dataclass(frozen=True)
class Failure:
    """`fix` are words that must stand in the finding's remedy; `cause` the rule, or "A or B"."""

    id: str
    cause: str
    fix: str
    known: bool = True
    quick: bool = False
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    model: Callable[[Path], Path] | None = None
    held: Callable[[], AbstractContextManager[Any]] = nullcontext
    kill: str = ""  # a process whose first line in the log is its last


def connector(**more: Any) -> str:
    return json.dumps({"kv_connector": "NixlConnector", **more})


def without_config(folder: Path) -> Path:
    model = _copy(folder)
    (model / "config.json").unlink()
    return model


def cut_weights(folder: Path) -> Path:
    model = _copy(folder)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4096])
    return model


def hybrid(folder: Path) -> Path:
    """A random model of three linear-attention layers and one of full attention."""
    model = _copy(folder)
    (model / "model.safetensors").unlink()
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "vocab_size": json.loads((NEEDLE / "config.json").read_text())["vocab_size"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "max_position_embeddings": 32768,
        "torch_dtype": "float32",
    }
    (model / "config.json").write_text(json.dumps(config))
    return model


def _copy(folder: Path) -> Path:
    names = ("config.json", "generation_config.json", "model.safetensors")
    folder.mkdir()
    for name in (*names, "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(NEEDLE / name, folder / name)
    return folder


def listening(port: int) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: socket.create_server(("127.0.0.1", port))


def no_nixl(folder: Path) -> dict[str, str]:
    """Variables under which `import nixl` fails, as where the package is not installed."""
    for name in ("nixl", "nixl_cu13", "nixl_cu12"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        text = f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n"
        (folder / name / "__init__.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


START_UP = (
    Failure("unknown option", "ENV04", "remove it", quick=True, args=("--swap-space", "4")),
    Failure(
        "removed field", "CFG03", "Delete", quick=True,
        args=("--kv-transfer-config", connector(kv_role="kv_producer", kv_rank=0)),
    ),
    Failure(
        "role missing", "CFG01", "kv_producer", args=("--kv-transfer-config", connector()),
    ),
    Failure(
        "budget below context without chunking", "TOK02", "chunked prefill", quick=True,
        args=("--no-enable-chunked-prefill", "--max-num-batched-tokens", "256"),
    ),
    Failure("longer than the model", "TOK01", "Lower it", args=("--max-model-len", "65536")),
    Failure("utilization of 90", "MEM09", "0.90", args=("--gpu-memory-utilization", "90")),
    Failure("KV too small", "MEM01", "max-model-len", quick=True,
            args=("--kv-cache-memory-bytes", "8M")),
    Failure("KV larger than the host", "MEM11", "VLLM_CPU_KVCACHE_SPACE",
            env={"VLLM_CPU_KVCACHE_SPACE": "512"}),
    Failure("model without config.json", "RUN25", "config.json", quick=True, model=without_config),
    Failure("weights cut short", "RUN25", "safetensors", model=cut_weights),
    Failure("hybrid model in SD layout", "HYB01", "VLLM_SSM_CONV_STATE_LAYOUT=DS", model=hybrid,
            args=("--load-format", "dummy", "--hf-overrides", "{}"),
            env={"VLLM_SSM_CONV_STATE_LAYOUT": "SD"}),
    Failure("API port taken", "PORT05", "owns the port", quick=True,
            args=("--port", str(PORT)), held=listening(PORT)),
    Failure("side-channel port taken", "PORT01", "VLLM_NIXL_SIDE_CHANNEL_PORT", quick=True,
            env={SIDE_PORT: str(SIDE)}, held=listening(SIDE)),
    Failure("side channel on another host", "PORT02", "own IP",
            env={SIDE_HOST: "192.0.2.77"}),
    Failure("nixl missing", "CFG07", "Install nixl", known=False, env={"PYTHONPATH": "no nixl"}),
    # vLLM's poller may see the end before the exit code: then its log says '{}', not '-9'
    Failure("engine core killed at start-up", "RUN26 or RUN27", "OOM killer", known=False,
            quick=True, kill="EngineCore"),
)  # fmt: skip

KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
