"""What a fault engine says: right answers, and how they are spoilt.

Rules of this file: an answer is a fixed function of a prompt, in the shapes that vLLM gives it.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from twolane.proxy.fault_wire import EngineConnection

Fault = Literal[
    "none",
    "hang",  # reads the request and never answers
    "reset",  # closes without a byte
    "truncate",  # closes in the middle of the answer
    "garbage",  # 200 with a body that is not JSON
    "deep",  # 200 with JSON, or a stream of it, that is nested without end
    "junk",  # 200 with JSON, or a stream of it, that holds no token
    "noise",  # 200 with a stream of events that are not JSON
    "hollow",  # 200 with nothing behind its head
    "cut",  # 200, and closes before the body that it announced
    "null_choice",  # 200 with null where the choice should be
    "dribble",  # 200 with what is no token, again and again
    "half_refusal",  # 503, and never the rest of the body that it announced
    "first_error",  # 200 with an error where the first token should be
    "no_handoff",  # P: kv_transfer_params is null
    "bad_handoff",  # P: kv_transfer_params without blocks
    "html",  # an error that is not OpenAI-shaped
    "stream_error",  # D: an error event in the stream, then [DONE]
]


def answer_text(prompt: str, tokens: int) -> list[str]:
    """The tokens that follow `prompt`."""
    seed = zlib.crc32(prompt.encode())
    return [f" {(seed + 7919 * i) % 10_000}" for i in range(tokens)]


@dataclass
class Behaviour:
    """How an engine answers generation requests. Events that are set do not hold anything up."""

    fault: Fault = "none"
    status: int = 200
    retry_after: str | None = None
    first_byte: asyncio.Event | None = None  # waited for before the answer begins
    after_head: asyncio.Event | None = None  # ... behind a stream's head and a keep-alive
    after_first: asyncio.Event | None = None  # ... after the first token
    first_byte_s: float = 0.0  # as `first_byte` and `after_first`, by the clock
    after_first_s: float = 0.0
    step_s: float = 0.0  # D: between two events of a stream
    tail_s: float = 0.0  # between the halves of an answer that is not streamed
    lapse: bool = False  # P: the lease is over before the answer has arrived
    tokens_at_once: int = 1
    split_bytes: int = 0  # D: write streams in pieces of so many bytes, wherever that cuts


@dataclass
class Answer:
    body: dict[str, Any]
    prompt: str
    tokens: list[str]
    params: dict[str, Any] | None = None
    cached: int = 0  # tokens of the prompt

    @property
    def _chat(self) -> bool:
        return "messages" in self.body

    def _usage(self, count: int) -> dict[str, Any]:
        details = {"cached_tokens": self.cached}
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
        told = self.body.get("return_token_ids")
        ids = {"prompt_token_ids": [ord(c) for c in self.prompt]} if told else {}
        return (ids if self._chat else {}) | {
            "id": "cmpl-1",
            "choices": self._choices(choice if self._chat else choice | ids),
            "usage": self._usage(len(self.tokens)),
            "kv_transfer_params": self.params,
            "metrics": _METRICS,
        }

    def _choices(self, first: dict[str, Any]) -> list[dict[str, Any]]:
        """One for each prompt, or `n` of the same."""
        prompts = self.body.get("prompt")
        if isinstance(prompts, list) and all(isinstance(one, str) for one in prompts):
            texts = ["".join(answer_text(one, len(self.tokens))) for one in prompts]
            return [first | {"index": i, "text": text} for i, text in enumerate(texts)]
        return [first | {"index": i} for i in range(int(self.body.get("n") or 1))]

    async def stream(self, out: EngineConnection, behaviour: Behaviour) -> None:
        out.start(b"text/event-stream; charset=utf-8")
        out.split_bytes = behaviour.split_bytes
        if behaviour.after_head is not None:
            out.chunk(b": keep-alive\n\n")
            await behaviour.after_head.wait()
        step = behaviour.tokens_at_once
        for at in range(0, len(self.tokens), step):
            out.event(self._chunk("".join(self.tokens[at : at + step])))
            if behaviour.step_s:
                await asyncio.sleep(behaviour.step_s)
            if behaviour.split_bytes:
                await asyncio.sleep(0)
            if at == 0 and behaviour.after_first is not None:
                await behaviour.after_first.wait()
            if at == 0:
                await asyncio.sleep(behaviour.after_first_s)
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


_ERROR = {"error": {"message": "KV load failed", "type": "InternalServerError", "code": 500}}
_DEEP = b'{"choices": ' + b"[" * 100_000
_EVENTS = {
    "deep": b"data: " + _DEEP + b"\n\n",
    "junk": b'data: {"object": "page"}\n\n',
    "noise": b"data: <<not json>>\n\n",
    "null_choice": b'data: {"choices": [null]}\n\n',
    "first_error": b"data: " + json.dumps(_ERROR).encode() + b"\n\ndata: [DONE]\n\n",
}
_BODIES = {
    "garbage": b"<<not json>>",
    "deep": _DEEP,
    "junk": b'{"object": "page"}',
    "noise": b"data: <<not json>>\n\n",
    "hollow": b"",
    "null_choice": b'{"choices": [null]}',
    "first_error": json.dumps(_ERROR).encode(),
}


async def dribble(out: EngineConnection, *, stream: bool) -> None:
    """Until the client has gone."""
    out.start(b"text/event-stream" if stream else b"application/json")
    while True:
        out.chunk(b"data: {}\n\n" if stream else b" ")
        await asyncio.sleep(0.005)


def tokenless(fault: Fault, out: EngineConnection, *, stream: bool) -> bool:
    """From an engine that has not looked at the request's blocks; False for other faults."""
    if fault == "cut":
        out.announce(stream=stream)
        out.reset()
    elif fault == "half_refusal":
        out.begin(503, b'{"error":')
    elif stream and (fault in _EVENTS or fault == "hollow"):
        out.start(b"text/event-stream")
        if fault in _EVENTS:
            out.chunk(_EVENTS[fault])
        out.end()
    elif fault in _BODIES:
        out.whole(200, _BODIES[fault], b"content-type: application/json")
    else:
        return False
    return True


_METRICS = {"queue_time_ms": 0.5, "time_to_first_token_ms": 1.5, "generation_time_ms": 2.0}
