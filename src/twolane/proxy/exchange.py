"""The exchange: one generation request through one engine, or through P and then D.

    split    reserve D -> ask P (one token, keep the blocks) -> hold the handoff
             -> give it to D with the client's own body -> relay D's answer
    direct   one engine gets the client's body; its answer is relayed

Rules of this file: nothing waits between P's answer and D's request but D's connection. The
exchange owns its handoff and ends it on every way out; what must still be said to an engine when
the client is gone is said by a release of its own, which no cancelled client can cancel. An
engine is asked again only where it cannot have started.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from twolane import clock
from twolane.proxy.admission import Admission, Places, TokenMeter
from twolane.proxy.body import without_transfer
from twolane.proxy.client import Reply
from twolane.proxy.config import EngineRole, ProxyConfig
from twolane.proxy.fleet import Engine, Fleet, Reservation
from twolane.proxy.handoff import (
    Handoff,
    HandoffBook,
    MalformedHandoffError,
    StaleHandoffError,
)
from twolane.proxy.ledger import Account, comment, prompt_ids, read_answer, times_of
from twolane.proxy.leg import Answer, Collector, LegError, Relay, open_leg, passable
from twolane.proxy.refusal import RefusalError, from_error, from_upstream
from twolane.proxy.release import Asked, LateAnswer, Releases, has_told
from twolane.proxy.retry import RetryBudget
from twolane.records import Ledger
from twolane.wire.http1 import ClientConnection, Payload, WireError, payload_size

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Services:
    """What all exchanges of one proxy share."""

    config: ProxyConfig
    fleet: Fleet
    book: HandoffBook
    releases: Releases
    admission: Admission
    meter: TokenMeter
    retries: RetryBudget
    fallbacks: RetryBudget


def _nothing() -> None:
    """For a relay whose events nobody waits for."""


def will_hear_of_it(answer: Answer, connection: ClientConnection) -> bool:
    """Whether a D whose client has left ends the request and tells P: one that has all of the
    request, and has not refused it. One that has a part of it never hears of the handoff."""
    whole = connection.aborted_by_us and not connection.cut_off
    return whole and (answer.good or not answer.status)


def _will_hear_of_it(relay: Relay, connection: ClientConnection) -> bool:
    """As `will_hear_of_it`; nor has such a D said in a stream what an engine would not."""
    strange = relay.opening is not None and relay.opening.strange
    return not strange and will_hear_of_it(relay.answer, connection)


def no_token(told: bytes | None) -> RefusalError:
    """What a client is told of a 200 without a token in it, of which this was all."""
    return from_error(told) or RefusalError(502, "the engine answered without a token")


def _no_token(relay: Relay) -> RefusalError:
    return no_token(relay.opening.error if relay.opening is not None else relay.answer.body)


class Exchange:
    """One request's way through the engines. `account` is its ledger."""

    def __init__(self, services: Services, asked: Asked, reply: Reply, account: Account) -> None:
        self._config = services.config
        self._fleet = services.fleet
        self._book = services.book
        self._releases = services.releases
        self._admission = services.admission
        self._meter = services.meter
        self._retries = services.retries
        self.asked = asked
        self._reply = reply
        self.account = account
        self._handoff: Handoff | None = None
        self._ids: bytes | None = None  # of the prompt's tokens, where P told them
        self.release: asyncio.Task[None] | None = None  # what goes on after the exchange
        self.fell_back = False  # one engine served it, though it should have been split
        self.broken: RefusalError | None = None  # told inside a stream that had begun

    def ledger(self) -> Ledger:
        """The account with the handoff's state as it is now."""
        handoff = self._handoff
        if handoff is not None and handoff.state != "asked":
            self.account.handoff = handoff.state
        return self.account.record()

    # --------------------------------------------------------------------------------- direct

    async def direct(self, role: EngineRole, body: Payload, *, generates: bool = True) -> None:
        """Through one engine of `role`. Raises RefusalError."""
        place, connection = await self._connect(role, self.asked.body.size)
        with place:
            relay = Relay(self._reply, _nothing, place.prompt_done, generates=generates)
            await self._relay(place.engine, connection, relay, body)

    async def straight(self, place: Reservation, body: Payload) -> None:
        """Through the engine of this place and no other, whose KV the prompt takes as a split
        one's does. Raises RefusalError."""
        place.promise(self._meter.tokens(self.asked.body.size))
        with place:
            try:
                connection = await open_leg(place.engine.pool, self._config.connect_timeout_s)
            except LegError as error:
                raise self._leg_refusal(place.engine, error) from None
            relay = Relay(self._reply, place.arrive, place.prompt_done)
            await self._relay(place.engine, connection, relay, body)

    # ---------------------------------------------------------------------------------- split

    async def split(self) -> None:
        """Through P and then D; once more from the beginning where a connection broke before the
        client saw anything, and the budget allows it. Raises RefusalError."""
        self._retries.earn()
        while True:
            try:
                await self._split()
                return
            except RefusalError as refusal:
                if not refusal.again or self._reply.started or not self._retries.take():
                    raise
                log.warning("request %s: asked again: %s", self.asked.id, refusal)

    async def _split(self) -> None:
        """One handoff's way. It is never used for another attempt: D may have read it."""
        handoff = self._handoff = self._book.ask()
        await self._legs(handoff, await self._admission.enter(self.asked.body.size))

    async def _legs(self, handoff: Handoff, got: Places) -> None:
        """P, and then D."""
        with got.decode as decode:
            try:
                await self._prefill(handoff, got.prefill, decode.engine)
                await self._decode(handoff, decode)
            finally:
                self._settle(handoff, decode.engine)

    def _settle(self, handoff: Handoff, engine: Engine) -> None:
        """The exchange is over: a handoff still held goes to a release of its own."""
        if handoff.state == "held":
            self.release = self._releases.start(handoff, self.asked, engine)

    async def _prefill(self, handoff: Handoff, place: Reservation, d_engine: Engine) -> None:
        asked = self.asked.body
        with place:
            body = asked.for_prefill(ids=self._config.tokenise_once and asked.is_text)
            place, connection = await self._connect("prefill", asked.size, place)
            with place:
                answer = await self._ask_prefill(place.engine, connection, body, handoff, d_engine)
        if answer.status != 200:
            raise from_upstream(answer.status, answer.body, answer.header(b"retry-after"))
        if handoff.state != "held":
            raise RefusalError(502, "the prefill engine gave no usable handoff")

    async def _ask_prefill(
        self,
        engine: Engine,
        connection: ClientConnection,
        body: Payload,
        handoff: Handoff,
        d_engine: Engine,
    ) -> Answer:
        sink = Collector(lambda answer: self._hold(handoff, answer, engine))
        self.account.p_engine = engine.name
        given = engine.prompt_bytes
        try:
            head = self._head(engine, payload_size(body))
            self.account.p_dispatch_ns = connection.send(head, body, sink)
            d_engine.pool.prepare()  # while P works
            answer = await sink.wait(self._config.answer_timeout_s)
        except asyncio.CancelledError:
            if handoff.state == "asked" and connection.sent:
                near = self._near_end(engine, given)
                late = LateAnswer(handoff, sink, connection, near_end=near)
                self.release = self._releases.start_late(late, self.asked, d_engine)
            else:
                connection.abort()
            raise
        except (LegError, WireError) as error:
            connection.abort()
            raise self._leg_refusal(engine, error) from None
        engine.pool.release(connection)
        return answer

    def _near_end(self, engine: Engine, given: int) -> bool:
        """Whether P, which had been given so many bytes of prompts with ours, should be through
        soon, by its own rate."""
        rate = engine.tokens_a_second(int(self._meter.tokens(self.asked.body.size)))
        due_s = self._meter.tokens(given) / rate if rate is not None else 0.0
        passed_s = (clock.now_ns() - (self.account.p_dispatch_ns or 0)) / clock.NS
        return passed_s > due_s / 2 and due_s - passed_s < self._config.hear_out_s

    def _hold(self, handoff: Handoff, answer: Answer, engine: Engine) -> None:
        """P's answer is complete: take its handoff before anything else can happen."""
        self.account.p_response_ns = answer.end_ns
        if answer.status != 200:
            return
        read = read_answer(answer.body)
        times = self.account.p_times = times_of(read)
        params = bytes(read.kv_transfer_params) if read is not None else None
        if self._config.tokenise_once:
            self._ids = prompt_ids(answer.body)
        try:
            handoff.hold(params, answer.head_ns)
        except MalformedHandoffError as error:
            log.error("request %s: malformed handoff from P: %s", self.asked.id, error)
        if handoff.params is not None:
            engine.learn(handoff.params)
            if times is not None and times.first_token_ms is not None:
                computed = (handoff.tokens or 0) - (times.cached_tokens or 0)
                engine.computed(computed, times.first_token_ms / 1e3)
        self.account.remote_tokens = handoff.tokens
        self._meter.learn(self.asked.body.size, handoff.tokens or 0)

    async def _decode(self, handoff: Handoff, place: Reservation) -> None:
        place, connection = await self._connect("decode", 0, place)

        def taken() -> None:
            handoff.end("admitted")
            place.arrived = True

        relay = Relay(self._reply, taken, _nothing)
        with place:
            params = self._use(handoff, place.engine, connection)
            body = self.asked.body.for_decode(params, self._ids)
            try:
                await self._relay(place.engine, connection, relay, body)
            except asyncio.CancelledError:
                if handoff.state == "held" and _will_hear_of_it(relay, connection):
                    handoff.end("admitted")
                raise
            finally:
                if handoff.state == "held" and has_told(relay.answer) and not handoff.pushed:
                    handoff.end("released")

    def _use(self, handoff: Handoff, engine: Engine, connection: ClientConnection) -> bytes:
        """The handoff's parameters for D. Raises RefusalError 503 where it is too old."""
        try:
            return handoff.use(self._config.handoff_age_s)
        except StaleHandoffError as error:
            engine.pool.release(connection)
            handoff.end("expired")
            raise RefusalError(503, "the handoff became too old", why=str(error)) from None

    # ---------------------------------------------------------------------------- both of them

    def _reserve(
        self, role: EngineRole, prompt_bytes: int, tried: frozenset[str] = frozenset()
    ) -> Reservation:
        place = self._fleet.reserve(role, prompt_bytes, tried)
        if place is None:
            raise RefusalError(503, "no engine is available", why=f"no usable {role} engine")
        return place

    async def _connect(
        self, role: EngineRole, prompt_bytes: int, place: Reservation | None = None
    ) -> tuple[Reservation, ClientConnection]:
        """A place and a connection on the first engine that accepts one, least loaded first.

        Raises RefusalError 503 where none does. None of them has seen the request, and no place is
        taken where this raises, nor `place` any more.
        """
        tried: frozenset[str] = frozenset()
        while True:
            place = place or self._reserve(role, prompt_bytes, tried)
            engine = place.engine
            try:
                return place, await open_leg(engine.pool, self._config.connect_timeout_s)
            except LegError as error:
                log.warning("request %s: %s: %s", self.asked.id, engine.name, error)
                engine.fail(error)
                place.give_back()
            except BaseException:
                place.give_back()
                raise
            tried |= {engine.name}
            place = None

    def _head(self, engine: Engine, length: int) -> bytes:
        return engine.head(self.asked.method, self.asked.target, self.asked.headers, length)

    async def _relay(
        self, engine: Engine, connection: ClientConnection, relay: Relay, body: Payload
    ) -> None:
        self.account.d_engine = engine.name
        try:
            head = self._head(engine, payload_size(body))
            relay.on_stream_end = self._end_stream
            self.account.d_dispatch_ns = connection.send(head, body, relay)
            relay.follow(connection)
            self._reply.attach(connection)
            await relay.watch(self._config.answer_timeout_s, self._config.idle_timeout_s)
        except (LegError, WireError) as error:
            connection.abort()
            self._break(self._leg_refusal(engine, error))
            return
        except BaseException:
            connection.abort()
            raise
        finally:
            self._reply.attach(None)
            relay.leave()
            self.account.d_first_ns = relay.first_ns
        engine.pool.release(connection)
        self._finish(relay)

    def _leg_refusal(self, engine: Engine, error: Exception) -> RefusalError:
        log.warning("request %s: %s: %s", self.asked.id, engine.name, error or "no answer")
        timed_out = isinstance(error, TimeoutError)
        if isinstance(error, LegError):
            engine.fail(error)
            timed_out = error.kind == "timeout"
        if timed_out:
            return RefusalError(504, "the engine did not answer in time", why=str(error))
        if isinstance(error, LegError) and error.kind == "size":  # as it would be once more
            return RefusalError(502, "the engine's answer is too large", why=str(error))
        refusal = RefusalError(502, "the engine closed the connection early", why=str(error))
        refusal.again = True
        return refusal

    def _finish(self, relay: Relay) -> None:
        answer = relay.answer
        if not relay.good:
            raise from_upstream(answer.status, answer.body, answer.header(b"retry-after"))
        if relay.generates and not (relay.taken or relay.told_error):
            self._break(_no_token(relay))
        elif not relay.streams:
            self.account.d_times = times_of(relay.read)
            body = without_transfer(answer.body)
            self._reply.whole(answer.status, passable(answer.headers), body)

    def _end_stream(self, relay: Relay) -> None:
        """The end of a stream that served its client: in one piece with the last of it."""
        self.account.d_first_ns = relay.first_ns
        self.account.d_times = relay.tail.times()
        self._comment()
        self._reply.end()

    def _break(self, refusal: RefusalError) -> None:
        """Where the head is out already: say it in the stream, and do not end it as complete."""
        if not self._reply.started:
            raise refusal
        self.broken = refusal
        self._reply.write(b"\n\ndata: " + refusal.body + b"\n\n")
        self._comment()
        self._reply.break_off()

    def _comment(self) -> None:
        if self.asked.ledger_comment:
            self._reply.write(comment(self.ledger()))
