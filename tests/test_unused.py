"""What a campaign names and does not use is told before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane import devices, inspection
from twolane.config import load_campaign
from twolane.errors import QuestionError

MODELS = """
node: {platform: gpu, groups: {GROUP_A: [0, 1, 2, 3], GROUP_B: [4, 5, 6, 7]}}
models:
  m:
    path: builtin:needle
    layouts:
      a: {ENGINE}
      b: {gpus: $GROUP_B, tp: 4}
      pair: {prefill: a, decode: b}
"""
CAMPAIGN = """
name: four
models: models.yaml
model: m
context: 16384
gates: [needle 500]
blocks: 2
arms: {pair: {layout: pair, ARM}}
cells: [interference victims=2 prompt=6000]
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    return tmp_path


def campaign(folder: Path, engine: str, arm: str = "budget: 2048", more: str = "") -> Path:
    (folder / "models.yaml").write_text(MODELS.replace("ENGINE", engine))
    (folder / "four.yaml").write_text(CAMPAIGN.replace("ARM", arm) + more)
    return folder / "four.yaml"


@pytest.mark.parametrize(
    ("engine", "idle"),
    [
        ("gpus: $GROUP_A", "a: 3 of the 4 GPUs of GROUP_A stay idle, for it has 1 rank; "),
        ("gpus: $GROUP_A, tp: 2", "a: 2 of the 4 GPUs of GROUP_A stay idle, for it has 2 ranks; "),
        ("gpus: $GROUP_A, tp: 4", None),
        ("gpus: $GROUP_A, args: [--tensor-parallel-size 4]", None),
        ("gpus: $GROUP_A, tp: 2, args: [--pipeline_parallel_size=2]", None),
        ("gpus: $GROUP_A, args: [-dp 4]", None),
    ],
)
def test_gpus_without_a_rank_are_told(write: Path, engine: str, idle: str | None) -> None:
    notes = inspection.doubts(load_campaign(campaign(write, engine)))
    told = [f"{idle}write `tp: 4`, or use a smaller group"] if idle else []
    assert [note for note in notes if "idle" in note] == told


def test_devices_by_number_do_not_swap(write: Path) -> None:
    engine = "gpus: [0, 1], tp: 2"
    (note,) = inspection.doubts(load_campaign(campaign(write, engine)))
    assert note.startswith(
        "pair: devices [0,1] are named by number and are the same in every block"
    )
    off = campaign(write, engine, more="swap_groups: false\n")
    assert inspection.doubts(load_campaign(off)) == []


def test_check_says_what_this_host_lacks(write: Path) -> None:
    said = inspection.check_files(campaign(write, "gpus: $GROUP_A, tp: 4"), None)
    assert "note: `twolane run` would refuse it on this host: GROUP_A asks for GPUs" in said.text


@pytest.mark.parametrize(
    "args",
    [
        "[max-num-seqs 8]",
        "[--enforce-eager, max_num_seqs=8]",
        "[--seed 1, enforce-eager]",
        "[--seed=1, dtype float32]",
        "[--enforce-eager, max-num-seqs 8]",
        "[dtype]",
    ],
)
@pytest.mark.parametrize("where", ["engine", "arm"])
def test_an_argument_without_dashes_is_refused(write: Path, args: str, where: str) -> None:
    engine, arm = "gpus: $GROUP_A, tp: 4", "budget: 2048"
    path = (
        campaign(write, f"{engine}, args: {args}")
        if where == "engine"
        else campaign(write, engine, f"{arm}, args: {args}")
    )
    with pytest.raises(QuestionError, match="has no dashes") as refused:
        load_campaign(path)
    assert refused.value.remedy.startswith("did you mean --")


@pytest.mark.parametrize(
    "args",
    [
        "[--max-num-seqs, 8, --dtype, float32]",
        "[--cudagraph-capture-sizes, 1, 2, 4]",
        "[--served-model-name, my-model]",
        "[-tp 4, --seed -1]",
        """[--kv-transfer-config, '{"kv_role": "kv_both"}']""",
    ],
)
def test_a_value_beside_its_option_is_no_option(write: Path, args: str) -> None:
    planned = load_campaign(campaign(write, f"gpus: $GROUP_A, tp: 4, args: {args}"))
    words = planned.arms[0].layout.engines[0].args
    assert not any(word.startswith("-") and " " in word for word in words)
