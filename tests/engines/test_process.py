"""The guard: nothing below it survives, however its owner ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from twolane.engines.process import GUARD, Process, tail
from twolane.errors import EngineError

# A tree like vLLM's: a parent, a child in its own session that ignores SIGTERM, and a grandchild
# whose parent exits at once, so that it would be init's.
TREE = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        if os.fork() == 0:
            print("orphan", os.getpid(), flush=True)
            signal.pause()
        os._exit(0)
    print("child", os.getpid(), flush=True)
    signal.pause()
print("parent", os.getpid(), flush=True)
signal.pause()
"""


@asynccontextmanager
async def started(tmp_path: Path, code: str, grace_s: float = 0.2) -> AsyncIterator[Process]:
    process = await Process.start(
        "tree", [sys.executable, "-c", code], env={}, log=tmp_path / "tree.log", grace_s=grace_s
    )
    try:
        yield process
    finally:
        await process.stop()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0.01)


def pids(log: Path) -> dict[str, int]:
    lines = [line.split() for line in log.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_stop_ends_the_whole_tree(tmp_path: Path) -> None:
    async with started(tmp_path, TREE) as process:
        await until(lambda: len(pids(tmp_path / "tree.log")) == 3)
        tree = pids(tmp_path / "tree.log")
        assert tree["parent"] == process.pid
        assert all(map(alive, tree.values()))
        await process.stop()
        assert not any(map(alive, tree.values()))


async def test_an_engine_that_dies_takes_its_tree_along(tmp_path: Path) -> None:
    async with started(tmp_path, TREE) as process:
        await until(lambda: len(pids(tmp_path / "tree.log")) == 3)
        tree = pids(tmp_path / "tree.log")
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait() == 128 + signal.SIGKILL
        assert not any(map(alive, tree.values()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_tree_dies_with_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "tree.log"
    owner_code = f"""
import asyncio, sys
from pathlib import Path
from twolane.engines.process import Process
async def main():
    await Process.start("tree", [sys.executable, "-c", {TREE!r}], env={{}}, log=Path({str(log)!r}),
                        grace_s=0.2)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    owner = subprocess.Popen([sys.executable, "-c", owner_code])
    try:
        await until(lambda: log.exists() and len(pids(log)) == 3)
    finally:
        owner.send_signal(number)
        owner.wait(timeout=20)
    await until(lambda: not any(map(alive, pids(log).values())))


async def test_a_start_that_loses_its_owner_at_once_leaves_nothing(tmp_path: Path) -> None:
    """The owner is gone before the guard has even begun: end of file is all it ever reads."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(GUARD), str(tmp_path / "log"), "-", "0.1", "--",
         sys.executable, "-c", "import signal; signal.pause()"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    out, _ = guard.communicate(timeout=20)
    assert not alive(int(out.split()[1]))


async def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    async with started(tmp_path, "import sys; print('bye'); sys.exit(7)") as process:
        assert await process.wait() == 7
    assert tail(tmp_path / "tree.log") == ("bye",)


async def test_the_tree_is_pinned(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    log = tmp_path / "log"
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    process = await Process.start("p", [sys.executable, "-c", code], env={}, log=log, cores=[core])
    assert await process.wait() == 0
    assert log.read_text().strip() == f"[{core}]"


async def test_a_core_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="did not start"):
        await Process.start("p", ["true"], env={}, log=tmp_path / "log", cores=[4095])


async def test_a_command_that_is_not_here(tmp_path: Path) -> None:
    process = await Process.start("p", ["/nonexistent/vllm"], env={}, log=tmp_path / "log")
    assert await process.wait() == 127
    assert "/nonexistent/vllm" in (tmp_path / "log").read_text()
