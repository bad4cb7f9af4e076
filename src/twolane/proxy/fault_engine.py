"""A prefill, decode or aggregated engine that breaks on request.

Rules of this file: it speaks HTTP and the handoff exactly as vLLM 0.32 does, and generates
nothing: its tokens are a fixed function of the prompt whose KV it holds, so that a handoff that
reaches the wrong request is seen in the text. Blocks are entries of a `KvStore` that P and D
share as real ones share a transfer: what is left in it at the end was stranded.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from twolane.proxy.fault_answer import Answer, Behaviour, answer_text, dribble, tokenless
from twolane.proxy.fault_wire import EngineConnection
from twolane.wire.requests import Request

MODEL = "fake"
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")  # of the request being served
Role = Literal["prefill", "decode", "aggregated"]


class KvStore:
    """Blocks that prefill engines hold for decode engines, by request id."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self._number = 0

    def hold(self, prompt: str, port: int) -> dict[str, Any]:
        """Blocks of a finished prefill: what P answers."""
        self._number += 1
        self.counts["held"] += 1
        key = f"cmpl-{self._number}"
        self.held[key] = prompt
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[self._number, self._number + 1]],
            "remote_engine_id": f"engine-{port}",
            "remote_request_id": key,
            "remote_host": "127.0.0.1",
            "remote_port": port,
            "tp_size": 1,
            "remote_num_tokens": len(prompt),
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": 0,
        }

    def free(self, params: dict[str, Any] | None, how: str) -> str | None:
        """D's word to P; the prompt whose blocks they were, None where they are gone already."""
        if not params or not params.get("do_remote_prefill"):
            return None
        prompt = self.held.pop(params["remote_request_id"], None)
        self.counts[how if prompt is not None else "late"] += 1
        return prompt

    def lapse(self, params: dict[str, Any]) -> None:
        """The lease is over: the blocks are somebody else's now."""
        self.held.pop(params["remote_request_id"], None)
        self.counts["lapsed"] += 1


@dataclass
class Seen:
    """What an engine was asked."""

    target: str
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)


class FaultEngine:
    """`async with FaultEngine("prefill", store) as engine: engine.url`."""

    def __init__(self, role: Role, store: KvStore | None = None) -> None:
        self.role = role
        self.store = store or KvStore()
        self.behaviour = Behaviour()
        self.pick: Callable[[], Behaviour] | None = None  # a behaviour for each request anew
        self.marked = ""  # misbehave towards prompts that hold this text
        self.unmarked = Behaviour()  # ... and like this towards others
        self.late_reads = 0  # handoffs read twice, or after their lease
        self.crashed = 0  # requests that would have killed a real engine
        self.malformed = 0  # requests that are no HTTP
        self.healthy = True
        self.cache: list[str] | None = None  # prompts that it keeps, where it tells of its cache
        self.seen: list[Seen] = []
        self.in_flight = 0
        self.present: list[str] = []  # their prompts
        self.peak = 0
        self.aborted = 0
        self.began = asyncio.Event()  # a generation request is here
        self.left = asyncio.Event()  # a client left before the end
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[EngineConnection] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: EngineConnection(self.answer, self._connections, self._note_malformed),
            "127.0.0.1",
            port,
            backlog=4096,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """As a process that is killed: every connection is reset."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.reset()

    def _note_malformed(self) -> None:
        self.malformed += 1

    async def __aenter__(self) -> FaultEngine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await asyncio.sleep(0)

    @property
    def asked(self) -> list[Seen]:
        """Generation requests of users: neither warm-ups nor releases."""
        return [s for s in self.seen if not _is_ours(s.body)]

    # -------------------------------------------------------------------------- the answering

    async def answer(self, request: Request, out: EngineConnection) -> None:
        if request.path == "/health":
            out.whole(200 if self.healthy else 503, b"")
        elif request.path == "/v1/models":
            out.json(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif request.path in ("/v1/completions", "/v1/chat/completions"):
            await self._generate(request, out)
        else:
            out.json(200, {"path": request.target, "size": len(request.body)})

    async def _generate(self, request: Request, out: EngineConnection) -> None:
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in request.headers}
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            out.error(400, "the body is not JSON")
            return
        self.seen.append(Seen(request.target, headers, body))
        REQUEST_ID.set(headers.get("x-request-id", ""))
        params = body.get("kv_transfer_params")
        prompt = _prompt(body)
        self.present.append(prompt)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if not _is_ours(body):
                self.began.set()
            await self._serve(body, params, out)
        except (TypeError, ValueError, LookupError, AttributeError):  # of a member's type
            out.error(400, "1 validation error:\n  a value is not of the right type")
        except asyncio.CancelledError:
            self.aborted += 1
            if self.role == "decode":
                self.store.free(params, "aborted")
            self.left.set()
            raise
        finally:
            self.in_flight -= 1
            self.present.remove(prompt)

    async def _serve(self, body: dict[str, Any], params: Any, out: EngineConnection) -> None:
        if body.get("stream_options") and not body.get("stream"):
            out.json(400, _OF_FORM)
            return
        if body.get("model") != MODEL:
            self.store.free(params, "rejected")
            out.error(404, f"The model `{body.get('model')}` does not exist.")
            return
        if self._kills(params):
            self.crashed += 1
            out.reset()
            return
        if refusal := _invalid(body):
            self.store.free(params, "rejected")
            out.error(400, refusal)
            return
        behaviour = self._behaviour(body)
        if behaviour.first_byte is not None:
            await behaviour.first_byte.wait()
        await asyncio.sleep(behaviour.first_byte_s)
        if await self._broke(behaviour, out, stream=bool(body.get("stream"))):
            return
        if behaviour.status != 200:
            if behaviour.status in (400, 404):
                self.store.free(params, "rejected")
            out.failure(behaviour.status, behaviour.retry_after, html=behaviour.fault == "html")
            return
        await self._tokens(body, params, behaviour, out)

    def _behaviour(self, body: dict[str, Any]) -> Behaviour:
        if _is_ours(body):
            return Behaviour()
        if self.marked not in _prompt(body):
            return self.unmarked
        return self.pick() if self.pick is not None else self.behaviour

    @staticmethod
    async def _broke(behaviour: Behaviour, out: EngineConnection, *, stream: bool) -> bool:
        if behaviour.fault == "hang":
            await asyncio.Event().wait()
        if behaviour.fault == "dribble":
            await dribble(out, stream=stream)
        if behaviour.fault == "reset":
            out.reset()
        return behaviour.fault == "reset" or tokenless(behaviour.fault, out, stream=stream)

    async def _tokens(
        self, body: dict[str, Any], params: Any, behaviour: Behaviour, out: EngineConnection
    ) -> None:
        prompt = _prompt(body)
        if self.role == "decode" and params:
            prompt = await self._pull(params)
        count = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        answer = Answer(body, prompt, answer_text(prompt, count))
        if self.cache is not None:
            answer.cached = 0 if params else _shared(prompt, self.cache)
            self.cache.append(prompt)
        if params and params.get("do_remote_decode"):
            answer.params = self._hand_out(prompt, behaviour)
        if body.get("stream"):
            await answer.stream(out, behaviour)
        elif behaviour.fault == "truncate":
            out.cut_short(json.dumps(answer.whole()).encode())
        elif behaviour.tail_s:
            if behaviour.lapse and answer.params is not None:
                self.store.lapse(answer.params)
            await out.late_end(json.dumps(answer.whole()).encode(), behaviour.tail_s)
        else:
            out.json(200, answer.whole())

    async def _pull(self, params: Any) -> str:
        """The prompt of the blocks; where P no longer holds them, whatever is there now."""
        prompt = self.store.free(params, "pulled")
        self.late_reads += prompt is None
        return prompt or "these blocks belong to somebody else"

    @staticmethod
    def _kills(params: Any) -> bool:
        """Parameters that raise inside a real decode engine's scheduler."""
        if not isinstance(params, dict) or not params.get("do_remote_prefill"):
            return False
        return not params.get("remote_block_ids") or not params.get("remote_request_id")

    def _hand_out(self, prompt: str, behaviour: Behaviour) -> dict[str, Any] | None:
        if behaviour.fault == "no_handoff":
            return None
        if behaviour.fault == "bad_handoff":
            return {"do_remote_prefill": True}
        return self.store.hold(prompt, self.port)


def _shared(prompt: str, kept: list[str]) -> int:
    """Tokens, which are characters here, that `prompt` begins with as one that is kept does."""
    most = 0
    for one in kept:
        while prompt[: most + 1] == one[: most + 1] and most < len(prompt):
            most += 1
    return most


def _is_ours(body: dict[str, Any]) -> bool:
    """Whether a proxy sent this for itself: to warm up, or to release."""
    return body.get("model") != MODEL or str(body.get("prompt", "")).startswith("warming up")


# What vLLM refuses before it looks for a handoff: P hears nothing.
_OF_FORM = {
    "error": {
        "message": "Stream options can only be defined when `stream=True`.",
        "type": "BadRequestError",
        "param": "stream_options",
        "code": 400,
    }
}


def _invalid(body: dict[str, Any]) -> str:
    """What vLLM's serving layer refuses; empty where it accepts."""
    most = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    if (body.get("min_tokens") or 0) > most:
        return "min_tokens must be less than or equal to max_tokens"
    return ""


def _prompt(body: dict[str, Any]) -> str:
    """The whole prompt as one text, whatever its form."""
    if "messages" in body:
        return json.dumps(body["messages"])
    prompt = body.get("prompt", "")
    return prompt if isinstance(prompt, str) else json.dumps(prompt)
