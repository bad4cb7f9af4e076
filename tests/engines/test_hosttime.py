"""Others' CPU time is told from our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twolane.clock import NS
from twolane.engines.hosttime import HostTime, Pinned

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


def reading(at_s: int, **trees: tuple[float, float, dict[int, int]]) -> HostTime:
    """Trees of one core each: its CPU seconds, the tree's, and nanoseconds waited by thread."""
    pinned = {int(pid[1:]): Pinned(1, *told) for pid, told in trees.items()}
    return HostTime(at_s * NS, 0.0, 0.0, pinned)


@pytest.mark.parametrize(
    ("busy_s", "used_s", "waited", "share"),
    [
        (9.0, 1.0, {7: NS}, 0.1),  # others on a core whose engine was nearly idle
        (9.0, 9.0, {7: 8 * NS, 8: 9 * NS}, 0.0),  # threads of one engine wait for each other
        (10.0, 6.0, {7: 3 * NS, 8: 2 * NS}, 0.4),  # others took what it would have used
        (10.0, 10.5, {7: 3 * NS}, 0.0),  # accounts of unlike grain
        (10.0, 6.0, {}, None),
    ],
)
def test_no_engine_lost_more_than_others_had_nor_more_than_it_waited(
    busy_s: float, used_s: float, waited: dict[int, int], share: float | None
) -> None:
    first = reading(0, p1=(100.0, 50.0, {7: 0}))
    later = reading(10, p1=(100 + busy_s, 50 + used_s, waited))
    assert first.lost_share(later) == (None if share is None else pytest.approx(share))


def test_the_worst_off_engine_is_told() -> None:
    first = reading(0, p1=(0.0, 0.0, {7: 0}), p2=(0.0, 0.0, {8: 0}))
    later = reading(10, p1=(3.0, 1.0, {7: NS}), p2=(9.0, 4.0, {8: 4 * NS}), p3=(9.0, 0.0, {9: NS}))
    assert first.lost_share(later) == pytest.approx(0.4)
    assert first.lost_share(first) is None


def test_waiting_is_read_thread_by_thread_and_cores_one_by_one() -> None:
    here, gone = os.getpid(), 1 << 30
    read = HostTime.read([here, gone], {here: (0,), gone: (0, 1 << 20), 5: (0,)})
    assert read.pinned.keys() == {here, gone}
    mine = read.pinned[here]
    assert 0 < mine.busy_s <= read.busy_s
    assert here in mine.waited_ns or not Path("/proc/self/schedstat").exists()
    assert (read.pinned[gone].waited_ns, read.pinned[gone].used_s) == ({}, 0.0)
