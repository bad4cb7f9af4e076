"""Every campaign that comes with twolane can be read and planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane import plan
from twolane.config import load_campaign
from twolane.engines.launch import launches

CONFIGS = Path(__file__).parents[2] / "configs"
GPU_CAMPAIGNS = (
    "budget_sweep_8b",
    "budget_sweep_h200",
    "par_quick",
    "ramp_1m",
    "split_vs_copies",
    "split_vs_copies_8b",
    "transfer_remedies",
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
