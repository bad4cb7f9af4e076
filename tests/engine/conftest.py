"""One real prefill/decode pair with its proxy, started once and shared by all engine tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from twolane.config import Campaign, load_campaign
from twolane.config.models import Layout
from twolane.engines.fleet import Fleet, Running

CONFIGS = Path(__file__).parents[2] / "configs"
BUDGET = int(os.environ.get("TWOLANE_P_BUDGET", "2048"))  # tokens a step of P


@pytest.fixture(scope="session")
def campaign() -> Campaign:
    return load_campaign(CONFIGS / "demo.yaml")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pair(
    campaign: Campaign, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Fleet]:
    """The demo's split: engine 0 is P, engine 1 is D, `front` the proxy."""
    layout = with_budget(next(a.layout for a in campaign.arms if a.layout.split))
    fleet = Fleet(tmp_path_factory.mktemp("pair"))
    try:
        await fleet.start(campaign.model, layout, "cpu", timeout_s=600, told=lambda _: None)
        yield fleet
    finally:
        await fleet.stop()


def with_budget(layout: Layout) -> Layout:
    """The layout, with P's token budget as the environment says."""
    engines = tuple(
        replace(e, args=tuple(str(BUDGET) if word == "2048" else word for word in e.args))
        if e.role == "prefill"
        else e
        for e in layout.engines
    )
    return replace(layout, engines=engines)


def side(fleet: Fleet, role: str) -> Running:
    """The pair's engine of this role."""
    return next(e for e in fleet.engines if e.launch.engine.role == role)
