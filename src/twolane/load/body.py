"""The bytes of one request.

Rules of this file: the body is bytes before the clock starts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from twolane.load.orders import Ask, Target
from twolane.wire.http1 import request_head


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True
    continuous_usage_stats: bool = True


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    max_tokens: int
    ignore_eos: bool
    temperature: float = 0.0
    stream: bool = True
    stream_options: _StreamOptions = _StreamOptions()


class _Completion(_Body, frozen=True, kw_only=True):
    prompt: str | list[int]


class _CompletionWithIds(_Completion, frozen=True, kw_only=True):
    """Asks which tokens the answer is made of. `return_token_ids` would say it more plainly, but
    has vLLM send the whole prompt's ids, too, with the first token whose time is taken."""

    logprobs: int = 0
    return_tokens_as_token_ids: bool = True


class _Chat(_Body, frozen=True, kw_only=True):
    messages: list[_Message]


PATHS: Final = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def body_of(ask: Ask, target: Target, prompt: str | list[int]) -> bytes:
    """The JSON of one request; a million tokens of text take about a millisecond."""
    if target.endpoint == "chat" and isinstance(prompt, str):
        return msgspec.json.encode(
            _Chat(
                model=target.model,
                max_tokens=ask.output,
                ignore_eos=ask.ignore_eos,
                messages=[_Message("user", prompt)],
            )
        )
    make = _CompletionWithIds if ask.keep_ids else _Completion
    return msgspec.json.encode(
        make(
            model=target.model,
            max_tokens=ask.output,
            ignore_eos=ask.ignore_eos,
            prompt=prompt,
        )
    )


def head_of(ask: Ask, target: Target, length: int) -> bytes:
    headers = (
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream"),
        ("X-Request-Id", ask.id),
        ("X-Twolane-Ledger", "1"),
    )
    host = f"{target.host}:{target.port}"
    return request_head("POST", PATHS[target.endpoint], host, headers, length)
