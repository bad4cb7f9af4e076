"""Which way a request goes, and why: through P and D, or straight to one engine.

    short   fewer tokens than `split_from`: a transfer costs more than it spares
    held    D holds so much of the prompt that it would compute fewer than `split_from` itself;
            straight to that D
    n, ...  what one handoff cannot serve
    split   the rest

Rules of this file: every decision is counted. What D holds is a belief (`prefixes`), kept only
where there is a threshold to compare with, and checked against `cached_tokens` of D's answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from twolane.proxy.body import Body
from twolane.proxy.config import EngineRole, ProxyConfig
from twolane.proxy.exchange import Exchange, Services
from twolane.proxy.fan import FanExchange, fans_out
from twolane.proxy.fleet import Engine
from twolane.proxy.ledger import Account
from twolane.proxy.prefixes import MOST, PIECE, Prompt, chained
from twolane.proxy.push import PushExchange
from twolane.proxy.turns import in_turns

# A D that has so many times the requests of the least busy one, and some, gets no more for what it
# holds: split, they reach others, which then hold it too. So a prompt's beginning that all users
# share spreads over all engines.
_CROWDED, _SOME = 2.0, 4.0


@dataclass(slots=True)
class Way:
    """One request's. `why` it is not split; None where it is."""

    kind: type[Exchange]
    why: str | None = None
    prompt: Prompt | None = None
    engine: Engine | None = None  # the D that holds the prompt's beginning
    new_bytes: int = 0  # of the body, that it would compute
    believed_tokens: int | None = None  # that it should hold


class Ways:
    """Decides for one proxy. `counts` has every decision by its word, `beliefs` what became of
    those that a D holds something: right, wrong, or unreported."""

    def __init__(self, services: Services) -> None:
        self._fleet = services.fleet
        self._meter = services.meter
        self.counts: Counter[str] = Counter()
        self.beliefs: Counter[str] = Counter()
        self.configure(services)

    def configure(self, services: Services) -> None:
        """Other settings from now on."""
        self._services = services
        if not self._config.split_from_tokens:
            for engine in self._fleet.engines:
                engine.prefixes.forget()

    @property
    def _config(self) -> ProxyConfig:
        return self._services.config

    @property
    def alone(self) -> EngineRole:
        """Who serves what one engine must serve."""
        return "aggregated" if self._config.aggregated else "decode"

    async def of(self, body: Body) -> Way:
        """The way of one request."""
        way = Way(PushExchange if self._config.connector == "push-at-once" else Exchange)
        if not self._config.prefill:
            return way
        way.why = self._alone_because(body)
        if way.why == "n" and self.alone == "decode" and fans_out(body, self._services):
            way.kind, way.why = FanExchange, None
            self.counts["fanned"] += 1
        elif self._config.split_from_tokens and way.why in (None, "short"):
            way.prompt = await in_turns(chained(body))
            if way.why is None and way.prompt is not None:
                self._straight(way, way.prompt, body.size)
        self.counts[way.why or "split"] += 1
        return way

    def _alone_because(self, body: Body) -> str | None:
        if self._meter.tokens(body.size) < self._config.split_from_tokens:
            return "short"
        return body.alone_because()

    # ---------------------------------------------------------------------- what D should hold

    def _straight(self, way: Way, prompt: Prompt, size: int) -> None:
        """To the D that would have to compute the least, if that is little enough."""
        held = {engine: engine.prefixes.held(prompt.chain) for engine in self._candidates(size)}
        engine = max(held, key=held.__getitem__, default=None)
        if engine is None or not held[engine]:
            return
        left = prompt.bytes_without(held[engine])
        if self._meter.tokens(left) >= self._config.split_from_tokens:
            return
        if engine.prefixes.doubted():
            self.beliefs["doubted"] += 1
            return
        way.why, way.engine, way.new_bytes = "held", engine, int(left)
        way.believed_tokens = int(self._meter.tokens(prompt.size - left))

    def _candidates(self, size: int) -> list[Engine]:
        usable = [engine for engine in self._fleet.of("decode") if engine.usable]
        least = min((engine.in_flight / engine.weight for engine in usable), default=0.0)
        return [
            engine
            for engine in usable
            if engine.caches_prefixes
            and engine.in_flight / engine.weight <= _CROWDED * least + _SOME
            and self._services.admission.decode_has_room(engine, size)
        ]

    def split_after_all(self, way: Way) -> None:
        """The D that should hold it is not to be had."""
        way.why = way.engine = way.believed_tokens = None
        self.counts["split"] += 1

    def learn(self, way: Way, account: Account) -> None:
        """The request has been served to its end: D holds its prompt now, and may have told how
        much of it it held before."""
        if way.prompt is None:
            return
        for engine in self._fleet.of("decode"):
            if engine.name == account.d_engine:
                if way.believed_tokens is not None:
                    told = account.d_times.cached_tokens if account.d_times is not None else None
                    self._check(engine, way.prompt, way.believed_tokens, told)
                engine.prefixes.served(way.prompt.chain, self._room(engine))

    def _check(self, engine: Engine, prompt: Prompt, believed: int, told: int | None) -> None:
        """Half of it is near enough: tokens are estimated, and blocks may be larger than pieces."""
        if told is None:
            self.beliefs["unreported"] += 1
        elif 2 * told >= believed:
            self.beliefs["right"] += 1
            engine.prefixes.confirmed()
        else:
            self.beliefs["wrong"] += 1
            had = int(self._meter.size(told) * prompt.whole / prompt.size)
            engine.prefixes.refuted(prompt.chain, had)

    def _room(self, engine: Engine) -> int:
        """Pieces that its KV has room for, as far as it tells."""
        tokens = engine.reading.kv_tokens if engine.reading is not None else None
        return MOST if tokens is None else min(MOST, int(self._meter.size(tokens) / PIECE))
