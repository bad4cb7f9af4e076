"""Who may start now: no GPU works for a request that cannot be finished at once.

Rules of this file: a split request gets its places on D and on P together, before anything is
asked, so that nothing ever waits between the legs, where P's lease runs. Who must wait, waits
here: in a bounded queue, short prompts first, and every prompt gains on the newcomers while it
waits, so that none waits for ever. Without limits in the configuration nobody waits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from twolane import clock
from twolane.proxy.config import ProxyConfig
from twolane.proxy.fleet import Engine, Fleet, Reservation
from twolane.proxy.refusal import RefusalError
from twolane.routing import urgency

_MAX_RETRY_AFTER_S = 60


class TokenMeter:
    """How many tokens a body of some bytes has: learnt from what prefill engines report.

    4 bytes a token is usual for English text; the average follows the traffic within some
    twenty requests.
    """

    _WEIGHT = 0.05

    def __init__(self) -> None:
        self.bytes_a_token = 4.0

    def learn(self, size: int, tokens: int) -> None:
        """A body of `size` bytes had `tokens` tokens."""
        if size > 0 and tokens > 0:
            self.bytes_a_token += self._WEIGHT * (size / tokens - self.bytes_a_token)

    def tokens(self, size: float) -> float:
        return size / self.bytes_a_token

    def size(self, tokens: float) -> float:
        """The other way round."""
        return tokens * self.bytes_a_token


class Places(msgspec.Struct, frozen=True):
    """One request's places, counted from now."""

    prefill: Reservation
    decode: Reservation

    def give_back(self) -> None:
        self.prefill.give_back()
        self.decode.give_back()


@dataclass(eq=False)
class _Waiter:
    size: int
    since_ns: int
    places: asyncio.Future[Places]


class Admission:
    """The queue before the engines. `waiting` and `refused` are for the metrics."""

    def __init__(
        self,
        config: ProxyConfig,
        fleet: Fleet,
        meter: TokenMeter,
        now_ns: Callable[[], int] = clock.now_ns,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._meter = meter
        self._now_ns = now_ns
        self._queue: list[_Waiter] = []
        self.refused = 0
        fleet.freed = self._let_in

    def configure(self, config: ProxyConfig) -> None:
        """Other limits from now on."""
        self._config = config
        self._let_in()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def enter(self, size: int) -> Places:
        """Places for a body of `size` bytes, as soon as there are some.

        Raises RefusalError: 503 where no engine is usable or the wait is too long, 429 where the
        queue is full.
        """
        places = self._place(size) if not self._queue else None
        if places is not None:
            return places
        if len(self._queue) >= self._config.queue_limit:
            raise self._refusal(429, "too many requests wait already")
        return await self._wait(size)

    async def _wait(self, size: int) -> Places:
        waiter = _Waiter(size, self._now_ns(), asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        self._let_in()  # a short prompt may fit where the long one that waits does not
        try:
            async with asyncio.timeout(self._config.queue_timeout_s):
                return await asyncio.shield(waiter.places)
        except BaseException as error:
            self._leave(waiter)
            if isinstance(error, TimeoutError):
                raise self._refusal(503, "no engine had room in time") from None
            raise

    def _leave(self, waiter: _Waiter) -> None:
        """Nobody waits any more; places given in the same instant go back."""
        if waiter in self._queue:
            self._queue.remove(waiter)
            waiter.places.cancel()
            self._let_in()
        elif waiter.places.done() and waiter.places.exception() is None:
            waiter.places.result().give_back()

    def _let_in(self) -> None:
        """Something became free: let in who is next, as long as there is room for them."""
        while self._queue:
            waiter = min(self._queue, key=self._urgency)
            try:
                places = self._place(waiter.size)
            except RefusalError as refusal:
                self._queue.remove(waiter)
                waiter.places.set_exception(refusal)
                continue
            if places is None:
                return
            self._queue.remove(waiter)
            waiter.places.set_result(places)

    def _urgency(self, waiter: _Waiter) -> float:
        waited_s = (self._now_ns() - waiter.since_ns) / clock.NS
        return urgency(self._meter.tokens(waiter.size), waited_s, self._config.ageing_tokens_s)

    def _place(self, size: int) -> Places | None:
        """Places on the least loaded engines, None where those have no room.

        Raises RefusalError 503 where no engine of a role is usable.
        """
        p, d = self._fleet.peek("prefill"), self._fleet.peek("decode")
        if p is None or d is None:
            missing = "prefill" if p is None else "decode"
            raise RefusalError(503, "no engine is available", why=f"no usable {missing} engine")
        if not (self._prefill_has_room(p, size) and self.decode_has_room(d, size)):
            return None
        decode = self._fleet.place_on(d, 0)
        decode.promise(self._meter.tokens(size))
        return Places(self._fleet.place_on(p, size), decode)

    def _prefill_has_room(self, engine: Engine, size: int) -> bool:
        """A prompt over the limit is let in alone: it would wait for ever otherwise."""
        limit = self._config.backlog_tokens
        if limit is None or not engine.prompt_bytes:
            return True
        return self._meter.tokens(engine.prompt_bytes + size) <= limit * engine.weight

    def decode_has_room(self, engine: Engine, size: int) -> bool:
        """Places, and KV where there is a limit; an idle engine gets what would never fit."""
        limit = self._config.decode_limit
        if limit is not None and engine.in_flight >= limit * engine.weight:
            return False
        share, taken, reading = self._config.kv_limit, engine.kv_taken, engine.reading
        if share is None or taken is None or reading is None or not engine.in_flight:
            return True
        return taken + self._meter.tokens(size) / (reading.kv_tokens or 1) <= share

    def _refusal(self, status: int, message: str) -> RefusalError:
        """With the time that the backlog takes at the rate at which waiting counts."""
        self.refused += 1
        backlog = sum(waiter.size for waiter in self._queue)
        backlog += sum(engine.prompt_bytes for engine in self._fleet.of("prefill"))
        seconds = self._meter.tokens(backlog) / self._config.ageing_tokens_s
        refusal = RefusalError(status, message)
        refusal.retry_after_s = min(_MAX_RETRY_AFTER_S, max(1, math.ceil(seconds)))
        return refusal
