"""How much of this host's CPU time went to others while a cell was measured, and what it cost.

On a host where an engine is a core, somebody else's program is an arm's handicap. A cell is
bracketed by two readings: what all cores did (stolen time of a virtual machine included), and what
twolane, its load workers, its engines and its proxy did. Others on an idle engine's core cost it
nothing, so beside their share stands the most that they can have cost: no engine lost more than
others had of its own cores, nor more than its threads waited on a run queue. (Of these alone the
second says little: threads of one engine on one core wait for each other.)
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from twolane.clock import NS, now_ns


@dataclass(frozen=True)
class Pinned:
    """A process tree that has `cores` cores of its own: CPU seconds of these cores, and of the
    tree on them; nanoseconds that each of its threads waited for a core since it began."""

    cores: int
    busy_s: float
    used_s: float
    waited_ns: Mapping[int, int]

    def lost_s(self, later: Pinned) -> float | None:
        """The most that others can have cost it between the two readings, in core seconds; None
        where the kernel does not tell who waited."""
        if not later.waited_ns:
            return None
        others = (later.busy_s - self.busy_s) - (later.used_s - self.used_s)
        waited = sum(ns - self.waited_ns.get(one, 0) for one, ns in later.waited_ns.items()) / NS
        return max(0.0, min(others, waited))


@dataclass(frozen=True)
class HostTime:
    """CPU seconds since boot: `busy_s` of all cores, `ours_s` of twolane and what it started.

    `pinned` are the trees that have cores of their own, by pid.
    """

    at_ns: int
    busy_s: float
    ours_s: float
    pinned: Mapping[int, Pinned] = field(default_factory=dict)

    @classmethod
    def read(
        cls, trees: Iterable[int], cores: Mapping[int, Sequence[int]] | None = None
    ) -> HostTime:
        """Now, with the process trees below the pids in `trees` counted as ours; `cores` are those
        that some of them have for themselves."""
        at_ns = now_ns()
        by_core = [_busy(times) for times in psutil.cpu_times(percpu=True)]
        members = {pid: _members(pid) for pid in trees}
        used = {pid: _used(members[pid]) for pid in members}
        pinned = {
            pid: Pinned(
                len(held),
                sum(by_core[core] for core in held if core < len(by_core)),
                used[pid],
                dict(_waited(members[pid])),
            )
            for pid, held in (cores or {}).items()
            if held and pid in members
        }
        return cls(at_ns, sum(by_core), _own() + sum(used.values()), pinned)

    def foreign_share(self, later: HostTime) -> float:
        """Share of the host's CPU time between the two readings that others had, 0 to 1."""
        span = (later.at_ns - self.at_ns) / NS * (os.cpu_count() or 1)
        others = (later.busy_s - self.busy_s) - (later.ours_s - self.ours_s)
        return max(0.0, others / span) if span > 0 else 0.0

    def lost_share(self, later: HostTime) -> float | None:
        """The share of its cores' time that others can have cost the worst-off tree, at most."""
        span_s = (later.at_ns - self.at_ns) / NS
        if span_s <= 0:
            return None
        lost = [
            seconds / span_s / after.cores
            for pid, after in later.pinned.items()
            if pid in self.pinned and (seconds := self.pinned[pid].lost_s(after)) is not None
        ]
        return max(lost, default=None)


def _busy(times: Any) -> float:
    idle = times.idle + times.iowait
    # A guest's time is in user and nice already.
    return float(sum(times) - idle - times.guest - times.guest_nice)


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
