"""Both legs at once, for engines that push: P writes into the blocks that D has set aside.

    asked of P and of D together, with one request id, by which P finds D's blocks

D gets parameters that name P (as P named itself in an earlier answer) and no blocks; vLLM 0.32
needs engine id, host, port and size of P, and would die of a missing `remote_request_id`, which is
not known yet and only needed for heartbeats: P's blocks are written as soon as they are there.

Rules of this file: once D has the request, P must finish. D frees blocks that are to be written
only when they have been written, so a P that is stopped, or that fails, leaves D's blocks taken
until D is restarted. A client that leaves before that is therefore seen out: P computes to its
end, D takes the blocks, and is then told to stop. That is the price of the time saved, and why one
leg after the other is what `auto` does.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from twolane.proxy.admission import Places
from twolane.proxy.exchange import Exchange
from twolane.proxy.handoff import Handoff, Params
from twolane.proxy.leg import Answer, Relay
from twolane.proxy.refusal import RefusalError, from_upstream

log = logging.getLogger(__name__)

_TAKEN_S = 1.0  # for D to answer when its blocks have been written


def unseen(known: Params, request_id: str) -> bytes:
    """Parameters for D of a handoff that P has not made yet. `known` is an earlier one."""
    members = msgspec.to_builtins(known)
    members |= {"remote_block_ids": [], "remote_request_id": request_id, "remote_num_tokens": None}
    return msgspec.json.encode(members)


class PushExchange(Exchange):
    """An exchange whose legs run together where P is known; else one after the other."""

    _taken = False  # D has given a token

    async def _legs(self, handoff: Handoff, got: Places) -> None:
        known = got.prefill.engine.handed
        if known is None or not known.pushed:
            await super()._legs(handoff, got)
            return
        prefilled = asyncio.Event()
        both = asyncio.get_running_loop().create_task(self._both(handoff, got, known, prefilled))
        try:
            await asyncio.shield(both)
        except asyncio.CancelledError:
            self.release = self._releases.keep(self._see_out(both, prefilled), handoff)
            raise

    async def _see_out(self, both: asyncio.Task[None], prefilled: asyncio.Event) -> None:
        """The client is gone: until D has its blocks, then no longer."""
        done = asyncio.ensure_future(prefilled.wait())
        await asyncio.wait((both, done), return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
        await asyncio.wait((both,), timeout=_TAKEN_S)
        both.cancel()
        await asyncio.gather(both, return_exceptions=True)
        if self.release is not None and self.release is not asyncio.current_task():
            await asyncio.wait((self.release,))

    async def _both(
        self, handoff: Handoff, got: Places, known: Params, prefilled: asyncio.Event
    ) -> None:
        with got.prefill, got.decode:
            p_leg = asyncio.create_task(self._prefill_leg(handoff, got))
            d_leg = asyncio.create_task(self._decode_leg(handoff, got, known))
            p_leg.add_done_callback(lambda _: prefilled.set())
            try:
                await self._together(p_leg, d_leg)
            finally:
                held = handoff.state == "held"  # else a leg that is cancelled sees to it
                for leg in (d_leg, p_leg):
                    leg.cancel()
                await asyncio.gather(p_leg, d_leg, return_exceptions=True)
                if held:
                    self._settle(handoff, got.decode.engine)

    async def _together(self, p_leg: asyncio.Task[Answer], d_leg: asyncio.Task[None]) -> None:
        """Until both are over. Raises RefusalError where one of them failed."""
        await asyncio.wait((p_leg, d_leg), return_when=asyncio.FIRST_COMPLETED)
        if p_leg.done():
            refusal = _failure(p_leg)
            if refusal is not None:
                d_leg.cancel()
                log.error(
                    "request %s: P failed (%s) while D waited: D may hold blocks until it restarts",
                    self.asked.id,
                    refusal,
                )
                self._break(refusal)
                return
        await d_leg
        await asyncio.wait((p_leg,), timeout=self._config.hear_out_s)  # D had all of it cached

    async def _prefill_leg(self, handoff: Handoff, got: Places) -> Answer:
        body = self.asked.body.for_prefill()
        place, connection = await self._connect("prefill", self.asked.body.size, got.prefill)
        with place:
            answer = await self._ask_prefill(
                place.engine, connection, body, handoff, got.decode.engine
            )
            place.prompt_done()
        if answer.status != 200:
            raise from_upstream(answer.status, answer.body, answer.header(b"retry-after"))
        self._admit(handoff)
        return answer

    async def _decode_leg(self, handoff: Handoff, got: Places, known: Params) -> None:
        place, connection = await self._connect("decode", 0, got.decode)
        with place:
            relay = Relay(self._reply, lambda: self._take(handoff), lambda: None)
            body = self.asked.body.for_decode(unseen(known, f"cmpl-{self.asked.id}-0"))
            await self._relay(place.engine, connection, relay, body)

    def _take(self, handoff: Handoff) -> None:
        self._taken = True
        self._admit(handoff)

    def _admit(self, handoff: Handoff) -> None:
        """P has made the handoff and D has given a token: whoever is second, it was taken."""
        if self._taken and handoff.state == "held":
            handoff.end("admitted")


def _failure(leg: asyncio.Task[Answer]) -> RefusalError | None:
    if leg.cancelled():
        return RefusalError(502, "the prefill was stopped")
    error = leg.exception()
    if error is None:
        return None
    return error if isinstance(error, RefusalError) else RefusalError(502, "the prefill failed")
