"""Where a request goes, and what is written down of its end.

Rules of this file: how engines are spoken to is `exchange`, how clients are is `client`. Only
paths of inference are passed on, since an engine's other paths (sleeping, weight updates, cache
resets, raw token endpoints that take transfer parameters) belong to whoever runs it, not to its
users.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from hmac import compare_digest
from urllib.parse import unquote

import msgspec

from twolane import clock
from twolane.proxy.admission import Admission, TokenMeter
from twolane.proxy.body import LARGE, Body
from twolane.proxy.client import ClientSide, Members, Reply
from twolane.proxy.config import ProxyConfig
from twolane.proxy.exchange import Exchange, Services
from twolane.proxy.fleet import Engine, Fleet
from twolane.proxy.handoff import HandoffBook
from twolane.proxy.ledger import REQUEST_HEADER, Account, LedgerLine
from twolane.proxy.metrics import CONTENT_TYPE, Metrics
from twolane.proxy.refusal import RefusalError
from twolane.proxy.release import Asked, Releases
from twolane.proxy.retry import RetryBudget
from twolane.proxy.turns import Turns, in_turns
from twolane.proxy.warm import Pair
from twolane.proxy.ways import Way, Ways
from twolane.proxy.workers import Board
from twolane.records import Appender
from twolane.wire.http1 import Payload
from twolane.wire.requests import Request

log = logging.getLogger(__name__)

SPLIT_PATHS = frozenset(("/v1/completions", "/v1/chat/completions"))
_PASSED = frozenset(
    (
        *("/v1/models", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/score"),
        *("/v1/rerank", "/v2/rerank", "/rerank", "/score", "/pooling", "/classify"),
        *("/v1/messages/count_tokens", "/v1/audio/transcriptions", "/v1/audio/translations"),
        *("/tokenize", "/detokenize", "/version"),
    )
)
_PASSED_UNDER = ("/v1/models/", "/v1/responses/")
_NOT_FOR_ENGINES = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive"),
        *(b"te", b"trailer", b"upgrade", b"expect", b"proxy-authorization", b"x-request-id"),
        REQUEST_HEADER,
    )
)

_POST_S = 1.0
_ENGINES_FAIL = (502, 503, 504)


class Proxy:
    """One proxy: its engines, its handoffs, its clients. `handle` serves one request."""

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.fleet = Fleet(config)
        self.book = HandoffBook()
        self.releases = Releases(config, self.fleet)
        self.meter = TokenMeter()
        self.admission = Admission(config, self.fleet, self.meter)
        self.retries = RetryBudget(config.retry_share)
        self.fallbacks = RetryBudget(config.fallback_share)
        self.services = Services(
            config,
            self.fleet,
            self.book,
            self.releases,
            self.admission,
            self.meter,
            self.retries,
            self.fallbacks,
        )
        self.ways = Ways(self.services)
        self.metrics = Metrics(self.services, self.ways)
        self.clients: Members[ClientSide] = Members()
        self.replies: Members[Reply] = Members()
        self.draining = False
        self._turns = Turns()
        self._numbered = 0
        self._keys = config.api_keys
        self._boot = clock.boot_id()
        self._ledger = Appender(config.ledger) if config.ledger is not None else None
        self._board = Board(config.shared, config.worker) if config.shared is not None else None
        self._warming: set[asyncio.Task[object]] = set()
        self._changing = asyncio.Lock()  # the engines: a reload waits for the start, too

    def client(self) -> ClientSide:
        """The protocol of one accepted connection."""
        config = self.config
        return ClientSide(self.handle, config.limits, config.client_idle_s, self.clients)

    # --------------------------------------------------------------------------- one request

    async def handle(self, request: Request, reply: Reply, received_ns: int) -> None:
        """Serve one request. Nothing escapes but the cancellation of a client that left."""
        self.replies.add(reply)
        try:
            await self._route(request, reply, received_ns)
        except RefusalError as refusal:
            reply.refuse(refusal)
        except Exception:
            log.exception("defect while serving %s %s", request.method, request.path)
            if reply.started:
                reply.break_off()
            else:
                reply.refuse(RefusalError(500, "the proxy failed; its log says how"))
        finally:
            self.replies.discard(reply)

    async def _route(self, request: Request, reply: Reply, received_ns: int) -> None:
        path = request.path
        if path == "/health":
            self._health(reply)
            return
        self._check_key(request)
        if path == "/metrics":
            reply.whole(200, [(b"content-type", CONTENT_TYPE)], self._metrics_text())
        elif path in SPLIT_PATHS and request.method == "POST":
            await self._generate(request, reply, received_ns)
        elif path.startswith(_PASSED_UNDER) and _climbs(path):
            raise RefusalError(400, "a path may not climb")
        elif path in SPLIT_PATHS or path in _PASSED or path.startswith(_PASSED_UNDER):
            await self._pass(request, reply, received_ns)
        else:
            raise RefusalError(404, f"{path[:200]} is not served here")

    def _health(self, reply: Reply) -> None:
        if self.draining:
            raise RefusalError(503, "the proxy is draining")
        pair = self.fleet.ready("prefill") and self.fleet.ready("decode")
        if not pair and not self.fleet.ready("aggregated"):
            raise RefusalError(503, "no engine is available")
        reply.whole(200, [], b"")

    async def _generate(self, request: Request, reply: Reply, received_ns: int) -> None:
        await self._turns.take()
        asked = self._asked(request, await _read(request.body))
        way = await self.ways.of(asked.body)
        exchange = way.kind(self.services, asked, reply, Account(received_ns, self._boot))
        with self._recorded(exchange, asked, reply, way):
            if way.engine is not None:
                await self._straight(exchange, way, way.engine, request, reply)
            if self.config.prefill and way.why is None:
                await self._split(exchange, request, reply)
            elif way.engine is None:
                await exchange.direct(self.ways.alone, asked.body.plain_or(request.body))

    async def _straight(
        self, exchange: Exchange, way: Way, engine: Engine, request: Request, reply: Reply
    ) -> None:
        """To the D that holds the prompt's beginning. The way is to be split where D has not seen
        the request, or broke off and the budget allows that it is asked again."""
        place = self.fleet.place_on(engine, way.new_bytes)
        try:
            await exchange.straight(place, exchange.asked.body.plain_or(request.body))
        except RefusalError as refusal:
            unseen = exchange.account.d_dispatch_ns is None
            again = refusal.again and not reply.started
            if not unseen and not (again and self.retries.take()):
                raise
            log.warning("request %s: split after all, since %s", exchange.asked.id, refusal)
            self.ways.split_after_all(way)

    async def _split(self, exchange: Exchange, request: Request, reply: Reply) -> None:
        """Through P and D; through one engine where that failed and the budget allows it."""
        self.fallbacks.earn()
        try:
            await exchange.split()
        except RefusalError as refusal:
            failed = refusal.status in _ENGINES_FAIL and not reply.started
            if not failed or not self.fallbacks.take():
                raise
            log.warning("request %s: not split, since %s", exchange.asked.id, refusal)
            exchange.fell_back = True
            exchange.account.forget_prefill()
            self.ways.counts["fallback"] += 1
            await exchange.direct(self.ways.alone, exchange.asked.body.plain_or(request.body))

    async def _pass(self, request: Request, reply: Reply, received_ns: int) -> None:
        raw: Payload = request.body
        body = Body({}, len(request.body))
        if raw and "json" in (request.header(b"content-type") or ""):
            body = await _read(request.body)
            raw = body.plain_or(request.body)
        asked = self._asked(request, body)
        exchange = Exchange(self.services, asked, reply, Account(received_ns, self._boot))
        await exchange.direct(self.ways.alone, raw, generates=False)

    def _check_key(self, request: Request) -> None:
        """Raises RefusalError 401 where keys are asked for and none of them was given."""
        if not self._keys:
            return
        scheme, _, given = (request.header(b"authorization") or "").partition(" ")
        right = [compare_digest(given.strip().encode(), key.encode()) for key in self._keys]
        if not (scheme.lower() == "bearer" and any(right)):
            raise RefusalError(401, "a valid API key is needed: Authorization: Bearer KEY")

    def _asked(self, request: Request, body: Body) -> Asked:
        request_id = self._unique(request.header(b"x-request-id")) or os.urandom(16).hex()
        return Asked(
            id=request_id,
            method=request.method,
            target=request.target,
            headers=(*_for_engines(request), ("X-Request-Id", request_id)),
            body=body,
            ledger_comment=request.header(REQUEST_HEADER) is not None,
        )

    def _unique(self, given: str | None) -> str | None:
        """A pushing P finds D's blocks by the request's id: two of one id would get each other's,
        so each gets a number. vLLM strips eight hexadecimal digits behind a dash, so no dash."""
        if given is None or not any(engine.pushes for engine in self.fleet.of("prefill")):
            return given
        self._numbered += 1
        return f"{given}.{self._numbered}"

    # --------------------------------------------------------------------------- the records

    @contextlib.contextmanager
    def _recorded(self, exchange: Exchange, asked: Asked, reply: Reply, way: Way) -> Iterator[None]:
        """Whatever the end of an exchange is, it gets its line."""
        status, outcome = 0, "done"
        try:
            yield
        except RefusalError as refusal:
            status, outcome = refusal.status, str(refusal)
            raise
        except asyncio.CancelledError:
            outcome = "client gone"
            self.metrics.gone.inc()
            raise
        except Exception:
            outcome = "defect"
            raise
        finally:
            exchange.account.end_ns = clock.now_ns()
            if exchange.fell_back:
                way.why = "fallback"
            if exchange.broken is not None:
                outcome = str(exchange.broken)
            if outcome == "done" and reply.status == 200:
                self.ways.learn(way, exchange.account)
            note = _Note(asked, reply.status or status, outcome, way)
            self._write_when_settled(exchange, note)

    def _write_when_settled(self, exchange: Exchange, note: _Note) -> None:
        """The handoff's end belongs into the line, and a release may still be on its way."""
        if exchange.release is None:
            self._write(exchange, note)
        else:
            exchange.release.add_done_callback(lambda _: self._write(exchange, note))

    def _write(self, exchange: Exchange, note: _Note) -> None:
        ledger = exchange.ledger()
        self.metrics.answered(note.asked.target.partition("?")[0], note.status)
        self.metrics.first_token(ledger)
        if self._ledger is not None:
            self._ledger.append(
                LedgerLine(
                    id=note.asked.id,
                    path=note.asked.target,
                    status=note.status,
                    outcome=note.outcome,
                    prompt_bytes=note.asked.body.size,
                    ledger=ledger,
                    alone=note.way.why,
                    believed_tokens=note.way.believed_tokens,
                )
            )

    # ------------------------------------------------------------------------- start and end

    async def start(self) -> None:
        """Find out who is there and warm every pair."""
        async with self._changing:
            await self._welcome(self.fleet.engines)
        if self._board is not None:
            self._warming.add(asyncio.create_task(self._post(self._board)))

    async def _welcome(self, engines: list[Engine]) -> None:
        await self.fleet.check(engines)
        pairs = [pair for pair in self._pairs() if pair.ready]
        mine = (p for p in pairs if p.prefill in engines or p.decode in engines)
        await asyncio.gather(*(pair.warm() for pair in mine))
        self.fleet.watch(engines, self._returned)

    def _metrics_text(self) -> bytes:
        text = self.metrics.text()
        return text if self._board is None else self._board.with_others(text)

    async def _post(self, board: Board) -> None:
        """Our metrics, where the other workers find them."""
        while True:
            board.leave(self.metrics.text())
            await asyncio.sleep(_POST_S)

    async def reload(self, config: ProxyConfig) -> None:
        """Other engines, weights and limits; what has begun goes on as it began. Where one listens
        and where the ledger is stay as they were."""
        async with self._changing:
            await self._reload(config)

    async def _reload(self, config: ProxyConfig) -> None:
        old = self.config
        self.config = config = replace(
            config,
            host=old.host,
            port=old.port,
            ledger=old.ledger,
            workers=old.workers,
            worker=old.worker,
            shared=old.shared,
        )
        new = self.fleet.update(config)
        self.services = replace(self.services, config=config)
        self.retries.configure(config.retry_share)
        self.fallbacks.configure(config.fallback_share)
        self.releases.configure(config)
        self.ways.configure(self.services)
        self._keys = config.api_keys
        await self._welcome(new)
        self.admission.configure(config)
        log.info("reloaded: %s", ", ".join(engine.name for engine in self.fleet.engines))

    def _pairs(self) -> list[Pair]:
        return [
            Pair(self.config, self.book, prefill, decode)
            for prefill in self.fleet.of("prefill")
            for decode in self.fleet.of("decode")
        ]

    def _returned(self, engine: Engine) -> None:
        """An engine is back, perhaps as a new process: its pairs must shake hands again."""
        for pair in self._pairs():
            if pair.ready and engine in (pair.prefill, pair.decode):
                task: asyncio.Task[object] = asyncio.get_running_loop().create_task(pair.warm())
                self._warming.add(task)
                task.add_done_callback(self._warming.discard)

    async def drain(self) -> None:
        """Answer what has begun, then return."""
        self.draining = True
        for client in self.clients:
            client.drain()
        await self.clients.none.wait()

    async def idle(self) -> None:
        """Until no request is being served."""
        await self.replies.none.wait()

    async def close(self) -> None:
        """End what still runs; every handoff is released or counted before this returns."""
        for client in self.clients:
            client.stop()
        await self.clients.none.wait()
        await self.idle()
        await self.releases.finish()
        for task in self._warming:
            task.cancel()
        await asyncio.gather(*self._warming, return_exceptions=True)
        await self.fleet.close()
        if self._ledger is not None:
            self._ledger.close()


class _Note(msgspec.Struct, frozen=True):
    """What a ledger line says beside the ledger."""

    asked: Asked
    status: int
    outcome: str
    way: Way


async def _read(raw: bytes | bytearray) -> Body:
    """The client's body; a large one gives the other streams their turn. Raises RefusalError."""
    if len(raw) <= LARGE:
        return Body.parse(raw)
    return await in_turns(Body.parse_in_steps(raw))


def _climbs(path: str) -> bool:
    """Whether an engine, or what stands before it, might take it for a path beside this one."""
    return not {".", ".."}.isdisjoint(unquote(path).replace("\\", "/").split("/"))


def _for_engines(request: Request) -> list[tuple[str, str]]:
    """The client's headers less those of its connection, among them those it named itself."""
    named = [value for name, value in request.headers if name == b"connection"]
    own = {token.strip().lower() for value in named for token in value.split(b",")}
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in request.headers
        if name not in _NOT_FOR_ENGINES and name not in own
    ]
