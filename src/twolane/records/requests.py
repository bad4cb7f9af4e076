"""One request as the client saw it, and the ledger of its first token."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal[
    "grid",
    "warmup",
    "victim",
    "aggressor",
    "null",
    "needle",
    "greedy",
    "probe",
    "fresh",
    "turn",
    "short",
    "long",
    "trace",
    "own",
]


class EngineTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine's own account of one request, from its `metrics` object, in milliseconds."""

    queue_ms: float | None = None
    first_token_ms: float | None = None  # counts from *scheduled*, not from arrival
    cached_tokens: int | None = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The proxy's account of one request: absolute stamps of its steps and the engines' times.

    `split` went through a prefill and a decode engine, `direct` through one engine. Stamps that
    never happened are absent. `analysis.attribution` turns this and the client's own stamps into
    parts that sum to the TTFT.
    """

    path: Literal["split", "direct"]
    boot: str  # clock.boot_id(): subtract from a client's stamp only if it is the same
    received_ns: int
    p_engine: str | None = None
    p_dispatch_ns: int | None = None
    p_response_ns: int | None = None
    p_times: EngineTimes | None = None
    d_engine: str | None = None
    d_dispatch_ns: int | None = None
    d_first_ns: int | None = None  # first body bytes from the answering engine
    d_times: EngineTimes | None = None
    end_ns: int | None = None
    handoff: str | None = None  # final state: admitted, released, expired
    remote_tokens: int | None = None  # prompt tokens whose KV the handoff covers


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request as the client saw it.

    `gaps_ns[i]` is the time from token event i to i+1, so event 0 arrived at `first_ns` and
    sum(gaps_ns) = last_ns - first_ns. `tokens[i]` is the number of tokens event i carried,
    as counted by the server; an empty list means one each. `status` 0 means that no HTTP status
    arrived. A request failed if and only if `error` is set. `shot` numbers the repetitions of an
    interference cell from 0, the null shot. In a conversation `index` is the turn and `user` its
    speaker; the first `history_prompt` tokens of its prompt are those of the turn before, the
    first `history` tokens also hold that turn's answer: so much an engine may have cached.
    `needle` judges an answer that was to begin with a planted fact: "ok", or how it missed.
    `answer_ids` are the answer's tokens, where they were asked for and every one was told.
    """

    id: str
    cell: str
    role: Role
    index: int
    send_ns: int
    due_ns: int
    shot: int = 0
    user: int = 0
    worker: int = 0
    history_prompt: int = 0
    history: int = 0
    needle: str | None = None
    prompt_asked: int = 0
    output_asked: int = 0
    status: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    end_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    finish_reason: str | None = None  # "stopped_by_client" where the cell ended the stream
    error: str | None = None
    engine_times: EngineTimes | None = None
    ledger: Ledger | None = None
    text: str | None = None
    answer_ids: list[int] = []
    # Last, so that a reader that needs only the fields above skips the long part cheaply.
    gaps_ns: list[int] = []
    tokens: list[int] = []
