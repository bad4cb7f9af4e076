"""One prompt, several answers (`n` > 1): one handoff, through D's prefix cache.

    reserve D -> ask P -> D reads the blocks for one token, and keeps them in its prefix cache
              -> the client's own body to the same D, without a handoff

Why not the body and the handoff together: vLLM 0.32 makes `n` requests of one, each with the
handoff's parameters in it, and P frees the blocks when the first of them has read; the others may
read another request's text. Why not D alone: it would compute the whole prompt between the tokens
of its streams. This way it computes the prompt's last, unfinished block, and the answers share the
rest.

Rules of this file: no answer is begun before D has the blocks; no handoff goes with the request.
"""

from __future__ import annotations

import asyncio

from twolane.proxy.body import Body
from twolane.proxy.exchange import Exchange, Services, no_token, will_hear_of_it
from twolane.proxy.fleet import Reservation
from twolane.proxy.handoff import Handoff
from twolane.proxy.leg import Answer, Collector, LegError, Relay, hear
from twolane.proxy.refusal import RefusalError, from_upstream
from twolane.proxy.release import has_read, has_told
from twolane.wire.http1 import ClientConnection, Payload, payload_size

_FROM_TOKENS = 1024  # D computes less than this itself: two more legs would cost more


def fans_out(body: Body, services: Services) -> bool:
    """Whether the answers to one prompt are to share what D has read from P."""
    keeps = all(engine.caches_prefixes for engine in services.fleet.of("decode"))
    return keeps and body.fans_out and services.meter.tokens(body.size) >= _FROM_TOKENS


class FanExchange(Exchange):
    """An exchange whose D has the blocks before it has the request."""

    async def _decode(self, handoff: Handoff, place: Reservation) -> None:
        place, connection = await self._connect("decode", 0, place)
        with place:
            await self._read(handoff, place, connection)
            place, connection = await self._connect("decode", 0, place)
            with place:
                relay = Relay(self._reply, lambda: None, lambda: None)
                body = self.asked.body.plain()
                await self._relay(place.engine, connection, relay, body)

    async def _read(
        self, handoff: Handoff, place: Reservation, connection: ClientConnection
    ) -> None:
        """D takes the blocks. Raises RefusalError where it did not."""
        body = self.asked.body.for_last_read(self._use(handoff, place.engine, connection))
        sink = Collector()
        try:
            answer = await self._hear(place, connection, body, sink)
        except asyncio.CancelledError:
            if will_hear_of_it(sink.answer, connection):
                handoff.end("admitted")  # D ends what it was asked, and tells P
            raise
        if has_read(answer):
            handoff.end("admitted")
            place.arrived = True
        elif has_told(answer) and not handoff.pushed:
            handoff.end("released")
        if handoff.state != "admitted":
            raise _refusal(answer)

    async def _hear(
        self, place: Reservation, connection: ClientConnection, body: Payload, sink: Collector
    ) -> Answer:
        """D's answer to the reading. Raises RefusalError; D may have read then, or not."""
        head = self._head(place.engine, payload_size(body))
        try:
            answer = await hear(connection, head, body, self._config.answer_timeout_s, sink)
        except LegError as error:
            raise self._leg_refusal(place.engine, error) from None
        place.engine.pool.release(connection)
        return answer


def _refusal(answer: Answer) -> RefusalError:
    if answer.good:
        return no_token(answer.body)
    return from_upstream(answer.status, answer.body, answer.header(b"retry-after"))
