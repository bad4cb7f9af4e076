"""One guarded process tree: start, watch, stop, prove gone.

Engines and the proxy run through this. See guard.py for why nothing survives.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from twolane.errors import EngineError

GUARD = Path(__file__).with_name("guard.py")
# vLLM needs about 3 s to shut down in good order on a CPU; its own default is then SIGKILL too.
GRACE_S = 6.0


class Process:
    """A command under a guard. `pid` is the command's own; `code` its exit code once it ended."""

    def __init__(self, name: str, guard: asyncio.subprocess.Process, pid: int, log: Path) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self._guard = guard

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cores: Sequence[int] = (),
        grace_s: float = GRACE_S,
        inherits: Sequence[int] = (),
    ) -> Process:
        """Start `argv` with its output appended to `log`, pinned to `cores` unless empty.

        `env` is added to this process's own environment; `inherits` are descriptors that stay open
        as long as anything of the tree lives. Raises EngineError if it cannot start.
        """
        pinned = ",".join(map(str, cores)) or "-"
        guard = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(GUARD), str(log), pinned, str(grace_s), "--", *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **env},
            start_new_session=True,
            pass_fds=tuple(inherits),
        )  # fmt: skip
        assert guard.stdout is not None
        line = (await guard.stdout.readline()).split()
        if len(line) != 2 or line[0] != b"pid":
            await guard.wait()
            raise EngineError(
                f"{name} did not start: {argv[0]}",
                place=str(log),
                remedy="check that the command exists and that its cores are allowed here",
                log_tail=tail(log),
            )
        return cls(name, guard, int(line[1]), log)

    @property
    def code(self) -> int | None:
        return self._guard.returncode

    @property
    def ended(self) -> bool:
        """Whether the command itself is gone, though parts of its tree may still be ending."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state == "Z"

    async def wait(self) -> int:
        """The exit code, once the whole tree is gone."""
        return await self._guard.wait()

    async def stop(self) -> int:
        """End the tree: SIGTERM, grace, SIGKILL. Returns the exit code; safe to call twice."""
        assert self._guard.stdin is not None
        if self._guard.returncode is None:
            self._guard.stdin.close()
        return await self._guard.wait()


def tail(log: Path, lines: int = 25) -> tuple[str, ...]:
    """The last lines of a log, read from its last 64 KiB."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(deque((t for t in text.splitlines() if t.strip()), maxlen=lines))
