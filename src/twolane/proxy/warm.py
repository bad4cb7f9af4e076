"""One tiny request through a P-D pair before any user's.

Why: at first contact D shakes hands with P (metadata over the side channel, then the transfer
library), which costs the first user tens of milliseconds and more; and until it has, a word to P to
free a handoff's blocks is lost, so that they live out the lease.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

import msgspec

from twolane.proxy.body import Body
from twolane.proxy.config import ProxyConfig
from twolane.proxy.fleet import Engine
from twolane.proxy.handoff import Handoff, HandoffBook, MalformedHandoffError
from twolane.proxy.ledger import read_answer
from twolane.proxy.leg import Answer, LegError, ask
from twolane.proxy.release import has_read, has_told
from twolane.records import UNREADABLE
from twolane.wire.http1 import Payload, payload_size

log = logging.getLogger(__name__)

_PATH = "/v1/completions"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode engine that will work together."""

    config: ProxyConfig
    book: HandoffBook
    prefill: Engine
    decode: Engine

    @property
    def ready(self) -> bool:
        return self.prefill.usable and self.decode.usable

    async def warm(self) -> bool:
        """Send one token through. False, with a line in the log, where that did not work."""
        try:
            await self._exchange()
        except (LegError, MalformedHandoffError, _NotWarmError) as error:
            names = f"{self.prefill.name} and {self.decode.name}"
            log.warning("warming %s: %s", names, error)
            return False
        return True

    async def _exchange(self) -> None:
        body = await self._body()
        handoff = self.book.ask()
        request_id = uuid.uuid4().hex  # one for both: a pushing P finds D's blocks by it
        answer = await self._ask(self.prefill, body.for_prefill(), request_id=request_id)
        if answer.status != 200:
            raise _NotWarmError(f"the prefill engine answered {answer.status}")
        read = read_answer(answer.body)
        params = bytes(read.kv_transfer_params) if read is not None else None
        handoff.hold(params)
        if handoff.params is not None:
            self.prefill.learn(handoff.params)
        await self._hand_over(handoff, body, request_id)

    async def _hand_over(self, handoff: Handoff, body: Body, request_id: str) -> None:
        try:
            payload = body.for_decode(handoff.raw)
            answer = await self._ask(self.decode, payload, request_id=request_id)
        except BaseException:
            handoff.end("expired")
            raise
        read, told = has_read(answer), has_told(answer) and not handoff.pushed
        handoff.end("admitted" if read else "released" if told else "expired")
        if not read:
            what = "200 without a token" if answer.status == 200 else str(answer.status)
            raise _NotWarmError(f"the decode engine answered {what}")

    async def _body(self) -> Body:
        request = {
            "model": self.config.model or await self._model(),
            "prompt": f"warming up {uuid.uuid4().hex}",  # never cached: the blocks must travel
            "max_tokens": 1,
            "temperature": 0,
        }
        return Body.parse(msgspec.json.encode(request))

    async def _model(self) -> str:
        answer = await self._ask(self.prefill, b"", "GET", "/v1/models")
        try:
            return msgspec.json.decode(answer.body, type=_Models).data[0].id
        except (*UNREADABLE, IndexError):
            raise _NotWarmError("/v1/models names no model; give --model") from None

    async def _ask(
        self,
        engine: Engine,
        body: Payload,
        method: str = "POST",
        path: str = _PATH,
        request_id: str = "",
    ) -> Answer:
        headers = [("Content-Type", "application/json"), ("X-Request-Id", request_id)]
        head = engine.head(method, path, headers if body else (), payload_size(body))
        return await ask(
            engine.pool,
            head,
            body,
            connect_s=self.config.connect_timeout_s,
            answer_s=self.config.warm_timeout_s,
        )


class _NotWarmError(Exception):
    """An engine answered, but not as a pair would."""
