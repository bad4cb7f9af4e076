"""Every campaign that comes with twolane can be read and planned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from twolane import plan
from twolane.config import load_campaign
from twolane.engines.launch import launches
from twolane.errors import ConfigError
from twolane.inspection import preflight_campaign

CONFIGS = Path(__file__).parents[2] / "configs"
GPU_CAMPAIGNS = (
    "budget_sweep_8b",
    "budget_sweep_h200",
    "par_quick",
    "ramp_1m",
    "split_in_runs",
    "split_in_runs_8b",
    "split_vs_copies",
    "split_vs_copies_8b",
    "transfer_remedies",
    "transfer_remedies_1m",
)


def test_every_file_is_a_campaign_or_what_one_names() -> None:
    named = set()
    for path in CONFIGS.glob("*.yaml"):
        if "\narms:" in path.read_text():
            campaign = load_campaign(path)
            assert campaign.name == path.stem
            named.add(campaign.models.path.name)
    models = {path.name for path in CONFIGS.glob("*.yaml") if "\narms:" not in path.read_text()}
    assert models == named


def own(folder: Path, path: str) -> Path:
    """A copy of the campaigns for a model of one's own, with its path filled in."""
    shutil.copytree(CONFIGS / "own", folder, dirs_exist_ok=True)
    models = folder / "models.yaml"
    models.write_text(models.read_text().replace("<path of your model>", path))
    return folder


@pytest.mark.parametrize(("name", "gpus"), [("one_gpu", {0}), ("two_gpus", {0, 1})])
def test_a_campaign_for_ones_own_model_is_gated_and_has_a_noise_floor(
    tmp_path: Path, name: str, gpus: set[int]
) -> None:
    campaign = load_campaign(own(tmp_path, "builtin:needle") / f"{name}.yaml")
    runs = plan.runs(campaign)
    assert {device for run in runs for e in run.layout.engines for device in e.devices} == gpus
    assert campaign.gates
    assert campaign.greedy
    assert campaign.blocks > 2
    first, again = (
        [(engine.devices, engine.args) for engine in arm.layout.engines]
        for arm in campaign.arms
        if arm.name.endswith("_8192")
    )
    assert first == again
    preflight_campaign(campaign)


@pytest.mark.parametrize("name", ["one_gpu", "two_gpus"])
def test_a_path_that_is_not_filled_in_is_named_with_its_place(name: str) -> None:
    with pytest.raises(ConfigError, match="path is not filled in yet: <path of your model>") as no:
        load_campaign(CONFIGS / "own" / f"{name}.yaml")
    assert no.value.place.startswith(f"{CONFIGS / 'own' / 'models.yaml'}:11:")
    assert "config.json" in no.value.remedy


@pytest.mark.parametrize("name", GPU_CAMPAIGNS)
def test_arms_differ_in_what_they_declare_and_share_the_rest(name: str) -> None:
    campaign = load_campaign(CONFIGS / f"{name}.yaml")
    for run in plan.runs(campaign):
        for launch in launches(campaign.model, run.layout, "gpu"):
            assert launch.argv[launch.argv.index("--max-model-len") + 1] == str(campaign.context)
            assert launch.argv.count("--kv-transfer-config") == run.layout.split


def test_the_second_block_runs_on_swapped_groups() -> None:
    runs = plan.runs(load_campaign(CONFIGS / "split_vs_copies.yaml"))
    split = [r.layout.engines for r in runs if r.arm.name == "split_1p1d"]
    assert [[e.devices for e in engines] for engines in split] == [[(0,), (1,)], [(1,), (0,)]]
