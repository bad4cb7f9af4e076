"""models.yaml: the source's shape loads, and each fault is named at its place."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twolane.config import load_models
from twolane.config.source import parse
from twolane.engines.launch import argv
from twolane.engines.launch import given as has_flag
from twolane.errors import ConfigError, QuestionError

CONFIGS = Path(__file__).parents[2] / "configs"
NODE = """\
node:
  platform: gpu
  groups: {GROUP_A: [0, 1, 2, 3], GROUP_B: [4, 5, 6, 7]}
models:
  qwen38_27b:
    path: Qwen/Qwen3.8-27B
    layouts:
"""
# As a document prints it: flow lists with unquoted JSON, a comment, and an entry trimmed by dots.
TRIMMED = """\
      pd_prefill_a: {gpus: $GROUP_A, tp: 4, env: {VLLM_KV_CACHE_LAYOUT: HND, UCX_NET_DEVICES: all},   # + VLLM_SSM_CONV_STATE_LAYOUT: DS for the rerun
                     args: [--tensor-parallel-size 4, --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}']}
      pd_decode_b:  {gpus: $GROUP_B, tp: 4, ...  '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'}
      # GLM-5.3-Flash adds MTP (3 draft tokens) on both sides, --enforce-eager on prefill
      pd_1p1d: {prefill: pd_prefill_a, decode: pd_decode_b}
"""  # noqa: E501


def written(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(text)
    return path


def test_a_trimmed_snippet_loads_as_documents_print_it(tmp_path: Path) -> None:
    layout = load_models(written(tmp_path, NODE + TRIMMED)).models["qwen38_27b"].layouts["pd_1p1d"]
    prefill, decode = layout.engines
    assert layout.split
    assert (prefill.role, prefill.group, prefill.devices, prefill.tp) == (
        "prefill", "GROUP_A", (0, 1, 2, 3), 4,
    )  # fmt: skip
    assert (decode.role, decode.group, decode.devices) == ("decode", "GROUP_B", (4, 5, 6, 7))
    assert prefill.args == (
        "--tensor-parallel-size", "4", "--kv-transfer-config",
        '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}',
    )  # fmt: skip
    assert decode.args[-1] == '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
    assert decode.args[:2] == ("--tensor-parallel-size", "4")
    assert dict(decode.env) == {"VLLM_KV_CACHE_LAYOUT": "HND", "UCX_NET_DEVICES": "all"}


def test_the_users_connector_is_not_given_twice(tmp_path: Path) -> None:
    model = load_models(written(tmp_path, NODE + TRIMMED)).models["qwen38_27b"]
    words = argv(model, model.layouts["pd_1p1d"].engines[0], "gpu", 8100)
    assert words.count("--kv-transfer-config") == 1
    assert words.count("--tensor-parallel-size") == 1


@pytest.mark.parametrize("name", ["models.yaml", "cpu.yaml"])
def test_the_shipped_files_load(name: str) -> None:
    models = load_models(CONFIGS / name)
    for model in models.models.values():
        splits = [layout for layout in model.layouts.values() if layout.split]
        assert splits, f"{model.name} has no split"


def test_the_source_nodes_layouts() -> None:
    models = load_models(CONFIGS / "models.yaml").models
    assert {"tp4_dp2", "tp1_dp4", "pd_1p1d"} <= models["qwen38_27b"].layouts.keys()
    glm = models["glm53_flash"].layouts["pd_1p1d"].engines
    assert [has_flag(e.args, "--speculative-config") for e in glm] == [True, True]
    assert [has_flag(e.args, "--enforce-eager") for e in glm] == [True, False]
    assert all(e.env["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS" for e in glm)


FAULTS = [
    # (layouts, line, column, words of the message, words of the remedy)
    ("      a: {gpus: $GROUP_A, tpp: 4}\n", 8, 27, "unknown key 'tpp'", "'tp'"),
    ("      a: {gpus: $GRUOP_A}\n", 8, 17, "'$GRUOP_A' is not a group", "$GROUP_A"),
    ("      a: {gpus: $GROUP_A, tp: 3}\n", 8, 31, "tp 3 does not divide", "divisor"),
    ("      a: {gpus: $GROUP_A, tp: zero}\n", 8, 31, "'zero'", "correct"),
    ("      a: {gpus: $GROUP_A}\n      a: {gpus: $GROUP_B}\n", 9, 7, "duplicate", "one of the two"),
    ("      a: {cores: $GROUP_A}\n", 8, 10, "does not say gpus", "gpus"),
    ("      a: {gpus: $GROUP_A}\n      b: {prefill: a}\n", 9, 10, "nothing", "exactly one"),
    ("      a: {gpus: $GROUP_A}\n      b: {prefill: a, decode: aa}\n", 9, 31, "'aa'", "'a'"),
    ("      a: {gpus: $GROUP_A}\n      b: {prefill: a, decode: a}\n", 9, 10, "device 0", "group"),
    ("      a=b: {gpus: $GROUP_A}\n", 8, 12, "no = and no *", "correct"),
    ("      a/b: {gpus: $GROUP_A}\n", 8, 12, "names of files", "correct"),
    ("      proxy: {gpus: $GROUP_A}\n", 8, 14, "the router and its log", "correct"),
    ("      a: {copies: []}\n", 8, 10, "nothing", "exactly one"),
    ("      a: {gpus: $GROUP_A\n", 9, 1, "expected", "YAML"),
    ("      a:\n", 8, 7, "models.qwen38_27b.layouts.a", "correct"),
]


@pytest.mark.parametrize(("layouts", "line", "column", "what", "remedy"), FAULTS)
def test_a_fault_is_named_at_its_place(
    tmp_path: Path, layouts: str, line: int, column: int, what: str, remedy: str
) -> None:
    path = written(tmp_path, NODE + layouts)
    with pytest.raises(ConfigError) as caught:
        load_models(path)
    assert caught.value.place == f"{path}:{line}:{column}"
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_model_folder_without_config(tmp_path: Path) -> None:
    path = written(tmp_path, NODE.replace("Qwen/Qwen3.8-27B", "./empty") + "      a: {gpus: [0]}\n")
    with pytest.raises(ConfigError, match=r"no config\.json") as caught:
        load_models(path)
    assert caught.value.place == f"{path}:6:11"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 900), st.text(alphabet="{}[]:,'\"#$.-\n\tax0\x00é&*!|>%@`", max_size=4))
def test_any_mutation_loads_or_is_refused_with_a_place(
    tmp_path_factory: pytest.TempPathFactory, at: int, dirt: str
) -> None:
    text = NODE + TRIMMED
    at %= len(text)
    path = written(tmp_path_factory.mktemp("m"), text[:at] + dirt + text[at + 1 :])
    try:
        load_models(path)
    except ConfigError as error:
        assert error.place.startswith(str(path))
        assert error.remedy
    except QuestionError as error:
        assert error.remedy


def test_columns_stay_true_behind_pasted_json() -> None:
    line = """a: [--x '{"k": 1}', {bad: 1}]"""
    file = parse(line, Path("f"))
    assert file.data == {"a": ["""--x '{"k": 1}'""", {"bad": 1}]}
    assert file.place(("a", 1)) == f"f:1:{line.index('{bad') + 1}"
