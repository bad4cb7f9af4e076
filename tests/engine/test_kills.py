"""The demo, ended at random moments by Ctrl-C and by SIGKILL: nothing is left behind.

TWOLANE_KILLS says how often for each signal (default 1), TWOLANE_KILL_WITHIN up to which second
of the demo (default 40, in the middle of the engines' start-up).
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.engine

TIMES = int(os.environ.get("TWOLANE_KILLS", "1"))
WITHIN_S = float(os.environ.get("TWOLANE_KILL_WITHIN", "40"))
LEFT_ALONE_S = 15.0

# A job in the background is started with Ctrl-C ignored, and passes that on: undo it.
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "twolane", *sys.argv[1:]])
"""


def belongs(pid: int, folder: str) -> bool:
    """Whether a process is part of the demo that writes into `folder`.

    vLLM's processes overwrite their own command line, but their output still goes to their log.
    """
    try:
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        )
        files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (1, 2)]
    except OSError:
        return False
    return folder.encode() in words or any(f.startswith(folder) for f in files)


def remaining(folder: Path) -> dict[int, str]:
    """Live processes of the demo that writes into `folder`, with their names."""
    found = {}
    for process in psutil.process_iter(["name", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and belongs(process.pid, str(folder)):
            found[process.pid] = process.info["name"]
    return found


def held_ports(folder: Path) -> set[int]:
    """Ports that the demo's processes listen on."""
    return {
        c.laddr.port
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr and c.family == socket.AF_INET
        if c.pid is not None and belongs(c.pid, str(folder))
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
@pytest.mark.parametrize("turn", range(TIMES))
def test_nothing_is_left(tmp_path: Path, number: signal.Signals, turn: int) -> None:
    moment = random.Random(f"{number}/{turn}/{time.time_ns()}").uniform(0, WITHIN_S)
    demo = subprocess.Popen(
        [sys.executable, "-c", START, "demo", "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"TWOLANE_KILL_TEST": str(tmp_path)},
    )
    try:
        demo.wait(timeout=moment)
    except subprocess.TimeoutExpired:
        assert demo.pid in remaining(tmp_path), "the search itself finds nothing"
        demo.send_signal(number)
    deadline = time.monotonic() + LEFT_ALONE_S
    while time.monotonic() < deadline and (remaining(tmp_path) or demo.poll() is None):
        time.sleep(0.2)
    left = remaining(tmp_path)
    for pid in left:
        psutil.Process(pid).kill()
    assert left == {}, f"{number.name} after {moment:.1f} s left processes"
    assert held_ports(tmp_path) == set(), f"{number.name} after {moment:.1f} s left ports"
    if number == signal.SIGINT:
        # In its first instants Python itself has no handler yet, and the signal ends it.
        assert demo.returncode == 130 or (moment < 2 and demo.returncode == -signal.SIGINT)
