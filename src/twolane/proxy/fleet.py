"""The engines behind the proxy: what each has in hand, and whether it answers.

Rules of this file: load is counted by reservations, which are given back by their `with` block
whatever happens. An engine is taken out at the first refused connection and comes back when its
`/health` says 200; engines that work are asked seldom, since an engine answers health checks with
the same cores that make tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from types import TracebackType

from twolane.proxy.config import EngineRole, ProxyConfig, Upstream
from twolane.proxy.handoff import Params
from twolane.proxy.leg import LegError, ask
from twolane.proxy.splice import SplicedConnection
from twolane.routing import EngineLoad, choose
from twolane.wire.http1 import request_head
from twolane.wire.pool import Pool

log = logging.getLogger(__name__)

_HEALTH_ANSWER_S = 5.0
_TELLING_TOKENS = 256  # fewer say more of a step's fixed cost than of the rate
_RATE_WEIGHT = 0.2
_SILENCES_ALLOWED = 3  # a busy engine may be late; a dead one refuses


class Engine:
    """One engine: its address, its idle connections and its present load."""

    def __init__(self, upstream: Upstream) -> None:
        self.name = upstream.name
        self.role = upstream.role
        self.weight = upstream.weight
        self.pool = Pool(upstream.host, upstream.port, kind=SplicedConnection)
        self.host_header = f"{upstream.host}:{upstream.port}"
        self.prompt_bytes = 0
        self.in_flight = 0
        self.served = 0
        self.usable = True
        self.suspect = asyncio.Event()  # set: ask for its health now
        self.silences = 0
        self.tokens_a_second: float | None = None  # that P computes, as it says itself
        self.handed: Params | None = None  # P's last handoff: who it is, and how KV travels

    def computed(self, tokens: int, seconds: float) -> None:
        """This prefill engine took `seconds` for `tokens` that it had not cached."""
        if tokens < _TELLING_TOKENS or seconds <= 0:
            return
        rate = tokens / seconds
        known = self.tokens_a_second
        self.tokens_a_second = rate if known is None else known + _RATE_WEIGHT * (rate - known)

    def learn(self, params: Params) -> None:
        """What this prefill engine said of itself."""
        self.handed = params

    @property
    def pushes(self) -> bool:
        return self.handed is not None and self.handed.pushed

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(self.prompt_bytes, self.in_flight, self.weight, self.usable)

    def head(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], length: int
    ) -> bytes:
        return request_head(method, target, self.host_header, headers, length)

    def fail(self, error: LegError) -> None:
        """A request met `error` here: no connection takes the engine out, the rest is checked."""
        if error.kind == "connect":
            self._mark(usable=False, why=str(error))
        if error.kind in ("connect", "lost"):
            self.suspect.set()

    def _mark(self, usable: bool, why: str) -> None:
        if usable != self.usable:
            log.warning("engine %s is %s: %s", self.name, "up" if usable else "down", why)
        self.usable = usable
        if not usable:
            self.handed = None  # whoever comes back is another process with another name

    async def check(self, connect_s: float) -> bool:
        """Ask `/health` and note what it says. True where the engine has just come back."""
        was = self.usable
        head = self.head("GET", "/health", (), 0)
        try:
            answer = await ask(self.pool, head, b"", connect_s=connect_s, answer_s=_HEALTH_ANSWER_S)
        except LegError as error:
            self._note_failure(error)
            return False
        self.silences = 0
        self._mark(answer.status == 200, f"/health says {answer.status}")
        return self.usable and not was

    def _note_failure(self, error: LegError) -> None:
        self.silences += error.kind == "timeout"
        if error.kind != "timeout" or self.silences >= _SILENCES_ALLOWED or not self.usable:
            self._mark(usable=False, why=str(error))


class Reservation:
    """A place on an engine, counted from now until the block ends."""

    def __init__(self, engine: Engine, prompt_bytes: int, freed: Callable[[], None]) -> None:
        self.engine = engine
        self._freed = freed
        self._prompt_bytes = prompt_bytes
        self._held = True
        engine.prompt_bytes += prompt_bytes
        engine.in_flight += 1
        engine.served += 1

    def prompt_done(self) -> None:
        """The prompt is computed: newcomers no longer wait behind it. Harmless twice."""
        if self._prompt_bytes:
            self.engine.prompt_bytes -= self._prompt_bytes
            self._prompt_bytes = 0
            self._freed()

    def give_back(self) -> None:
        """The request is over here. Harmless twice."""
        self.prompt_done()
        if self._held:
            self.engine.in_flight -= 1
            self._held = False
            self._freed()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.give_back()


class Fleet:
    """All engines, by role."""

    def __init__(self, config: ProxyConfig) -> None:
        self._config = config
        self.engines = [Engine(upstream) for upstream in config.upstreams]
        self._of: dict[str, list[Engine]] = {}
        for engine in self.engines:
            self._of.setdefault(engine.role, []).append(engine)
        self._turns: dict[EngineRole, int] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self.freed: Callable[[], None] | None = None  # told when a place or a prompt is done

    def of(self, role: EngineRole) -> list[Engine]:
        return self._of.get(role, [])

    def reserve(
        self, role: EngineRole, prompt_bytes: int, avoid: frozenset[str] = frozenset()
    ) -> Reservation | None:
        """A place on the least loaded usable engine; None where there is none."""
        index = self._choose(role, avoid)
        if index is None:
            return None
        self._turns[role] = index + 1
        return Reservation(self.of(role)[index], prompt_bytes, self._tell_freed)

    def peek(self, role: EngineRole) -> Engine | None:
        """The engine that `reserve` would take."""
        index = self._choose(role)
        return None if index is None else self.of(role)[index]

    def _choose(self, role: EngineRole, avoid: frozenset[str] = frozenset()) -> int | None:
        engines = self.of(role)
        left_out = frozenset(i for i, engine in enumerate(engines) if engine.name in avoid)
        return choose([engine.load for engine in engines], self._turns.get(role, 0), left_out)

    def _tell_freed(self) -> None:
        if self.freed is not None:
            self.freed()

    def ready(self, role: EngineRole) -> bool:
        return any(engine.usable for engine in self.of(role))

    # ------------------------------------------------------------------------------- health

    async def check_all(self) -> None:
        await asyncio.gather(*(e.check(self._config.connect_timeout_s) for e in self.engines))

    def watch(self, on_return: Callable[[Engine], None]) -> None:
        """Keep asking for everybody's health; `on_return` hears of engines that came back."""
        self._watchers = [
            asyncio.create_task(self._watch(engine, on_return)) for engine in self.engines
        ]

    async def _watch(self, engine: Engine, on_return: Callable[[Engine], None]) -> None:
        config = self._config
        while True:
            wait_s = config.health_every_s if engine.usable else config.health_down_every_s
            try:
                async with asyncio.timeout(wait_s):
                    await engine.suspect.wait()
            except TimeoutError:
                pass
            engine.suspect.clear()
            if await engine.check(config.connect_timeout_s):
                on_return(engine)
            self._tell_freed()  # who waits for an engine hears of its return, and of its end
            if not engine.usable:
                engine.suspect.clear()

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        for engine in self.engines:
            engine.pool.close()
