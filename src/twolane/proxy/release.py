"""Freeing the blocks of a handoff that nobody will read.

P frees what it holds when D says so, or when the lease ends after 30 s. D says so when its
serving layer refuses a request that carries the handoff, so a release is a request that D must
refuse. Measured on a real pair: P's blocks are free 0.2 s later, provided that D has shaken hands
with P before (`warm`).

Rules of this file: releases outlive the exchange whose client left, so each is a task of its own,
and each ends its handoff: released where some D took the word, else expired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass

import msgspec

from twolane.proxy.body import Body
from twolane.proxy.config import ProxyConfig
from twolane.proxy.fleet import Engine, Fleet
from twolane.proxy.handoff import Handoff
from twolane.proxy.ledger import read_answer
from twolane.proxy.leg import Answer, Collector, LegError, ask
from twolane.proxy.refusal import of_form
from twolane.wire.http1 import ClientConnection, Payload, payload_size

log = logging.getLogger(__name__)

# Statuses by which an engine's serving layer has looked at the request: vLLM then tells P itself
# to free the blocks (_with_kv_transfer_rejection_cleanup). Others may come from a layer before, and
# so may a 400 for a request's form.
_TOLD_P = frozenset((400, 404))
_LAST_WORD_S = 5.0  # for P to close, or to finish its answer, once it was told to stop


def has_told(answer: Answer) -> bool:
    """Whether a D that is to pull has answered so that it has told P to free the blocks."""
    return answer.status in _TOLD_P and not of_form(answer.body)


def has_read(answer: Answer) -> bool:
    """Whether D has answered so that it has the blocks: with a token, not only with a status."""
    read = read_answer(answer.body) if answer.status == 200 else None
    return read is not None and read.has_choice


class Asked(msgspec.Struct, frozen=True):
    """What the client asked: target, headers for the engines, body; `id` is the request's id."""

    id: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: Body
    ledger_comment: bool = False


@dataclass(frozen=True)
class LateAnswer:
    """P's answer is still to come, and nobody waits for it but us.

    A P that has just finished holds blocks, and only its answer says which. Closing the connection
    in that instant loses the answer inside P's server (its engine no longer knows the request, its
    HTTP side drops the output), so that the blocks live out the lease; aborting by request id loses
    it in the same way. So a P that is past half of its time and should be through within the time
    for which it would be heard out is heard out, and stopped only if it goes on computing. One that
    has longer to go is stopped at once: vLLM looks for aborts before it takes a step's results, so
    that only the milliseconds of an answer's way are dangerous.
    """

    handoff: Handoff
    sink: Collector
    connection: ClientConnection
    near_end: bool = True  # P should be through soon, by its own rate


class Releases:
    """Handoffs whose exchange is over: each told to P through D, in a task of its own."""

    def __init__(self, config: ProxyConfig, fleet: Fleet) -> None:
        self._config = config
        self._fleet = fleet
        self._tasks: set[asyncio.Task[None]] = set()

    def configure(self, config: ProxyConfig) -> None:
        """Other times from now on."""
        self._config = config

    def start(self, handoff: Handoff, asked: Asked, engine: Engine) -> asyncio.Task[None]:
        """Take the handoff over. `engine` is the D that was to read it, so that it has shaken
        hands with P: at first contact the word to P is lost and the lease must run out."""
        return self._keep(self._release(handoff, asked, engine), handoff)

    def start_late(self, late: LateAnswer, asked: Asked, engine: Engine) -> asyncio.Task[None]:
        """Hear P out for a while, then stop it; release what it holds, if it holds anything."""
        return self._keep(self._hear_out(late, asked, engine), late.handoff)

    def keep(self, work: Coroutine[None, None, None], handoff: Handoff) -> asyncio.Task[None]:
        """Let `work` go on without its client; it ends `handoff`."""
        return self._keep(work, handoff)

    async def finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _keep(self, work: Coroutine[None, None, None], handoff: Handoff) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._done(done, handoff))
        return task

    def _done(self, task: asyncio.Task[None], handoff: Handoff) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("defect in a release", exc_info=task.exception())
        handoff.abandon()  # a release that worked has ended it: this strands nothing then

    async def _hear_out(self, late: LateAnswer, asked: Asked, engine: Engine) -> None:
        if late.near_end:
            await asyncio.wait((late.sink.done,), timeout=self._config.hear_out_s)
        if not late.sink.done.done() and (
            late.connection.answer_started or late.connection.ask_to_stop()
        ):
            await asyncio.wait((late.sink.done,), timeout=_LAST_WORD_S)
        late.connection.abort()
        if late.sink.done.done():
            late.sink.done.exception()  # seen: a P that stopped closes without an answer
        if late.handoff.state == "held":
            await self._release(late.handoff, asked, engine)

    async def _release(self, handoff: Handoff, asked: Asked, engine: Engine) -> None:
        others = [other for other in self._fleet.of("decode") if other is not engine]
        for candidate in (engine, *others):
            if await self._tell(candidate, handoff, asked):
                handoff.end("released")
                return
        handoff.end("expired")
        log.warning("request %s: no D could release its handoff; the lease will", asked.id)

    async def _tell(self, engine: Engine, handoff: Handoff, asked: Asked) -> bool:
        """Whether P will free the blocks now. A D that is pushed to tells P nothing when it
        refuses: it must take the blocks to be rid of them."""
        body: Payload = asked.body.for_release(handoff.raw)
        if handoff.pushed:
            body = asked.body.for_last_read(handoff.raw)
        head = engine.head("POST", asked.target, asked.headers, payload_size(body))
        timeout_s = self._config.release_timeout_s
        try:
            answer = await ask(engine.pool, head, body, connect_s=timeout_s, answer_s=timeout_s)
        except LegError as error:
            log.info("release of %s through %s: %s", asked.id, engine.name, error)
            return False
        return has_read(answer) if handoff.pushed else has_told(answer)
