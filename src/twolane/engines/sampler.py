"""metrics.jsonl: every engine's numbers once a second, and exactly when a cell begins and ends.

The GPUs' own readings are there too, once a second, as the source `devices`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from twolane import devices
from twolane.clock import now_ns
from twolane.engines import metrics
from twolane.errors import EngineError
from twolane.records import Appender, Sample

_PERIOD_S = 1.0


class Sampler:
    """Scrapes engines into one file. An engine that does not answer gives no sample, not a zero."""

    def __init__(self, path: Path) -> None:
        self._file = Appender(path)
        self._urls: Mapping[str, str] = {}
        self._in_flight: list[tuple[int, float]] = []
        self._devices = devices.Telemetry()

    @contextlib.asynccontextmanager
    async def every_second(self, urls: Mapping[str, str]) -> AsyncIterator[None]:
        """Sample the engines at `urls` (by name) once a second while the block runs."""
        self._urls = urls
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticking

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.take(None)
            if values := await asyncio.to_thread(self._devices.read):
                self._file.append(Sample(t_ns=now_ns(), source="devices", values=values))

    async def take(self, mark: str | None) -> dict[str, dict[str, float]]:
        """One sample of every engine, by name: written, and returned for judging."""
        answers = await asyncio.gather(
            *(asyncio.to_thread(metrics.scrape, url) for url in self._urls.values()),
            return_exceptions=True,
        )
        taken: dict[str, dict[str, float]] = {}
        for name, values in zip(self._urls, answers, strict=True):
            if isinstance(values, EngineError):
                continue
            if isinstance(values, BaseException):
                raise values
            taken[name] = values
            self._file.append(Sample(t_ns=now_ns(), source=name, values=values, mark=mark))
        held = [metrics.in_flight(values) for values in taken.values()]
        if len(held) == len(self._urls) and held and None not in held:
            self._in_flight.append((now_ns(), sum(one or 0.0 for one in held)))
        return taken

    def keep(self, sample: Sample) -> None:
        """Append a sample that an earlier run took."""
        self._file.append(sample)

    def in_flight(self, window_ns: tuple[int, int] | None) -> list[float]:
        """Requests that all engines together held, at each moment they were sampled in a window."""
        if window_ns is None:
            return []
        return [held for t_ns, held in self._in_flight if window_ns[0] <= t_ns <= window_ns[1]]

    def close(self) -> None:
        self._devices.close()
        self._file.close()
