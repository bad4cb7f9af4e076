"""The engines of one layout: started together, awaited, watched, stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from twolane.clock import NS, now_ns
from twolane.config import Layout, Model
from twolane.config.models import Platform
from twolane.engines import http, metrics, pinning, ports
from twolane.engines.front import Front
from twolane.engines.launch import Launch, launches, require_ports
from twolane.engines.process import Process, tail
from twolane.errors import AnswerError, EngineError
from twolane.records import EngineMeta

Told = Callable[[str], None]
_RETRY_S = 0.25


@dataclass
class Running:
    """One started engine."""

    launch: Launch
    process: Process
    ready_s: float | None = None
    kv_tokens: int | None = None
    block_size: int | None = None
    strayed: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.launch.engine.name

    def meta(self) -> EngineMeta:
        """What run.json says of it, as of now."""
        engine = self.launch.engine
        return EngineMeta(
            name=engine.name,
            role=engine.role,
            group=engine.group,
            devices=list(engine.devices),
            url=self.launch.url,
            argv=list(self.launch.argv),
            env=dict(self.launch.env),
            log=self.process.log.name,
            pid=self.process.pid,
            side_channel_port=self.launch.side_channel_port,
            ready_s=self.ready_s,
            kv_tokens=self.kv_tokens,
            block_size=self.block_size,
            strayed=self.strayed,
            exit_code=self.process.code,
        )


class Fleet:
    """All engines of a layout. Use `start` and, whatever happens, `stop`.

    Engines inherit `locks`, the descriptors by which their devices are claimed.
    """

    def __init__(self, folder: Path, locks: Sequence[int] = ()) -> None:
        self.folder = folder
        self._locks = tuple(locks)
        self.engines: list[Running] = []
        self.front: Front | None = None

    async def start(
        self,
        model: Model,
        layout: Layout,
        platform: Platform,
        *,
        timeout_s: float,
        told: Told,
        port: int = 0,
    ) -> None:
        """Start every engine, then the router; return when all answer /health.

        `port` is the router's, 0 for a free one.

        Raises QuestionError for a taken port; EngineError, with the log's tail, for the first that
        dies or is not ready within `timeout_s`; the caller stops the rest with `stop`.
        """
        planned = launches(model, layout, platform)
        require_ports(planned)
        for launch in planned:
            process = await Process.start(
                launch.engine.name,
                launch.argv,
                env=launch.env,
                log=self.folder / f"{launch.engine.name}.log",
                cores=launch.engine.devices if platform == "cpu" else (),
                inherits=self._locks,
            )
            self.engines.append(Running(launch, process))
        await _first_failure_wins(self._ready(engine, timeout_s, told) for engine in self.engines)
        urls = [engine.launch.url for engine in self.engines]
        self.front = await Front.start(layout, urls, self.folder, port=port)
        if platform == "cpu":
            for engine in self.engines:
                engine.strayed = pinning.repin(engine.process.pid, engine.launch.engine.devices)

    async def _ready(self, engine: Running, timeout_s: float, told: Told) -> None:
        began = now_ns()
        while not await asyncio.to_thread(http.healthy, engine.launch.url):
            waited = (now_ns() - began) / NS
            if engine.process.code is not None:
                raise _dead(engine.process, f"engine {engine.name} died during start-up")
            if waited > timeout_s:
                raise EngineError(
                    f"engine {engine.name} is not ready after {waited:.0f} s",
                    place=str(engine.process.log),
                    remedy="read the log's last lines; raise start_timeout_s if it was still "
                    "loading",
                    log_tail=tail(engine.process.log),
                )
            await asyncio.sleep(_RETRY_S)
        engine.ready_s = round((now_ns() - began) / NS, 2)
        config = metrics.cache_config(await asyncio.to_thread(metrics.scrape, engine.launch.url))
        engine.kv_tokens = _whole(config.get("kv_cache_size_tokens"))
        engine.block_size = _whole(config.get("block_size"))
        told(f"{engine.name} ready after {engine.ready_s:.0f} s")

    def _processes(self) -> list[Process]:
        return [e.process for e in self.engines] + ([self.front.process] if self.front else [])

    @property
    def pids(self) -> list[int]:
        """Roots of the engines' and the router's process trees."""
        return [p.pid for p in self._processes()]

    @property
    def devices(self) -> dict[int, tuple[int, ...]]:
        """Each engine's devices, by the root of its process tree."""
        return {e.process.pid: e.launch.engine.devices for e in self.engines}

    @property
    def broken(self) -> bool:
        """Whether an engine or the router has ended; `watch` says which and why."""
        return any(p.ended for p in self._processes())

    async def watch(self) -> None:
        """Return never; raises EngineError as soon as an engine or the router ends."""
        ends = {asyncio.create_task(p.wait()): p for p in self._processes()}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
        process = ends[done.pop()]
        raise _dead(process, f"{process.name} died in the middle of a run")

    async def reset_caches(self) -> list[str]:
        """Empty every prefix cache; names of the engines that did not confirm it."""
        answers = await asyncio.gather(
            *(asyncio.to_thread(http.reset_prefix_cache, e.launch.url) for e in self.engines)
        )
        return [e.name for e, ok in zip(self.engines, answers, strict=True) if not ok]

    async def stop(self) -> None:
        """End every tree, then prove it: raises AnswerError if a port is still held."""
        await asyncio.gather(*(p.stop() for p in self._processes()))
        held = [
            f"{e.name}:{port}"
            for e in self.engines
            for port in (e.launch.port, e.launch.side_channel_port)
            if port is not None and not ports.is_free(port)
        ]
        if held:
            raise AnswerError(
                f"ports still held after the stop: {', '.join(held)}",
                place="127.0.0.1",
                remedy="find the holder with `ss -ltnp`; twolane's own processes are gone",
            )


async def _first_failure_wins(coroutines: Iterable[Coroutine[None, None, None]]) -> None:
    """Await all; on the first exception cancel the others and raise it bare."""
    tasks = [asyncio.create_task(c) for c in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _dead(process: Process, what: str) -> EngineError:
    return EngineError(
        f"{what} (exit code {process.code})",
        place=str(process.log),
        remedy="the cause is usually the first ERROR line of its log",
        log_tail=tail(process.log),
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
