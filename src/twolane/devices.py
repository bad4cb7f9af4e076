"""What this host has: cores, memory, GPUs by NVML. A host without a driver simply has no GPUs."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from twolane.config import Layout
from twolane.config.models import Platform
from twolane.errors import QuestionError

GIB = 1 << 30
# Resident size of one vLLM CPU engine's three processes with the needle model and 1 GiB of KV,
# read off 0.32.0: 3.7 GiB. A host with less than this free for each would swap and measure that.
CPU_ENGINE_BYTES = 4 * GIB
# A demo run writes some 20 MB; a full disk in the middle of a run would cost the run.
RESULTS_BYTES = GIB // 2


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    memory_bytes: int
    nvlinks: int  # links that are up
    clocks_mhz: dict[str, int]  # now and at most, of the multiprocessors and of the memory
    power_limit_w: float | None


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver shows; none where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(i) for i in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    limit = _told(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
    return Gpu(
        index,
        str(pynvml.nvmlDeviceGetUUID(handle)),
        str(pynvml.nvmlDeviceGetName(handle)),
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        nvlinks=sum(
            _told(pynvml.nvmlDeviceGetNvLinkState, handle, link) == pynvml.NVML_FEATURE_ENABLED
            for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        ),
        clocks_mhz=_clocks(handle),
        power_limit_w=None if limit is None else limit / 1000,
    )


def _clocks(handle: Any) -> dict[str, int]:
    asked = {
        "sm": (pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        "sm_max": (pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        "memory": (pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
        "memory_max": (pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
    }
    told = {name: _told(ask, handle, which) for name, (ask, which) in asked.items()}
    return {name: clock for name, clock in told.items() if clock is not None}


def _told(ask: Callable[..., int], *what: Any) -> int | None:
    """What the driver answers; None where this GPU, or this virtual machine, does not say it."""
    try:
        return int(ask(*what))
    except pynvml.NVMLError:
        return None


class Telemetry:
    """GPU readings that can explain a slow second. Opens the driver once; `close` it."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            self._handles: list[Any] = []
            return
        count = pynvml.nvmlDeviceGetCount()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]

    def read(self) -> dict[str, float]:
        """Readings by `gpu<index>:<what>_<unit>`; empty on a host without GPUs.

        `throttle` is NVML's bit mask of the reasons why a clock is held down.
        """
        told: dict[str, float] = {}
        for index, handle in enumerate(self._handles):
            for name, value in _readings(handle).items():
                if value is not None:
                    told[f"gpu{index}:{name}"] = value
        return told

    def close(self) -> None:
        if self._handles:
            self._handles = []
            pynvml.nvmlShutdown()


def _readings(handle: Any) -> dict[str, float | None]:
    power = _told(pynvml.nvmlDeviceGetPowerUsage, handle)
    return {
        "sm_clock_mhz": _told(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _told(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        "power_w": None if power is None else power / 1000,
        "temperature_c": _told(
            pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "throttle": _told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        "memory_used_bytes": _told(lambda h: pynvml.nvmlDeviceGetMemoryInfo(h).used, handle),
    }


def memory_used(indices: Iterable[int]) -> dict[int, int]:
    """Bytes in use on these GPUs; empty where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handles = {i: pynvml.nvmlDeviceGetHandleByIndex(i) for i in indices}
        return {i: int(pynvml.nvmlDeviceGetMemoryInfo(h).used) for i, h in handles.items()}
    finally:
        pynvml.nvmlShutdown()


def describe() -> dict[str, Any]:
    """Host facts for run.json."""
    return {
        "cpu": _cpu_model(),
        "cores": sorted(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "load_1m": round(os.getloadavg()[0], 2),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),  # engines inherit it
        "gpus": [asdict(g) for g in gpus()],
    }


def busy(layouts: Iterable[Layout], kind: Platform) -> str:
    """Why times taken on this host now would be noise; empty if nothing speaks for it.

    Others may use half of the cores that `layouts` leave, since clients and routers work there
    too; where they leave none, half a core: it halves what a pinned engine gets in some steps.
    """
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    left = max(0, cores - max((_cores(layout, kind) for layout in layouts), default=0))
    if load <= max(0.5, left / 2):
        return ""
    return (
        f"this host is busy (load {load:.1f} on {cores} cores, of which the engines leave {left}): "
        "pauses and rates will be noisier; close other programs for better numbers"
    )


def _cores(layout: Layout, kind: Platform) -> int:
    """How many host cores its engines keep busy: theirs, or with GPUs one for each rank's worker
    and two for the scheduler and the API server of each engine."""
    ranks = sum(len(engine.devices) for engine in layout.engines)
    return ranks if kind == "cpu" else ranks + 2 * len(layout.engines)


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def require(
    layouts: Iterable[Layout],
    kind: Platform,
    results: Path,
    elsewhere: Callable[[set[int]], str] | None = None,
) -> None:
    """Raises QuestionError if this host cannot hold each of `layouts`, or the disk their results.

    Names the group, what it asks for and what is here; `elsewhere` gives the remedy, of the devices
    that are here, where it is not to edit the node's groups.
    """
    asked = list(layouts)
    require_devices(asked, kind, elsewhere)
    if kind == "cpu":
        for layout in asked:
            _require_memory(layout)
    results.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(results).free
    if free < RESULTS_BYTES:
        raise QuestionError(
            f"{free / GIB:.2f} GiB free on the disk of the results",
            place=str(results),
            remedy=f"free {RESULTS_BYTES / GIB:.1f} GiB, or choose another folder with --out",
        )


def require_devices(
    layouts: Iterable[Layout], kind: Platform, elsewhere: Callable[[set[int]], str] | None = None
) -> None:
    """Raises QuestionError if `layouts` name devices that this host has not, with the first."""
    here = set(os.sched_getaffinity(0)) if kind == "cpu" else {g.index for g in gpus()}
    what = "CPU cores" if kind == "cpu" else "GPUs"
    for engine in (engine for layout in layouts for engine in layout.engines):
        if missing := sorted(set(engine.devices) - here):
            raise QuestionError(
                f"{engine.group} asks for {what} {list(engine.devices)}, "
                f"this host has {sorted(here) or 'none'}",
                place=engine.place,
                remedy=elsewhere(here)
                if elsewhere is not None
                else f"node.groups must not name {missing}"
                + ("; two groups need two cores" if kind == "cpu" else ""),
            )


def _require_memory(layout: Layout) -> None:
    free = psutil.virtual_memory().available
    need = CPU_ENGINE_BYTES * len(layout.engines)
    if free < need:
        raise QuestionError(
            f"{free / GIB:.1f} GiB of memory free, {len(layout.engines)} engines need about "
            f"{need / GIB:.0f} GiB",
            place=layout.name,
            remedy="close other programs, or run on a host with more memory",
        )
