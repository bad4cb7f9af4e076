"""What this host has: cores, memory, GPUs by NVML. A host without a driver simply has no GPUs."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable
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
    return Gpu(
        index,
        str(pynvml.nvmlDeviceGetUUID(handle)),
        str(pynvml.nvmlDeviceGetName(handle)),
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def describe() -> dict[str, Any]:
    """Host facts for run.json."""
    return {
        "cpu": _cpu_model(),
        "cores": sorted(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "load_1m": round(os.getloadavg()[0], 2),
        "gpus": [asdict(g) for g in gpus()],
    }


def busy() -> str:
    """Why times taken on this host now would be noise; empty if nothing speaks for it.

    Half a core's worth of others' work halves what a pinned engine gets in some of its steps.
    """
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= 0.5:
        return ""
    return (
        f"this host is busy (load {load:.1f} on {cores} cores): pauses and rates will be noisier; "
        "close other programs for better numbers"
    )


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def require(layouts: Iterable[Layout], kind: Platform, results: Path) -> None:
    """Raises QuestionError if this host cannot hold each of `layouts`, or the disk their results.

    Names the group, what it asks for and what is here.
    """
    here = set(os.sched_getaffinity(0)) if kind == "cpu" else {g.index for g in gpus()}
    what = "CPU cores" if kind == "cpu" else "GPUs"
    for layout in layouts:
        for engine in layout.engines:
            if missing := sorted(set(engine.devices) - here):
                raise QuestionError(
                    f"{engine.group} asks for {what} {list(engine.devices)}, "
                    f"this host has {sorted(here) or 'none'}",
                    place=engine.place,
                    remedy=f"node.groups must not name {missing}"
                    + ("; two groups need two cores" if kind == "cpu" else ""),
                )
        if kind == "cpu":
            _require_memory(layout)
    results.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(results).free
    if free < RESULTS_BYTES:
        raise QuestionError(
            f"{free / GIB:.2f} GiB free on the disk of the results",
            place=str(results),
            remedy=f"free {RESULTS_BYTES / GIB:.1f} GiB, or choose another folder with --out",
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
