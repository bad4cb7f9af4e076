"""The fault table.

Rules of this file: data only. A row is a fault of an engine or of a client, a way of asking, what
the client must see and what the engines must end with. Rows are judged by what any prefill/decode
router for vLLM owes its users, not by how twolane does it; where a row can be met in several
ways, all of them are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from twolane.proxy.fault_answer import Behaviour, Fault

Leg = Literal["prefill", "decode"]
Act = Literal[
    "ask",  # one request, heard to its end
    "leave at once",  # the client leaves: when its request is out,
    "leave in prefill",  # ... when P has it,
    "leave before decode",  # ... when P holds the blocks and its answer is under way,
    "leave in transfer",  # ... when D has it,
    "leave in stream",  # ... when the first token is out
    "many",  # `count` at once, all open together
    "large",  # a body of 7 MB
    "byte by byte",
    "pipelined",  # two requests in one write
    "smuggled",  # Content-Length and Transfer-Encoding disagree
    "restart",  # the engine is killed in the middle of 8 streams, and comes back
    "forged",  # the client brings transfer parameters of its own
    "headers",  # the client's headers must reach both engines
]
Kind = Literal["answer", "answers", "refusal", "broken", "nothing", "any failure", "restart"]


@dataclass(frozen=True)
class Sees:
    """What the client must see.

    answer       200, complete, the text of its own prompt
    answers      as many choices as asked for, each right
    refusal      one of `statuses`, an OpenAI-shaped error that names no address
    broken       a stream that does not pass for a complete one
    any failure  refusal or broken
    nothing      the client is gone
    restart      requests on the killed engine fail openly; 5 s after its return answers are right
    """

    kind: Kind
    statuses: tuple[int, ...] = ()
    retry_after: bool = False
    shaped: bool = True  # what no HTTP parser accepts may be refused in any words


@dataclass(frozen=True)
class Ends:
    """What the engines must end with, at most 2 s after the client: no request, no held block
    (but `leased`, where nobody can know what P holds), no handoff read twice or late, no request
    that would have killed a real engine."""

    leased: int = 0
    decode_asked: int | None = None
    together: int = 0  # so many were at D at one time


@dataclass(frozen=True)
class Row:
    """`p` and `d` are the engines' behaviours; `body` is added to the request."""

    name: str
    sees: Sees
    ends: Ends = field(default_factory=Ends)
    act: Act = "ask"
    p: Behaviour = field(default_factory=Behaviour)
    d: Behaviour = field(default_factory=Behaviour)
    down: Leg | None = None
    stream: bool = False
    body: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    patience_s: float = 10.0


ANSWER = Sees("answer")
NOTHING = Sees("nothing")
BAD_GATEWAY = (500, 502, 503)
TIMED = (500, 502, 503, 504)


def _statuses() -> Iterator[Row]:
    for leg in ("prefill", "decode"):
        for status in (400, 401, 404, 429, 500, 503):
            for stream in (False, True):
                bad = Behaviour(status=status, retry_after="7" if status in (429, 503) else None)
                sees = Sees("refusal", (status,), retry_after=status in (429, 503))
                ends = Ends(decode_asked=0) if leg == "prefill" else Ends()
                yield _on(leg, f"answers {status}", bad, sees, ends, stream=stream)


def _on(
    leg: str, what: str, bad: Behaviour, sees: Sees, ends: Ends, *, stream: bool, act: Act = "ask"
) -> Row:
    name = f"{leg} {what}" + (" (stream)" if stream else "")
    p, d = (bad, Behaviour()) if leg == "prefill" else (Behaviour(), bad)
    patience_s = 2.0 if bad.fault == "hang" else 45.0 if bad.lapse else 10.0
    return Row(name, sees, ends, act, p, d, stream=stream, patience_s=patience_s)


_BROKEN_P: tuple[tuple[str, Fault, Ends], ...] = (
    ("resets", "reset", Ends(decode_asked=0)),
    ("cuts its answer short", "truncate", Ends(leased=9, decode_asked=0)),
    ("answers no JSON", "garbage", Ends(decode_asked=0)),
    ("gives no handoff", "no_handoff", Ends(decode_asked=0)),
    ("gives a malformed handoff", "bad_handoff", Ends(decode_asked=0)),
)


# 200s without a token: D has not taken the blocks, whatever its status says.
_TOKENLESS: tuple[tuple[str, Fault], ...] = (
    ("answers no JSON", "garbage"),
    ("answers JSON without a choice", "junk"),
    ("answers an empty 200", "hollow"),
    ("closes after a 200's head", "cut"),
    ("answers an error with status 200", "first_error"),
)


def _broken_engines() -> Iterator[Row]:
    refused = Sees("refusal", BAD_GATEWAY)
    for what, fault, ends in _BROKEN_P:
        yield _on("prefill", what, Behaviour(fault=fault), refused, ends, stream=True)
    for stream in (False, True):
        yield _on("decode", "resets", Behaviour(fault="reset"), refused, Ends(), stream=stream)
    cut = Behaviour(fault="truncate")
    yield _on("decode", "cuts its answer short", cut, refused, Ends(), stream=False)
    yield _on("decode", "resets in the stream", cut, Sees("broken"), Ends(), stream=True)
    error = Behaviour(fault="stream_error")
    yield _on("decode", "ends in an error event", error, Sees("broken"), Ends(), stream=True)
    for what, fault in _TOKENLESS:
        for stream in (False, True):
            sees = Sees("any failure" if stream else "refusal", BAD_GATEWAY)
            yield _on("decode", what, Behaviour(fault=fault), sees, Ends(), stream=stream)
    noise = Behaviour(fault="noise")
    yield _on("decode", "streams what is not JSON", noise, Sees("any failure"), Ends(), stream=True)
    html = Behaviour(status=500, fault="html")
    for leg in ("prefill", "decode"):
        yield _on(leg, "answers 500 in HTML", html, Sees("refusal", (500,)), Ends(), stream=False)
        slow = Behaviour(first_byte_s=1.0)
        yield _on(leg, "is slow", slow, ANSWER, Ends(), stream=True)
        hang = Behaviour(fault="hang")
        yield _on(leg, "hangs; the client gives up", hang, NOTHING, Ends(), stream=True)
    stale = Behaviour(tail_s=26.0, lapse=True)
    yield _on("prefill", "answers too late: the lease is over", stale,
              Sees("refusal", TIMED), Ends(decode_asked=0), stream=False)  # fmt: skip
    for leg, ends in (("prefill", Ends(decode_asked=0)), ("decode", Ends(leased=1))):
        sees = Sees("refusal", BAD_GATEWAY)
        yield Row(f"{leg} refuses connections", sees, ends, down=leg)  # type: ignore[arg-type]


def _leaving() -> Iterator[Row]:
    slow = Behaviour(first_byte_s=1.0)
    for stream in (False, True):
        tag = " (stream)" if stream else ""
        yield Row(f"client gone at once{tag}", NOTHING, act="leave at once", stream=stream)
        yield Row(
            f"client gone in prefill{tag}", NOTHING, act="leave in prefill",
            p=Behaviour(fault="hang"), stream=stream,
        )  # fmt: skip
        yield Row(
            f"client gone between the legs{tag}", NOTHING, act="leave before decode",
            p=Behaviour(tail_s=0.3), stream=stream,
        )  # fmt: skip
        yield Row(
            f"client gone in transfer{tag}", NOTHING, act="leave in transfer", d=slow,
            stream=stream,
        )  # fmt: skip
    late = Behaviour(after_first_s=30.0)
    yield Row("client gone in the stream", NOTHING, act="leave in stream", d=late, stream=True)


def _shapes() -> Iterator[Row]:
    yield Row("n = 2", Sees("answers"), body={"n": 2}, count=2)
    yield Row("two prompts", Sees("answers"), body={"prompt": ["one", "two"]}, count=2)
    yield Row("min_tokens 8", ANSWER, body={"min_tokens": 8, "max_tokens": 12})
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "row"}],
        "prompt": None,
        "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }
    yield Row("chat with tool_choice required", ANSWER, body=chat)
    usage = {"stream_options": {"include_usage": True}}
    yield Row(
        "stream_options without stream", Sees("refusal", (400,)),
        body=usage,
    )  # fmt: skip
    yield Row("stream_options with usage", ANSWER, body=usage, stream=True)
    yield Row("transfer parameters from a client", ANSWER, act="forged")
    yield Row("headers reach both engines", ANSWER, act="headers")
    yield Row("a body of 7 MB", ANSWER, act="large")
    yield Row("a request byte by byte", ANSWER, act="byte by byte")
    split = Behaviour(split_bytes=3)
    yield Row("an answer in pieces of 3 bytes", ANSWER, d=split, stream=True)
    yield Row("two requests in one write", ANSWER, act="pipelined")
    yield Row("a smuggled request", Sees("refusal", (400,), shaped=False), act="smuggled")


def _load(counts: tuple[int, ...]) -> Iterator[Row]:
    for count in counts:
        yield Row(
            f"{count:,} streams open at once", ANSWER, Ends(together=count), "many",
            d=Behaviour(), stream=True, count=count, patience_s=120.0,
        )  # fmt: skip
    legs: tuple[Leg, Leg] = ("prefill", "decode")
    for leg in legs:
        yield Row(
            f"{leg} is killed and comes back", Sees("restart"), Ends(leased=8), "restart",
            d=Behaviour(after_first_s=1.0) if leg == "decode" else Behaviour(),
            p=Behaviour(first_byte_s=1.0) if leg == "prefill" else Behaviour(),
            down=leg, stream=True, count=8, patience_s=30.0,
        )  # fmt: skip


def rows(streams: tuple[int, ...] = (256, 1000, 5000)) -> list[Row]:
    """The whole table; `streams` are the numbers of streams of its load rows."""
    return [
        Row("a good request", ANSWER),
        Row("a good stream", ANSWER, stream=True),
        *_shapes(),
        *_statuses(),
        *_broken_engines(),
        *_leaving(),
        *_load(streams),
    ]
