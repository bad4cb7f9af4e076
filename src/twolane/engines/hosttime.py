"""How much of this host's CPU time went to others while a cell was measured.

On a host where an engine is a core, somebody else's program is an arm's handicap. A cell is
bracketed by two readings: what all cores did (stolen time of a virtual machine included), and what
twolane, its load workers, its engines and its proxy did. Beside it stands what that cost them: how
long their threads could have run and had no core. Threads of one engine also wait for each other,
so this is the most that others can have cost it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from twolane.clock import NS, now_ns


@dataclass(frozen=True)
class HostTime:
    """CPU seconds since boot: `busy_s` of all cores, `ours_s` of twolane and what it started.

    `waited_ns` is how long each thread of each tree has waited for a core since it began, by the
    tree's pid and the thread's id.
    """

    at_ns: int
    busy_s: float
    ours_s: float
    waited_ns: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, trees: Iterable[int]) -> HostTime:
        """Now, with the process trees below the pids in `trees` counted as ours."""
        times = psutil.cpu_times()
        idle = times.idle + times.iowait
        # A guest's time is in user and nice already.
        busy = sum(times) - idle - times.guest - times.guest_nice
        members = {pid: _members(pid) for pid in trees}
        ours = _own() + sum(_used(members[pid]) for pid in members)
        waited = {pid: dict(_waited(members[pid])) for pid in members}
        return cls(now_ns(), busy, ours, waited)

    def foreign_share(self, later: HostTime) -> float:
        """Share of the host's CPU time between the two readings that others had, 0 to 1."""
        span = (later.at_ns - self.at_ns) / NS * (os.cpu_count() or 1)
        others = (later.busy_s - self.busy_s) - (later.ours_s - self.ours_s)
        return max(0.0, others / span) if span > 0 else 0.0

    def waited_share(self, later: HostTime) -> float | None:
        """Share of the time between the two readings that the worst-off tree waited for a core,
        summed over its threads; None where the kernel does not tell."""
        span = later.at_ns - self.at_ns
        if span <= 0 or not any(later.waited_ns.values()):
            return None
        return (
            max(
                sum(
                    ns - self.waited_ns.get(pid, {}).get(thread, 0)
                    for thread, ns in threads.items()
                )
                for pid, threads in later.waited_ns.items()
            )
            / span
        )


def _own() -> float:
    """This process and its children that have ended, the load workers among them."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _members(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _used(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds of processes, with those of their children that have ended."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _waited(processes: Iterable[psutil.Process]) -> Iterator[tuple[int, int]]:
    """Every thread's id, and nanoseconds on a run queue: the second field of its schedstat."""
    for process in processes:
        for task in Path(f"/proc/{process.pid}/task").glob("*"):
            try:
                yield int(task.name), int((task / "schedstat").read_bytes().split()[1])
            except (OSError, IndexError):
                continue  # the thread ended meanwhile, or the kernel keeps no such account
