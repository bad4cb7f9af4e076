"""The ledger: where one request's time went, as the proxy saw it.

Rules of this file: stamps are taken by those who act and collected here; the engines' own times
are read from P's answer and from the tail of D's, which is never decoded for anything else. One
line a request goes to the ledger file, and one SSE comment to the client that asked for it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from twolane import clock
from twolane.proxy.opening import shows_choice
from twolane.proxy.splice import without_framing
from twolane.records import UNREADABLE, EngineTimes, Ledger

COMMENT = b": twolane-ledger "
REQUEST_HEADER = b"x-twolane-ledger"
_TAIL_READS = 16  # the usage event is the last but one; engines write it in one or two pieces


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the ledger file. `outcome` is `done`, `client gone`, or what went wrong."""

    id: str
    path: str
    status: int
    outcome: str
    prompt_bytes: int
    ledger: Ledger
    alone: str | None = None  # why a request went through one engine, `held` and the like
    believed_tokens: int | None = None  # of its prompt, that D should have held


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _PromptDetails | None = None


class _Metrics(msgspec.Struct):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None


class EngineAnswer(msgspec.Struct):
    """The parts of an answer that are read; the rest is skipped undecoded."""

    choices: list[msgspec.Raw] = []
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")
    usage: _Usage | None = None
    metrics: _Metrics | None = None

    @property
    def has_choice(self) -> bool:
        return shows_choice(self.choices)


class _Choice(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"null")


class _Told(_Choice):
    """A chat's answer tells the prompt's ids at its top, a completion's in its choices."""

    choices: list[_Choice] = []


_decode = msgspec.json.Decoder(EngineAnswer).decode


def prompt_ids(raw: bytes) -> bytes | None:
    """The prompt's token ids as JSON from P's answer; None where it does not tell them."""
    try:
        told = msgspec.json.decode(raw, type=_Told)
    except UNREADABLE:
        return None
    given = (bytes(one.prompt_token_ids) for one in (told, *told.choices))
    return next((ids for ids in given if ids.startswith(b"[")), None)


def read_answer(raw: bytes) -> EngineAnswer | None:
    """An engine's JSON answer, or None where it is not one."""
    try:
        return _decode(raw)
    except UNREADABLE:
        return None


def times_of(answer: EngineAnswer | None) -> EngineTimes | None:
    """The engine's own times (`--enable-per-request-metrics`), and how much of the prompt it had
    cached (`--enable-prompt-tokens-details`); None where it reports neither."""
    if answer is None:
        return None
    details = answer.usage.prompt_tokens_details if answer.usage is not None else None
    if answer.metrics is None and details is None:
        return None
    times = answer.metrics or _Metrics()
    return EngineTimes(
        queue_ms=times.queue_time_ms,
        first_token_ms=times.time_to_first_token_ms,
        cached_tokens=details.cached_tokens if details is not None else None,
    )


class Tail:
    """The last few reads of a stream, for the usage event at its end."""

    def __init__(self) -> None:
        self._reads: deque[tuple[bytes, bool]] = deque(maxlen=_TAIL_READS)

    def add(self, data: bytes, *, framed: bool = False) -> None:
        """`framed`: whole chunks of HTTP with their framing."""
        self._reads.append((data, framed))

    def times(self) -> EngineTimes | None:
        reads = (without_framing(data) if framed else data for data, framed in self._reads)
        end = b"".join(reads)
        for event in reversed(end.split(b"\n\n")) if _tells_times(end) else ():
            if event.startswith(b"data:") and _tells_times(event):
                return times_of(read_answer(event[5:]))
        return None


def _tells_times(data: bytes) -> bool:
    return b'"metrics"' in data or b'"cached_tokens"' in data


class Account:
    """One request's ledger while it runs."""

    def __init__(self, received_ns: int, boot: str) -> None:
        self.received_ns = received_ns
        self.boot = boot
        self.p_engine: str | None = None
        self.p_dispatch_ns: int | None = None
        self.p_response_ns: int | None = None
        self.p_times: EngineTimes | None = None
        self.d_engine: str | None = None
        self.d_dispatch_ns: int | None = None
        self.d_first_ns: int | None = None
        self.d_times: EngineTimes | None = None
        self.end_ns: int | None = None
        self.handoff: str | None = None
        self.remote_tokens: int | None = None

    def forget_prefill(self) -> None:
        """One engine serves it after all."""
        self.p_engine = self.p_dispatch_ns = self.p_response_ns = self.p_times = None

    def record(self) -> Ledger:
        """The account as it stands now."""
        return Ledger(
            path="split" if self.p_engine is not None else "direct",
            boot=self.boot,
            received_ns=self.received_ns,
            p_engine=self.p_engine,
            p_dispatch_ns=self.p_dispatch_ns,
            p_response_ns=self.p_response_ns,
            p_times=self.p_times,
            d_engine=self.d_engine,
            d_dispatch_ns=self.d_dispatch_ns,
            d_first_ns=self.d_first_ns,
            d_times=self.d_times,
            end_ns=self.end_ns or clock.now_ns(),
            handoff=self.handoff,
            remote_tokens=self.remote_tokens,
        )


def comment(ledger: Ledger) -> bytes:
    """The ledger as an SSE comment, which a client that did not ask for it would skip."""
    return COMMENT + msgspec.json.encode(ledger) + b"\n\n"
