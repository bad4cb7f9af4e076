"""Threads that left their engine's cores come back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from twolane.engines.pinning import repin

STRAYS = """
import os, signal, threading
here = os.sched_getaffinity(0)
threading.Thread(target=threading.Event().wait, daemon=True).start()
os.sched_setaffinity(0, {max(here)})  # as NixlConnector does: the main thread alone
print("up", flush=True)
signal.pause()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_strayed_main_thread_is_brought_back() -> None:
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", STRAYS], stdout=subprocess.PIPE) as stray:
        try:
            assert stray.stdout is not None
            stray.stdout.readline()
            assert len(repin(stray.pid, [core])) == 2
            tasks = [int(t) for t in os.listdir(f"/proc/{stray.pid}/task")]
            assert [os.sched_getaffinity(t) for t in tasks] == [{core}] * 2
            assert repin(stray.pid, [core]) == []
        finally:
            stray.kill()


def test_a_tree_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert repin(process.pid, [0]) == []
