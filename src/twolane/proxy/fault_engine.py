"""A prefill, decode or aggregated engine that breaks on request.

Rules of this file: it speaks HTTP and the handoff exactly as vLLM 0.32 does, and generates
nothing: its tokens are a fixed function of the prompt whose KV it holds, so that a handoff that
reaches the wrong request is seen in the text. Blocks are entries of a `KvStore` that P and D
share as real ones share a transfer: what is left in it at the end was stranded.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from twolane.wire.requests import BadRequestError, Limits, Request, RequestParser

MODEL = "fake"
Role = Literal["prefill", "decode", "aggregated"]
Fault = Literal[
    "none",
    "hang",  # reads the request and never answers
    "reset",  # closes without a byte
    "truncate",  # closes in the middle of the answer
    "garbage",  # 200 with a body that is not JSON, or a stream that is not HTTP
    "no_handoff",  # P: kv_transfer_params is null
    "bad_handoff",  # P: kv_transfer_params without blocks
    "html",  # an error that is not OpenAI-shaped
    "stream_error",  # D: an error event in the stream, then [DONE]
]


def answer_text(prompt: str, tokens: int) -> list[str]:
    """The tokens that follow `prompt`."""
    seed = zlib.crc32(prompt.encode())
    return [f" {(seed + 7919 * i) % 10_000}" for i in range(tokens)]


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


@dataclass
class Behaviour:
    """How an engine answers generation requests. Events that are set do not hold anything up."""

    fault: Fault = "none"
    status: int = 200
    retry_after: str | None = None
    first_byte: asyncio.Event | None = None  # waited for before the answer begins
    after_first: asyncio.Event | None = None  # waited for after the first token
    tokens_at_once: int = 1


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
        self.healthy = True
        self.seen: list[Seen] = []
        self.in_flight = 0
        self.peak = 0
        self.aborted = 0
        self.began = asyncio.Event()  # a generation request is here
        self.left = asyncio.Event()  # a client left before the end
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self, self._connections), "127.0.0.1", port, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """As a process that is killed: every connection is reset."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.reset()

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

    async def answer(self, request: Request, out: _Connection) -> None:
        if request.path == "/health":
            out.whole(200 if self.healthy else 503, b"")
        elif request.path == "/v1/models":
            out.json(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif request.path in ("/v1/completions", "/v1/chat/completions"):
            await self._generate(request, out)
        else:
            out.json(200, {"path": request.target, "size": len(request.body)})

    async def _generate(self, request: Request, out: _Connection) -> None:
        headers = {n.decode(): v.decode("latin-1") for n, v in request.headers}
        body = json.loads(request.body)
        self.seen.append(Seen(request.target, headers, body))
        params = body.get("kv_transfer_params")
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if not _is_ours(body):
                self.began.set()
            await self._serve(body, params, out)
        except asyncio.CancelledError:
            self.aborted += 1
            if self.role == "decode":
                self.store.free(params, "aborted")
            self.left.set()
            raise
        finally:
            self.in_flight -= 1

    async def _serve(self, body: dict[str, Any], params: Any, out: _Connection) -> None:
        if body.get("model") != MODEL:
            self.store.free(params, "rejected")
            out.error(404, f"The model `{body.get('model')}` does not exist.")
            return
        picked = self.pick() if self.pick is not None else self.behaviour
        behaviour = Behaviour() if _is_ours(body) else picked
        if behaviour.first_byte is not None:
            await behaviour.first_byte.wait()
        if await self._broke(behaviour, out):
            return
        if behaviour.status != 200:
            if behaviour.status in (400, 404):
                self.store.free(params, "rejected")
            out.failure(behaviour)
            return
        await self._tokens(body, params, behaviour, out)

    @staticmethod
    async def _broke(behaviour: Behaviour, out: _Connection) -> bool:
        if behaviour.fault == "hang":
            await asyncio.Event().wait()
        if behaviour.fault == "reset":
            out.reset()
        if behaviour.fault == "garbage":
            out.whole(200, b"<<not json>>")
        return behaviour.fault in ("reset", "garbage")

    async def _tokens(
        self, body: dict[str, Any], params: Any, behaviour: Behaviour, out: _Connection
    ) -> None:
        prompt = _prompt(body)
        if self.role == "decode" and params:
            prompt = self.store.free(params, "pulled") or "these blocks belong to somebody else"
        count = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        answer = _Answer(body, prompt, answer_text(prompt, count))
        if params and params.get("do_remote_decode"):
            answer.params = self._hand_out(prompt, behaviour)
        if body.get("stream"):
            await answer.stream(out, behaviour)
        elif behaviour.fault == "truncate":
            out.cut_short(json.dumps(answer.whole()).encode())
        else:
            out.json(200, answer.whole())

    def _hand_out(self, prompt: str, behaviour: Behaviour) -> dict[str, Any] | None:
        if behaviour.fault == "no_handoff":
            return None
        if behaviour.fault == "bad_handoff":
            return {"do_remote_prefill": True}
        return self.store.hold(prompt, self.port)


def _is_ours(body: dict[str, Any]) -> bool:
    """Whether a proxy sent this for itself: to warm up, or to release."""
    return body.get("model") != MODEL or str(body.get("prompt", "")).startswith("warming up")


def _prompt(body: dict[str, Any]) -> str:
    """The whole prompt as one text, whatever its form."""
    if "messages" in body:
        return json.dumps(body["messages"])
    prompt = body.get("prompt", "")
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


@dataclass
class _Answer:
    body: dict[str, Any]
    prompt: str
    tokens: list[str]
    params: dict[str, Any] | None = None

    @property
    def _chat(self) -> bool:
        return "messages" in self.body

    def _usage(self, count: int) -> dict[str, Any]:
        details = {"cached_tokens": 0}
        size = len(self.prompt)
        return {
            "prompt_tokens": size,
            "completion_tokens": count,
            "total_tokens": size + count,
            "prompt_tokens_details": details,
        }

    def whole(self) -> dict[str, Any]:
        text = "".join(self.tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        choice |= (
            {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        )
        return {
            "id": "cmpl-1",
            "choices": [choice] * int(self.body.get("n") or 1),
            "usage": self._usage(len(self.tokens)),
            "kv_transfer_params": self.params,
            "metrics": _METRICS,
        }

    async def stream(self, out: _Connection, behaviour: Behaviour) -> None:
        out.start(b"text/event-stream; charset=utf-8")
        step = behaviour.tokens_at_once
        for at in range(0, len(self.tokens), step):
            out.event(self._chunk("".join(self.tokens[at : at + step])))
            if at == 0 and behaviour.after_first is not None:
                await behaviour.after_first.wait()
            if at == 0 and behaviour.fault == "truncate":
                out.reset()
                return
        if behaviour.fault == "stream_error":
            out.event({"error": {"message": "KV load failed", "type": "InternalServerError"}})
        elif (self.body.get("stream_options") or {}).get("include_usage"):
            usage = self._usage(len(self.tokens))
            out.event({"choices": [], "usage": usage, "metrics": _METRICS})
        out.chunk(b"data: [DONE]\n\n")
        out.end()

    def _chunk(self, text: str) -> dict[str, Any]:
        choice = {"delta": {"content": text}} if self._chat else {"text": text}
        return {"id": "cmpl-1", "choices": [{"index": 0, **choice}]}


_METRICS = {"queue_time_ms": 0.5, "time_to_first_token_ms": 1.5, "generation_time_ms": 2.0}


class _Connection(asyncio.Protocol):
    """One connection to a fault engine; its requests are served in order."""

    def __init__(self, engine: FaultEngine, members: set[_Connection]) -> None:
        self._engine = engine
        self._members = members
        self._parser = RequestParser(Limits(body=256 * 1024 * 1024))
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[Request] = []
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._members.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._members.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._waiting += self._parser.feed(data)
        except BadRequestError as error:
            self.error(error.status, error.message)
            self._transport.close()
        self._next()

    def _next(self) -> None:
        if self._task is None and self._waiting:
            work = self._run(self._waiting.pop(0))
            self._task = asyncio.get_running_loop().create_task(work)

    async def _run(self, request: Request) -> None:
        serve: Callable[[Request, _Connection], Awaitable[None]] = self._engine.answer
        try:
            await serve(request, self)
        finally:
            self._task = None
        self._next()

    # ------------------------------------------------------------------------------- writing

    def whole(self, status: int, body: bytes, *extra: bytes) -> None:
        lines = [b"HTTP/1.1 %d X" % status, b"server: uvicorn", *extra]
        lines.append(b"content-length: %d" % len(body))
        self._transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    def json(self, status: int, value: object, *extra: bytes) -> None:
        self.whole(status, json.dumps(value).encode(), b"content-type: application/json", *extra)

    def error(self, status: int, message: str, *extra: bytes) -> None:
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        error = {"message": message, "type": kind, "param": None, "code": status}
        self.json(status, {"error": error}, *extra)

    def failure(self, behaviour: Behaviour) -> None:
        extra = (
            []
            if behaviour.retry_after is None
            else [b"retry-after: " + behaviour.retry_after.encode()]
        )
        if behaviour.fault == "html":
            text = b"<h1>bad gateway at 127.0.0.1:8101</h1>"
            self.whole(behaviour.status, text, b"content-type: text/html", *extra)
        else:
            self.error(behaviour.status, f"engine says {behaviour.status}", *extra)

    def cut_short(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body[: len(body) // 2])
        self._transport.close()

    def start(self, content_type: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head % content_type)

    def chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, value: object) -> None:
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def end(self) -> None:
        self._transport.write(b"0\r\n\r\n")

    def reset(self) -> None:
        """What was written leaves, then the connection is gone."""
        self._transport.close()
