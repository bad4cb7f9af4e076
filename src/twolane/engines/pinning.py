"""Keep an engine's threads on its own cores, whatever the engine does about it.

The guard pins the tree before it starts. On CPU hosts vLLM 0.32's NixlConnector then moves the
thread that runs the model to the last core of each NUMA node
(`nixl/base_worker.py`, "reserve different cores for start_load_kv"): the prefill and the decode
engine end up on the *same* core, and a split measures its own collision. So the tree is pinned
again once it is up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil


def repin(pid: int, cores: Sequence[int]) -> list[str]:
    """Pin every thread of the tree below `pid` to `cores`; names of those that had strayed."""
    wanted = set(cores)
    strayed = []
    for tid, name in _threads(pid):
        try:
            if not os.sched_getaffinity(tid) <= wanted:
                os.sched_setaffinity(tid, wanted)
                strayed.append(name)
        except OSError:
            continue  # the thread ended meanwhile
    return strayed


def _threads(pid: int) -> Iterator[tuple[int, str]]:
    """Id and name of every thread in the tree below `pid`."""
    try:
        root = psutil.Process(pid)
        pids = [pid, *(p.pid for p in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return
    for process in pids:
        for task in Path(f"/proc/{process}/task").glob("*"):
            try:
                yield int(task.name), (task / "comm").read_text().strip()
            except OSError:
                continue
