"""How much of this host's CPU time went to others while a cell was measured.

On a host where an engine is a core, somebody else's program is an arm's handicap. A cell is
bracketed by two readings: what all cores did (stolen time of a virtual machine included), and what
twolane, its load workers, its engines and its proxy did.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from twolane.clock import NS, now_ns


@dataclass(frozen=True)
class HostTime:
    """CPU seconds since boot: `busy_s` of all cores, `ours_s` of twolane and what it started."""

    at_ns: int
    busy_s: float
    ours_s: float

    @classmethod
    def read(cls, trees: Iterable[int]) -> HostTime:
        """Now, with the process trees below the pids in `trees` counted as ours."""
        times = psutil.cpu_times()
        idle = times.idle + times.iowait
        # A guest's time is in user and nice already.
        busy = sum(times) - idle - times.guest - times.guest_nice
        return cls(now_ns(), busy, _own() + sum(_tree(pid) for pid in trees))

    def foreign_share(self, later: HostTime) -> float:
        """Share of the host's CPU time between the two readings that others had, 0 to 1."""
        span = (later.at_ns - self.at_ns) / NS * (os.cpu_count() or 1)
        others = (later.busy_s - self.busy_s) - (later.ours_s - self.ours_s)
        return max(0.0, others / span) if span > 0 else 0.0


def _own() -> float:
    """This process and its children that have ended, the load workers among them."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _tree(pid: int) -> float:
    """Processes of one tree, with those of their children that have ended."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
