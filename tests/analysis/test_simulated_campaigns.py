"""Two hundred simulated campaigns: what verdicts are worth. The noise stands in simulated.py."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import pytest
from tests.analysis.simulated import World, campaign

CAMPAIGNS = 200
SEED = int(os.environ.get("TWOLANE_SIMULATED_SEED", "1"))
METRICS = ("ttft_p50_ms", "tpot_p50_ms")


@cache
def outcomes(name: str) -> dict[str, Counter[str]]:
    """How often each outcome came, by metric."""
    found: dict[str, Counter[str]] = {metric: Counter() for metric in METRICS}
    for n in range(CAMPAIGNS):
        seen = campaign(WORLDS[name], seed=SEED * 100_000 + n)
        for metric in METRICS:
            verdict = seen.verdict(metric)
            found[metric][f"{verdict.outcome}{' (confounded)' * bool(verdict.confounded)}"] += 1
    return found


WORLDS = {
    "A/A": World(),
    "A/A, three blocks": World(blocks=3),
    "10 %": World(arms={"a": 1.0, "b": 1.1}),
    "group, swapped": World(groups={1: 1.1}),
    "group, not swapped": World(groups={1: 1.1}, swapped=False),
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", ["A/A", "A/A, three blocks"])
def test_equal_arms_are_called_different_in_at_most_one_campaign_of_twenty(
    name: str, metric: str
) -> None:
    seen = outcomes(name)[metric]
    assert seen["A better"] + seen["B better"] <= 0.05 * CAMPAIGNS, seen


@pytest.mark.parametrize("metric", METRICS)
def test_a_tenth_is_found_with_five_blocks_in_nine_campaigns_of_ten(metric: str) -> None:
    seen = outcomes("10 %")[metric]
    assert seen["A better"] >= 0.9 * CAMPAIGNS, seen
    assert seen["B better"] == 0, seen


@pytest.mark.parametrize("metric", METRICS)
def test_a_groups_difference_is_not_the_arms_where_groups_are_swapped(metric: str) -> None:
    seen = outcomes("group, swapped")[metric]
    assert seen["A better"] + seen["B better"] <= 0.05 * CAMPAIGNS, seen


@pytest.mark.parametrize("metric", METRICS)
def test_a_groups_difference_is_coded_as_confounded_where_they_are_not(metric: str) -> None:
    assert set(outcomes("group, not swapped")[metric]) == {"cannot tell (confounded)"}


def test_the_confound_is_named_with_both_places() -> None:
    verdict = campaign(WORLDS["group, not swapped"], 1).verdict(METRICS[0])
    assert verdict.verdict == "cannot tell, the arms also differ in devices"
