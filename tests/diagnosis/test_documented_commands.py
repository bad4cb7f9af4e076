"""Command lines that vLLM's own documentation gives for working servers: no alarm on any.

Taken as facts from docs.vllm.ai (NixlConnector usage, data parallel and parallelism guides, CLI
reference, speculative decoding, recipes) as far as their options still exist in 0.32.
"""

from __future__ import annotations

import shlex

import pytest
from tests.diagnosis.fleet import HYBRID, MLA

from twolane.diagnosis.deployment import Deployment, Engine
from twolane.diagnosis.preflight import check
from twolane.diagnosis.vllm_args import parse

NIXL = """'{"kv_connector":"NixlConnector","kv_role":"%s","kv_load_failure_policy":"fail"}'"""
COMMANDS = [
    "vllm serve meta-llama/Llama-3.2-1B-Instruct --dtype auto --max-model-len 4096 "
    "--trust-remote-code",
    "vllm serve facebook/opt-125m --host 0.0.0.0 --port 8080",
    "vllm serve mistralai/Mistral-7B-v0.1 --gpu-memory-utilization 0.95 --max-model-len 8192",
    "vllm serve TheBloke/Llama-2-13B-AWQ --quantization awq",
    "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 "
    "--pipeline-parallel-size 2",
    "vllm serve $MODEL --data-parallel-size 4 --tensor-parallel-size 2 --api-server-count=4",
    "vllm serve $MODEL --data-parallel-size 4 --data-parallel-size-local 2 "
    "--data-parallel-address 10.99.48.128 --data-parallel-rpc-port 13345",
    "vllm serve $MODEL --headless --data-parallel-size 4 --data-parallel-size-local 2 "
    "--data-parallel-start-rank 2 --data-parallel-address 10.99.48.128 "
    "--data-parallel-rpc-port 13345",
    "vllm serve $MODEL --data-parallel-size 4 --data-parallel-size-local 2 "
    "--data-parallel-backend=ray",
    "CUDA_VISIBLE_DEVICES=0 vllm serve $MODEL --data-parallel-size 2 --data-parallel-rank 0 "
    "--port 8000",
    "VLLM_NIXL_SIDE_CHANNEL_PORT=5600 CUDA_VISIBLE_DEVICES=0 UCX_NET_DEVICES=all vllm serve "
    f"Qwen/Qwen3-0.6B --port 8100 --enforce-eager --kv-transfer-config {NIXL % 'kv_both'}",
    "VLLM_NIXL_SIDE_CHANNEL_HOST=10.1.0.1 UCX_TLS=rc,ud,sm,^cuda_ipc vllm serve Qwen/Qwen3-0.6B "
    f"--port 8000 --tensor-parallel-size 8 --kv-transfer-config {NIXL % 'kv_producer'}",
    "vllm serve Qwen/Qwen3-0.6B --kv-transfer-config.kv_connector NixlConnector "
    "--kv-transfer-config.kv_role kv_both "
    "--kv-transfer-config.kv_connector_extra_config.backends+ LIBFABRIC",
    "vllm serve deepseek-ai/DeepSeek-R1-0528 --trust-remote-code --tensor-parallel-size 8 "
    "--enable-expert-parallel",
    "vllm serve deepseek-ai/DeepSeek-R1-0528 --trust-remote-code --data-parallel-size 8 "
    "--enable-expert-parallel --all2all-backend deepep_low_latency",
    "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --tensor-parallel-size 4 "
    "--served-model-name qwen3-next --enable-prefix-caching",
    "vllm serve Qwen/Qwen3.6-35B-A3B --tensor-parallel-size 8 --max-model-len 262144 "
    """--reasoning-parser qwen3 --speculative-config '{"method": "mtp", """
    """"num_speculative_tokens": 2}'""",
    "vllm serve zai-org/GLM-4.7-FP8 --tensor-parallel-size 4 --speculative-config.method mtp "
    "--speculative-config.num_speculative_tokens 1 --tool-call-parser glm47 "
    "--reasoning-parser glm45 --enable-auto-tool-choice --served-model-name glm-4.7-fp8",
    """vllm serve Qwen/Qwen3-8B -tp 1 --speculative-config '{"model": """
    """"RedHatAI/Qwen3-8B-speculator.eagle3", "num_speculative_tokens": 3, "method": "eagle3"}'""",
    "vllm serve Qwen/Qwen3-8B --hf-overrides "
    """'{"rope_parameters": {"rope_type": "yarn", "factor": 4.0, """
    """"original_max_position_embeddings": 32768}, "max_position_embeddings": 131072}' """
    "--max-model-len 131072",
    "python -m vllm.entrypoints.openai.api_server --model facebook/opt-125m --max_num_seqs 16 "
    "--max-num-batched-tokens 2k",
    """vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-transfer-config '{"kv_connector": """
    """"OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": """
    """{"cpu_bytes_to_use": 8589934592}}'""",
    "vllm serve meta-llama/Llama-2-7b-hf --enable-lora --max-loras 4 --lora-modules "
    "sql-lora=yard1/llama-2-7b-sql-lora-test -O3",
]


def engine(command: str) -> Engine:
    words = shlex.split(command)
    split = next(i for i, word in enumerate(words) if "=" not in word)
    env = dict(word.split("=", 1) for word in words[:split])
    return Engine(name="e0", argv=words[split:], env=env)


def config(command: str) -> dict[str, object] | None:
    known = {"Qwen3-Next": HYBRID, "DeepSeek-R1": MLA}
    return next((c for name, c in known.items() if name in command), None)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_alarm(command: str) -> None:
    found = check(Deployment(model_config=config(command), engines=[engine(command)]))
    assert [(f.rule, f.value) for f in found if f.severity != "info"] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_word_is_understood(command: str) -> None:
    arguments = parse(engine(command).argv)
    assert arguments.problems == []
    assert arguments.model is not None


def test_the_documented_pair_on_one_host_raises_no_alarm() -> None:
    line = "vllm serve Qwen/Qwen3-0.6B --port {} --enforce-eager --kv-transfer-config {}"
    ports = {"p0": ("prefill", 8100, 5600), "d0": ("decode", 8200, 5601)}
    engines = [
        Engine(
            name=name,
            role=role,  # type: ignore[arg-type]
            argv=shlex.split(line.format(port, NIXL % "kv_both")),
            env={"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)},
            devices=[side - 5600],
        )
        for name, (role, port, side) in ports.items()
    ]
    found = check(Deployment(engines=engines))
    assert [f.rule for f in found if f.severity != "info"] == []
