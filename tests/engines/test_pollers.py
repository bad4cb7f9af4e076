"""A spinning thread is found and yields; a sleeping one is left alone."""

from __future__ import annotations

import os
import subprocess
import sys

from twolane.engines import pollers

SPINS = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
def spin():
    while True: pass
print("up", flush=True)
spin()
"""


async def test_only_the_spinning_thread_yields() -> None:
    with subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert await pollers.quieten(process.pid) == 1
            tasks = [int(t) for t in os.listdir(f"/proc/{process.pid}/task")]
            policies = sorted(os.sched_getscheduler(t) for t in tasks)
            assert policies == [os.SCHED_OTHER, os.SCHED_IDLE]
        finally:
            process.kill()


async def test_a_tree_that_is_gone_has_nothing_to_quieten() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert await pollers.quieten(process.pid) == 0
