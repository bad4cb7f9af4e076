"""What the client resolved when it was calibrated is held against every cell of a campaign."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests import golden_campaign

from twolane import campaign as campaigns
from twolane import devices, inspection
from twolane.analysis.results import load
from twolane.engines import fleet, installed
from twolane.engines.front import Front
from twolane.load.calibration import Resolution


async def coarse(*_: Any, **__: Any) -> Resolution:
    return Resolution("any", stall_ms=80.0, late_p50_ms=0.1, late_p99_ms=1.0, events=100)


async def test_a_client_too_coarse_for_what_is_claimed_is_coded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "launches", golden_campaign.launches)
    monkeypatch.setattr(inspection, "preflight", lambda *_: [])
    monkeypatch.setattr(campaigns, "calibrate", coarse)
    monkeypatch.setattr(devices, "require", lambda *_: None)
    monkeypatch.setattr(installed, "require", lambda *_: None)
    monkeypatch.setattr(Front, "start", golden_campaign.front)
    asked = golden_campaign.campaign(["c2 in64 out8 n6"])
    asked = dataclasses.replace(asked, arms=asked.arms[:1], blocks=1)
    outcome = await campaigns.run(asked, tmp_path, lambda _: None)
    (run,) = load(outcome.folder).runs
    (cell,) = run.cells
    client = next(code for code in cell.codes if code.code == "CLIENT")
    assert client.value == cell.values["resolution_ms"] == 80
    assert "stalls of 80 ms when it was calibrated" in client.why
