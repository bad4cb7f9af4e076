"""The router in front of a layout's engines: `twolane proxy` as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from twolane.clock import NS, now_ns
from twolane.config import Layout
from twolane.engines import ports
from twolane.engines.http import healthy
from twolane.engines.process import Process, tail
from twolane.errors import EngineError

_FLAG = {"prefill": "--prefill", "decode": "--decode", "both": "--aggregated"}
_START_S = 60.0
_RETRY_S = 0.1
# Who stops a layout has no streams left to drain; a proxy of its own drains for much longer.
_GRACE_S = 2.0


def command(
    layout: Layout, urls: Sequence[str], *, port: int, ledger: Path | None = None
) -> list[str]:
    """The router's command line, for engines that listen on `urls` in the layout's order."""
    argv = [sys.executable, "-m", "twolane", "proxy", "--host", "127.0.0.1", "--port", str(port)]
    if ledger is not None:
        argv += ["--ledger", str(ledger)]
    for engine, url in zip(layout.engines, urls, strict=True):
        argv += [_FLAG[engine.role], f"{engine.name}={url}"]
    return [*argv, *layout.proxy]


class Front:
    """A running proxy; `url` is what clients talk to."""

    def __init__(self, process: Process, argv: Sequence[str], port: int) -> None:
        self.process = process
        self.argv = list(argv)
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @classmethod
    async def start(
        cls, layout: Layout, urls: Sequence[str], folder: Path, *, port: int = 0
    ) -> Front:
        """Start the proxy for `layout`, whose engines listen on `urls` in the same order.

        `port` 0 picks a free one. Returns when it answers /health. Raises EngineError if it does
        not, QuestionError if `port` is taken.
        """
        if port:
            ports.require_free(port, what="the proxy")
        else:
            (port,) = ports.choose(1)
        argv = command(layout, urls, port=port, ledger=folder / "ledger.jsonl")
        process = await Process.start(
            "proxy", argv, env={}, log=folder / "proxy.log", grace_s=_GRACE_S
        )
        front = cls(process, argv, port)
        try:
            await front._ready()
        except BaseException:
            await process.stop()
            raise
        return front

    async def _ready(self) -> None:
        began = now_ns()
        while not await asyncio.to_thread(healthy, self.url):
            if self.process.code is not None or (now_ns() - began) / NS > _START_S:
                raise EngineError(
                    f"the proxy is not ready (exit code {self.process.code})",
                    place=str(self.process.log),
                    remedy="read the last lines of proxy.log",
                    log_tail=tail(self.process.log),
                )
            await asyncio.sleep(_RETRY_S)
