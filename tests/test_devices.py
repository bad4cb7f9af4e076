"""What is said of GPUs, with a driver that answers some questions and refuses others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from twolane import devices
from twolane.config import load_campaign

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of 18 links in a virtual machine that hides temperatures and power limits."""

    def refuse(*_: Any) -> int:
        raise pynvml.NVMLError_NotSupported()

    def link(_: int, number: int) -> int:
        return 1 if number < 18 else refuse()

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetUUID": lambda i: f"GPU-{i}",
        "nvmlDeviceGetName": lambda _: "Imaginary GPU",
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=1000, used=600),
        "nvmlDeviceGetNvLinkState": link,
        "nvmlDeviceGetClockInfo": lambda i, which: 1980 - i if which == 1 else 3201,
        "nvmlDeviceGetMaxClockInfo": lambda _, which: 1980 if which == 1 else 3201,
        "nvmlDeviceGetPowerManagementLimit": refuse,
        "nvmlDeviceGetPowerUsage": lambda _: 350_500,
        "nvmlDeviceGetTemperature": refuse,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 4,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_described_with_links_and_clocks() -> None:
    first, second = devices.gpus()
    assert (first.uuid, first.nvlinks, first.power_limit_w) == ("GPU-0", 18, None)
    assert second.clocks_mhz == {"sm": 1979, "sm_max": 1980, "memory": 3201, "memory_max": 3201}


@pytest.mark.usefixtures("two_gpus")
def test_telemetry_leaves_out_what_the_driver_does_not_say() -> None:
    telemetry = devices.Telemetry()
    told = telemetry.read()
    telemetry.close()
    assert told["gpu0:power_w"] == 350.5
    assert told["gpu1:sm_clock_mhz"] == 1979
    assert "gpu0:temperature_c" not in told
    assert telemetry.read() == {}


@pytest.mark.parametrize(
    ("cores", "load", "campaign", "said"),
    [
        (2, 0.6, "demo", "load 0.6 on 2 cores, of which the engines leave 0"),
        (2, 0.4, "demo", ""),
        (64, 0.6, "demo", ""),
        (64, 40.0, "demo", "of which the engines leave 62"),
        (64, 6.0, "budget_sweep_h200", ""),
        (4, 1.1, "budget_sweep_h200", "of which the engines leave 1"),
    ],
)
def test_a_host_is_busy_by_the_cores_that_are_left(
    monkeypatch: pytest.MonkeyPatch, cores: int, load: float, campaign: str, said: str
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 9.0, 9.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    planned = load_campaign(CONFIGS / f"{campaign}.yaml")
    layouts = [arm.layout for arm in planned.arms]
    told = devices.busy(layouts, planned.models.node.platform)
    assert said in told
    assert bool(told) == bool(said)


def test_a_host_without_a_driver_has_no_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError_LibraryNotFound()

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert devices.Telemetry().read() == {}
    assert devices.gpus() == ()
