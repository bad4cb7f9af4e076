"""The engines behind the proxy: what each has in hand, and whether it answers.

Rules of this file: load is counted by reservations, which are given back by their `with` block
whatever happens. An engine is taken out at the first refused connection and comes back when its
`/health` says 200; engines that work are asked seldom, since an engine answers health checks with
the same cores that make tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType

from twolane.proxy.config import EngineRole, ProxyConfig, Upstream
from twolane.proxy.handoff import Params
from twolane.proxy.leg import LegError, ask
from twolane.proxy.prefixes import Prefixes
from twolane.proxy.scrape import Reading, alarms
from twolane.proxy.scrape import read as read_metrics
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
        self.key = upstream.key
        self.name = upstream.name
        self.role = upstream.role
        self.weight = upstream.weight
        self.pool = Pool(upstream.host, upstream.port, kind=SplicedConnection)
        self.host_header = f"{upstream.host}:{upstream.port}"
        self.prompt_bytes = 0
        self.in_flight = 0
        self.served = 0
        self.given = 0  # bytes of prompts that it was to compute, so far
        self.usable = True
        self.suspect = asyncio.Event()  # set: ask for its health now
        self.silences = 0
        self.reading: Reading | None = None  # its metrics, when last asked
        self.promised: set[Reservation] = set()  # given to it since then
        self.alarms: Counter[str] = Counter()
        self._rates: dict[int, float] = {}  # tokens a second that P computes, by octave of tokens
        self.prefixes = Prefixes()  # of prompts, that a decode engine should hold
        self.handed: Params | None = None  # P's last handoff: who it is, and how KV travels

    def computed(self, tokens: int, seconds: float) -> None:
        """This prefill engine took `seconds` for `tokens` that it had not cached."""
        if tokens < _TELLING_TOKENS or seconds <= 0:
            return
        rate, octave = tokens / seconds, tokens.bit_length()
        known = self._rates.get(octave, rate)
        self._rates[octave] = known + _RATE_WEIGHT * (rate - known)

    def tokens_a_second(self, tokens: int) -> float | None:
        """Of a prompt of `tokens`, by what this prefill engine said of prompts about
        as long: long ones go slower. None where it has said nothing yet."""
        octave = tokens.bit_length()
        nearest = min(self._rates, key=lambda one: abs(one - octave), default=None)
        return None if nearest is None else self._rates[nearest]

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

    @property
    def caches_prefixes(self) -> bool:
        """Whether it keeps the blocks of what it has read, as vLLM does unless told not to."""
        return self.reading is None or self.reading.caches_prefixes

    @property
    def kv_taken(self) -> float | None:
        """The share of its KV that is taken: what it told, and what it has been given since.
        None where it does not tell."""
        reading = self.reading
        if reading is None or not reading.kv_tokens or reading.kv_usage is None:
            return None
        promised = sum(place.kv_tokens for place in self.promised)
        return reading.kv_usage + promised / reading.kv_tokens

    async def scrape(self, connect_s: float) -> None:
        """Ask for its metrics; raise alarms for what grew that should not."""
        known = [place for place in self.promised if place.arrived]
        head = self.head("GET", "/metrics", (), 0)
        try:
            answer = await ask(self.pool, head, b"", connect_s=connect_s, answer_s=_HEALTH_ANSWER_S)
        except LegError:
            return
        if answer.status != 200:
            return
        now = read_metrics(answer.body)
        now.given = self.given
        if self.reading is not None and now.computed < self.reading.computed:
            self.prefixes.forget()  # a counter that falls: another process
        if self.reading is not None:
            now.given_before = self.reading.given
            for name in alarms(self.reading, now, decodes=self.role == "decode"):
                self.alarms[name] += 1
                log.warning("engine %s: %s", self.name, name.replace("_", " "))
        self.reading = now
        self.promised.difference_update(known)

    def fail(self, error: LegError) -> None:
        """A request met `error` here: a refused connection takes the engine out, the rest is
        checked."""
        if error.refused:
            self._mark(usable=False, why=str(error))
        if error.kind in ("connect", "lost"):
            self.suspect.set()

    def _mark(self, usable: bool, why: str) -> None:
        if usable != self.usable:
            log.warning("engine %s is %s: %s", self.name, "up" if usable else "down", why)
        self.usable = usable
        if not usable:
            self.reading = None
            self.prefixes.forget()
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
        slow = error.kind == "timeout" or (error.kind == "connect" and not error.refused)
        self.silences += slow
        if not slow or self.silences >= _SILENCES_ALLOWED or not self.usable:
            self._mark(usable=False, why=str(error))


class Reservation:
    """A place on an engine, counted from now until the block ends."""

    def __init__(self, engine: Engine, prompt_bytes: int, freed: Callable[[], None]) -> None:
        self.engine = engine
        self._freed = freed
        self._prompt_bytes = prompt_bytes
        self._held = True
        self.kv_tokens = 0.0  # that it will take of the engine's KV
        self.arrived = False  # the engine counts it itself by now
        engine.prompt_bytes += prompt_bytes
        engine.given += prompt_bytes
        engine.in_flight += 1
        engine.served += 1

    def promise(self, kv_tokens: float) -> None:
        """Count these tokens of KV until the engine's metrics do."""
        self.kv_tokens = kv_tokens
        self.engine.promised.add(self)

    def arrive(self) -> None:
        """The engine has taken it, and tells of its KV by itself."""
        self.arrived = True

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
            self.engine.promised.discard(self)
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
        self.engines: list[Engine] = []
        self._of: dict[str, list[Engine]] = {}
        self._last: dict[EngineRole, Engine] = {}
        self._watchers: dict[Engine, list[asyncio.Task[None]]] = {}
        self._updated = asyncio.Event()
        self.update(config)
        self.freed: Callable[[], None] | None = None  # told when a place or a prompt is done

    def update(self, config: ProxyConfig) -> list[Engine]:
        """Other engines and weights from now on; returns those that are new. What runs on an engine
        that is gone from the configuration runs on; it gets nothing more."""
        self._config = config
        self._updated.set()
        self._updated = asyncio.Event()
        known = {engine.key: engine for engine in self.engines}
        self.engines = [
            known.pop(upstream.key) if upstream.key in known else Engine(upstream)
            for upstream in config.upstreams
        ]
        for engine, upstream in zip(self.engines, config.upstreams, strict=True):
            engine.weight = upstream.weight
        for gone in known.values():
            gone.usable = False
            gone.pool.close()
            for watcher in self._watchers.pop(gone, []):
                watcher.cancel()
        self._of = {}
        for engine in self.engines:
            self._of.setdefault(engine.role, []).append(engine)
        return [engine for engine in self.engines if engine not in self._watchers]

    def of(self, role: EngineRole) -> list[Engine]:
        return self._of.get(role, [])

    def reserve(
        self, role: EngineRole, prompt_bytes: int, avoid: frozenset[str] = frozenset()
    ) -> Reservation | None:
        """A place on the least loaded usable engine; None where there is none."""
        engine = self.peek(role, avoid)
        return None if engine is None else self.place_on(engine, prompt_bytes)

    def place_on(self, engine: Engine, prompt_bytes: int) -> Reservation:
        """A place on this engine. Of engines with as little to do, the one behind it is next."""
        self._last[engine.role] = engine
        return Reservation(engine, prompt_bytes, self._tell_freed)

    def peek(self, role: EngineRole, avoid: frozenset[str] = frozenset()) -> Engine | None:
        """The engine that `reserve` would take."""
        engines = self.of(role)
        if len(engines) == 1:  # nothing to weigh up
            return engines[0] if engines[0].usable and engines[0].name not in avoid else None
        left_out = frozenset(i for i, engine in enumerate(engines) if engine.name in avoid)
        last = self._last.get(role)
        turn = engines.index(last) + 1 if last in engines else 0
        index = choose([engine.load for engine in engines], turn, left_out)
        return None if index is None else engines[index]

    def _tell_freed(self) -> None:
        if self.freed is not None:
            self.freed()

    def ready(self, role: EngineRole) -> bool:
        return any(engine.usable for engine in self.of(role))

    # ------------------------------------------------------------------------------- health

    async def check(self, engines: Iterable[Engine]) -> None:
        connect_s = self._config.connect_timeout_s
        await asyncio.gather(*(engine.check(connect_s) for engine in engines))

    def watch(self, engines: Iterable[Engine], on_return: Callable[[Engine], None]) -> None:
        """Keep asking for their health and metrics; `on_return` hears of those that came back."""
        for engine in engines:
            self._watchers[engine] = [
                asyncio.create_task(self._watch(engine, on_return)),
                asyncio.create_task(self._scrape(engine)),
            ]

    async def _scrape(self, engine: Engine) -> None:
        """Every so often, as an update may change; what is asked for no more is not known."""
        while True:
            updated, every_s = self._updated, self._config.scrape_every_s
            if not every_s:
                engine.reading = None
            elif engine.usable:
                await engine.scrape(self._config.connect_timeout_s)
                self._tell_freed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s or None):
                    await updated.wait()

    async def _watch(self, engine: Engine, on_return: Callable[[Engine], None]) -> None:
        while True:
            config = self._config
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
        watchers = [watcher for both in self._watchers.values() for watcher in both]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for engine in self.engines:
            engine.pool.close()
