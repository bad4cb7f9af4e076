"""One prefill and one decode engine that break on request, and a router's process before them.

Rules of this file: everything on 127.0.0.1; the router is any command, in a session of its own, and
that whole session is ended with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from twolane.errors import AnswerError, QuestionError
from twolane.proxy.conformance import placeholders
from twolane.proxy.conformance.caller import call
from twolane.proxy.fault_answer import Behaviour, answer_text
from twolane.proxy.fault_engine import MODEL, FaultEngine, KvStore

MARK = "row"  # prompts that hold it meet the row's faults
START_S = 60.0
RECOVER_S = 5.0
_GRACE_S = 5.0


def completion(prompt: str, tokens: int = 4, **more: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": tokens, **more}


def expected(prompt: str, tokens: int = 4) -> str:
    return "".join(answer_text(prompt, tokens))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Stage:
    """`async with Stage(argv, log) as stage`: engines up, router ready. `argv` may hold
    `{prefill}`, `{decode}` (URLs), the same with `_address` (HOST:PORT) and `_port`, and `{port}`.
    """

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        placeholders.require(argv)
        self.store = KvStore()
        self.p = FaultEngine("prefill", self.store)
        self.d = FaultEngine("decode", self.store)
        self.port = free_port()
        self.restarts = -1
        self._argv = argv
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._probes = 0

    @property
    def pid(self) -> int:
        """The router's process; 0 before it runs."""
        return self._process.pid if self._process is not None else 0

    @property
    def engines(self) -> tuple[FaultEngine, FaultEngine]:
        return self.p, self.d

    async def __aenter__(self) -> Stage:
        for engine in self.engines:
            engine.marked = MARK
            await engine.start()
        try:
            await self.restart_router()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_router()
        for engine in self.engines:
            engine.stop()

    # --------------------------------------------------------------------------- the router

    async def restart_router(self) -> None:
        """Raises AnswerError where it does not serve within a minute."""
        await self._stop_router()
        self.restarts += 1
        with self._log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._filled(), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise QuestionError(
                    f"cannot be started: {error.strerror or error}",
                    place=self._argv[0],
                    remedy="name a program that can be run, by its path or as found in PATH",
                ) from None
        if not await self.serves(START_S):
            raise AnswerError(
                f"the router gave no right answer within {START_S:g} s",
                place=shlex.join(self._filled()),
                remedy=f"read {self._log}",
            )

    def _filled(self) -> list[str]:
        p, d = self.p.port, self.d.port
        values = {
            "prefill": self.p.url,
            "decode": self.d.url,
            "prefill_address": f"127.0.0.1:{p}",
            "decode_address": f"127.0.0.1:{d}",
            "prefill_port": str(p),
            "decode_port": str(d),
            "port": str(self.port),
        }
        return placeholders.fill(self._argv, values)

    async def _stop_router(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _signal(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
        except TimeoutError:
            pass
        _signal(process.pid, signal.SIGKILL)  # and whatever it has started
        await process.wait()

    async def serves(self, within_s: float) -> bool:
        """Whether a plain request is answered rightly within that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._process is not None and self._process.returncode is None:
                    if await self._probe():
                        return True
                    await asyncio.sleep(0.1)
        return False

    async def _probe(self) -> bool:
        self._probes += 1
        prompt = f"probe {self._probes}"
        try:
            got = await (await call(self.port, completion(prompt))).answer(RECOVER_S)
            return got.status == 200 and got.text == expected(prompt)
        except (OSError, ValueError, LookupError):
            return False

    # -------------------------------------------------------------------------- between rows

    async def reset(self) -> None:
        """Good engines, both up; what a lease would free by now is freed."""
        for engine in self.engines:
            engine.behaviour = Behaviour()
            engine.seen.clear()
            engine.began.clear()
            engine.peak = engine.crashed = engine.late_reads = 0
        self.store.held = {k: v for k, v in self.store.held.items() if MARK not in v}

    async def clear(self) -> None:
        """What a row has left working is ended, so that it does not count against the next."""
        for engine in self.engines:
            if any(MARK in prompt for prompt in engine.present):
                engine.stop()
                await engine.start(engine.port)

    def held(self) -> int:
        """Blocks that the row's requests left at P."""
        return sum(MARK in prompt for prompt in self.store.held.values())

    def working(self) -> int:
        """The row's requests that engines still work on."""
        return sum(MARK in prompt for engine in self.engines for prompt in engine.present)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
