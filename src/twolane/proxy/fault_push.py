"""Fault engines that push, as vLLM 0.32's NixlPushConnector does.

Rules of this file: P finds D's blocks by the request id that both legs carry. A D that refuses, or
whose client leaves, tells P nothing; blocks of D that wait to be written are not given back until
they were: what is left in `waiting` is taken for good.
"""

from __future__ import annotations

import asyncio
from typing import Any

from twolane.proxy.fault_answer import Behaviour
from twolane.proxy.fault_engine import REQUEST_ID, FaultEngine, KvStore


class PushStore(KvStore):
    """Blocks that P holds, by request id too, and blocks of D that wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.finished: dict[str, str] = {}
        self.waiting: dict[str, asyncio.Future[str]] = {}

    def free(self, params: dict[str, Any] | None, how: str) -> str | None:
        return None  # D tells P nothing

    def write(self, request_id: str, key: str) -> None:
        """P has the blocks: they go to D if D has asked."""
        future = self.waiting.pop(request_id, None)
        if future is None:
            self.finished[request_id] = key
            return
        prompt = self.held.pop(key)
        if not future.done():
            future.set_result(prompt)

    async def wait(self, request_id: str) -> str:
        """D has set blocks aside."""
        key = self.finished.pop(request_id, None)
        if key is not None:
            return str(self.held.pop(key))
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting[request_id] = future
        return await future


class PushEngine(FaultEngine):
    """As a `FaultEngine`, with a `PushStore`."""

    store: PushStore

    async def _pull(self, params: Any) -> str:
        return await self.store.wait(REQUEST_ID.get())

    @staticmethod
    def _kills(params: Any) -> bool:
        needed = ("remote_request_id", "remote_engine_id", "remote_host", "remote_port", "tp_size")
        pushed = isinstance(params, dict) and params.get("do_remote_prefill")
        return bool(pushed) and not all(params.get(name) for name in needed)

    def _hand_out(self, prompt: str, behaviour: Behaviour) -> dict[str, Any] | None:
        params = super()._hand_out(prompt, behaviour)
        if params is None or "remote_request_id" not in params:
            return params
        self.store.write(REQUEST_ID.get(), params["remote_request_id"])
        return params | {"transfer_mode": "push"}
