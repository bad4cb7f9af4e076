"""Others' CPU time is told from our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twolane.clock import NS
from twolane.engines.hosttime import HostTime

BURNS = "import time; until = time.process_time() + 0.5\nwhile time.process_time() < until: pass"


def ours_while_a_child_burns(*, ours: bool) -> float:
    """CPU seconds that count as ours while a child, in our trees or not, burns half a second."""
    code = f"input()\n{BURNS}\nprint(1, flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        trees = [child.pid] if ours else []
        before = HostTime.read(trees)
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        after = HostTime.read(trees)
        child.kill()
    return after.ours_s - before.ours_s


def test_a_tree_that_is_ours_is_not_others() -> None:
    assert ours_while_a_child_burns(ours=True) >= 0.45
    assert ours_while_a_child_burns(ours=False) < 0.25


def test_the_share_is_of_all_cores() -> None:
    cores = os.cpu_count() or 1
    first = HostTime(0, 100.0, 50.0)
    assert first.foreign_share(HostTime(10 * NS, 100 + 10 * cores, 50.0)) == pytest.approx(1.0)
    assert first.foreign_share(HostTime(10 * NS, 100 + 5 * cores, 50 + 5 * cores)) == 0.0
    assert first.foreign_share(HostTime(10 * NS, 100 + 4 * cores, 50 + 2 * cores)) == pytest.approx(
        0.2
    )
    assert first.foreign_share(first) == 0.0


def test_the_tree_that_waited_most_for_a_core_is_told() -> None:
    first = HostTime(0, 0.0, 0.0, {1: {10: 5, 11: 0}, 2: {20: 0}})
    later = HostTime(10 * NS, 0.0, 0.0, {1: {10: 5 + NS, 11: NS, 12: NS}, 2: {20: NS}})
    assert first.waited_share(later) == pytest.approx(0.3)
    assert first.waited_share(first) is None
    untold = HostTime(10 * NS, 0.0, 0.0, {1: {}, 2: {}})
    assert first.waited_share(untold) is None


def test_waiting_for_a_core_is_read_thread_by_thread() -> None:
    told = HostTime.read([os.getpid()]).waited_ns[os.getpid()]
    assert os.getpid() in told or not Path("/proc/self/schedstat").exists()
    assert all(ns >= 0 for ns in told.values())
    assert HostTime.read([1 << 30]).waited_ns == {1 << 30: {}}
