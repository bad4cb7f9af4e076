"""Threads that spin while their engine has nothing to do.

NIXL's UCX backend keeps one thread polling without pause (seen with 1.5.1 whatever UCX_TLS says).
On a GPU host it has a core of its own and harms nobody. Where an engine *is* one core, it would
take every second slice from the model and the split would be blamed for it. So on CPU hosts such
threads are told to run only when nothing else wants the core; transfers still progress, since the
engine's own polling drives them too.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil

# An idle vLLM engine's other threads together use under 2 % of a core.
SPINNING_SHARE = 0.2
LOOK_S = 0.4


async def quieten(pid: int) -> int:
    """Give every spinning thread below `pid` the idle policy; how many there were.

    Call it while the engine is idle: a thread that computes an answer is busy too.
    """
    before = _run_ns(pid)
    await asyncio.sleep(LOOK_S)
    after = _run_ns(pid)
    spinning = [
        tid for tid, ns in after.items() if ns - before.get(tid, ns) > SPINNING_SHARE * LOOK_S * 1e9
    ]
    return sum(_make_idle(tid) for tid in spinning)


def _run_ns(pid: int) -> dict[int, int]:
    """Nanoseconds that each thread of the tree below `pid` has run, by thread id."""
    try:
        root = psutil.Process(pid)
        pids = [pid, *(p.pid for p in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return {}
    found: dict[int, int] = {}
    for process in pids:
        for task in Path(f"/proc/{process}/task").glob("*"):
            try:
                found[int(task.name)] = int((task / "schedstat").read_text().split()[0])
            except (OSError, ValueError, IndexError):
                continue
    return found


def _make_idle(tid: int) -> bool:
    try:
        os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return False
    return True
