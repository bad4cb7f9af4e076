"""Others' CPU time is told from our own."""

from __future__ import annotations

import os
import subprocess
import sys

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
