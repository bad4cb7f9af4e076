"""The command-line reader against what vLLM's parser does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.diagnosis.vllm_args import Problem, parse


@pytest.mark.parametrize(
    ("words", "dest", "value"),
    [
        ("--max-model-len 128k", "max_model_len", 128_000),
        ("--max-model-len=128K", "max_model_len", 131_072),
        ("--max_model_len 25.6k", "max_model_len", 25_600),
        ("--max-model-len auto", "max_model_len", -1),
        ("--max-model-len -1", "max_model_len", -1),
        ("-tp 4", "tensor_parallel_size", 4),
        ("-tp=4", "tensor_parallel_size", 4),
        ("--tensor-parallel 4", "tensor_parallel_size", 4),
        ("--enable-prefix-caching", "enable_prefix_caching", True),
        ("--no-enable-prefix-caching", "enable_prefix_caching", False),
        ("-O3", "optimization_level", "3"),
        ("-O 2", "optimization_level", "2"),
        ("--gpu-memory-utilization 0.9", "gpu_memory_utilization", 0.9),
        ("--served-model-name a b", "served_model_name", ["a", "b"]),
        ("-cc.cudagraph_mode=NONE", "compilation_config", {"cudagraph_mode": "NONE"}),
        ('--kv-transfer-config {"kv_role":"x"}', "kv_transfer_config", {"kv_role": "x"}),
        ("--kv-transfer-config.a.b 1k", "kv_transfer_config", {"a": {"b": 1000}}),
        ("--kv_transfer_config.a_b x", "kv_transfer_config", {"a_b": "x"}),
        ("--kv-transfer-config.a+ x --kv-transfer-config.a+ y", "kv_transfer_config",
         {"a": ["x", "y"]}),
        ("--speculative-config None --seed 1", "seed", 1),
    ],
)  # fmt: skip
def test_reads(words: str, dest: str, value: Any) -> None:
    arguments = parse(words.split())
    assert arguments.values[dest] == value
    assert arguments.problems == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--swap-space 4", Problem("unknown", "--swap-space")),
        ("--max-model-len", Problem("missing", "--max-model-len")),
        ("--max-model-len --seed 1", Problem("missing", "--max-model-len")),
        ("--max-model-len 1.5K", Problem("value", "--max-model-len", "1.5K", "int_or_auto")),
        ("--port http", Problem("value", "--port", "http", "int")),
        ("--enforce-eager=true", Problem("flag", "--enforce-eager", "true")),
        ("--dtype fp16", Problem("choice", "--dtype", "fp16",
                                 "auto, bfloat16, float, float16, float32, half")),
        ("--kv-transfer-config {", Problem("value", "--kv-transfer-config", "{", "json")),
    ],
)  # fmt: skip
def test_says_what_vllm_would_refuse(words: str, problem: Problem) -> None:
    assert parse(words.split()).problems == [problem]


def test_an_abbreviation_of_several_options_is_ambiguous() -> None:
    assert [p.kind for p in parse(["--max-num", "4"]).problems][:1] == ["ambiguous"]


@pytest.mark.parametrize(
    "program",
    [
        "vllm serve m",
        "/opt/venv/bin/vllm serve m",
        "taskset -c 0,1 vllm serve m",
        "python -m vllm.entrypoints.openai.api_server --model m",
        "python3 -m vllm.entrypoints.cli.main serve m",
        "serve m",
        "m",
    ],
)
def test_finds_the_model_behind_any_program(program: str) -> None:
    assert parse([*program.split(), "--port", "8100"]).model == "m"


def test_dotted_keys_replace_a_whole_json_argument() -> None:
    words = ["--kv-transfer-config", '{"kv_role":"a"}', "--kv-transfer-config.engine_id", "b"]
    assert parse(words).values["kv_transfer_config"] == {"engine_id": "b"}


WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["--", "-", "--kv-transfer-config", "--a.b", "-tp", "--x=", "-O", "--max-model-len", "{}",
         "--kv-transfer-config.x+", "9" * 5000, "1e999", "-1", "[" * 3000, "--no-", "serve", "-m"]
    ),
)  # fmt: skip


@given(st.lists(WORDS, max_size=12))
def test_never_raises_and_always_says_the_same(argv: list[str]) -> None:
    assert parse(argv) == parse(argv)


@pytest.mark.parametrize(
    "words",
    [
        ["--kv-transfer-config", "[1,2]"],
        ["--kv-transfer-config", "3"],
        ["--tensor-parallel-size", "0"],
        ["-tp", "-4"],
    ],
)
def test_values_of_the_right_kind_that_make_no_sense_are_problems(words: list[str]) -> None:
    assert [p.kind for p in parse(["vllm", "serve", "m", *words]).problems] == ["value"]


def test_lists_are_taken_where_vllm_takes_lists() -> None:
    assert parse(["vllm", "serve", "m", "--allowed-origins", '["*"]']).problems == []
