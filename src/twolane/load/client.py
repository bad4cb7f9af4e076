"""One streamed answer: socket reads in, `records.Request` out.

Rules of this file: an event is decoded once, into a typed struct, and the only time that counts is
the stamp of the socket read it arrived in. Since that is known, an event need not be read at once:
after the first token what comes is laid by and read in one go, at the end or when there is much of
it, which costs half. An event counts if the server says that it carried tokens; where the server
does not count, an event with text counts as one token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from twolane import clock
from twolane.gates import needle
from twolane.load.orders import Ask
from twolane.records import UNREADABLE, EngineTimes, Ledger, Request
from twolane.wire.sse import SseParser

DONE: Final = b"[DONE]"
STOPPED: Final = "stopped_by_client"
LEDGER_MARK: Final = b"twolane-ledger "
MOST_LAID_BY: Final = 512  # reads of one stream: half a millisecond's work, some 150 KiB
MOST_OF_AN_ERROR: Final = 2000  # bytes of a refusal that are kept: its message, not its page

# ---------------------------------------------------------------------------------- the events


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Metrics(msgspec.Struct, frozen=True):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk).decode
_chunks = msgspec.json.Decoder(list[_Chunk]).decode
_ledger = msgspec.json.Decoder(Ledger).decode


class Stream:
    """Collects one answer; a `wire.http1.ResponseSink`.

    `on_first` hears the stamp of the first token event, `on_done` the finished record, once.
    """

    __slots__ = (
        "_done_mark",
        "_error",
        "_finish_reason",
        "_first_ns",
        "_gaps_ns",
        "_ids",
        "_laid_by",
        "_last_ns",
        "_ledger",
        "_metrics",
        "_on_done",
        "_on_first",
        "_parser",
        "_refusal",
        "_text",
        "_tokens",
        "_usage",
        "_worker",
        "ask",
        "counted",
        "due_ns",
        "send_ns",
        "status",
    )

    def __init__(
        self,
        ask: Ask,
        on_done: Callable[[Request], None],
        on_first: Callable[[int], None] | None = None,
        *,
        worker: int = 0,
        due_ns: int = 0,
    ) -> None:
        self.ask = ask
        self._worker = worker
        self._on_first = on_first
        self._on_done: Callable[[Request], None] | None = on_done
        self._parser = SseParser(self._comment)
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._laid_by: list[tuple[bytes, int]] = []
        self._gaps_ns: list[int] = []
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._ids: list[int] = []
        self._refusal = b""
        self._done_mark = False
        self._error: str | None = None
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None
        self._metrics: _Metrics | None = None
        self._ledger: Ledger | None = None
        self.counted = 0
        """Tokens read so far."""
        self.status = 0
        self.due_ns = due_ns
        self.send_ns = due_ns

    @property
    def last_ns(self) -> int | None:
        """Stamp of what came last, token or not, from the first token on."""
        return self._laid_by[-1][1] if self._laid_by else self._last_ns

    @property
    def received(self) -> int:
        """Tokens so far, taking each event that was not read yet for one like the last."""
        return self.counted + len(self._laid_by) * (self._tokens[-1] if self._tokens else 1)

    # ---------------------------------------------------------------- what the wire calls

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        if self._first_ns is None:
            self._read(data, stamp_ns)
            return
        self._laid_by.append((data, stamp_ns))
        if len(self._laid_by) >= MOST_LAID_BY:
            self._read_all()

    def _read_all(self) -> None:
        laid_by, self._laid_by = self._laid_by, []
        if not laid_by:
            return
        for data, stamp_ns in laid_by[self._read_together(laid_by) :]:
            self._read(data, stamp_ns)

    def _read_together(self, laid_by: list[tuple[bytes, int]]) -> int:
        """Read the first ones that are an event each, decoded as one list, which costs half.

        Returns how many they were.
        """
        payloads: list[bytes] = []
        for data, _ in laid_by:
            payload = self._parser.alone(data)
            if payload is None or payload == DONE:
                break
            payloads.append(payload)
        try:
            # No JSON text spans two of them: a line feed cannot stand inside a string.
            chunks = _chunks(b"[" + b",\n".join(payloads) + b"]")
        except UNREADABLE:
            return 0  # one by one, so that it is known which
        if len(chunks) != len(payloads):
            return 0
        for chunk, (_, stamp_ns) in zip(chunks, laid_by, strict=False):
            self._take(chunk, stamp_ns)
        return len(chunks)

    def _read(self, data: bytes, stamp_ns: int) -> None:
        if self.status != 200:
            self._refusal = (self._refusal + data)[:MOST_OF_AN_ERROR]
            return
        for payload in self._parser.feed(data):
            if payload == DONE:
                self._done_mark = True
            else:
                self._event(payload, stamp_ns)

    def on_end(self, stamp_ns: int) -> None:
        self._read_all()
        self.finish(self._fault(), stamp_ns)

    def on_lost(self, error: Exception | None, stamp_ns: int) -> None:
        self._read_all()
        why = repr(error) if error is not None else "closed by the server"
        self.finish(self._error or f"connection lost after {self.counted} tokens: {why}", stamp_ns)

    # ----------------------------------------------------------------------------- inside

    def _event(self, payload: bytes, stamp_ns: int) -> None:
        try:
            chunk = _chunk(payload)
        except UNREADABLE as error:
            self._error = self._error or f"unreadable event {payload[:80]!r}: {error}"
            return
        self._take(chunk, stamp_ns)

    def _take(self, chunk: _Chunk, stamp_ns: int) -> None:
        usage = chunk.usage
        if usage is not None:
            self._usage = usage
        if chunk.choices:
            choice = chunk.choices[0]
            counted = self.counted if usage is None else usage.completion_tokens
            if usage is None and _carries(choice):
                counted += 1
            if counted > self.counted:
                self._arrived(counted - self.counted, stamp_ns)
            if choice.finish_reason is not None:
                self._finish_reason = choice.finish_reason
            if self.ask.keep_text:
                self._keep(choice)
        if chunk.metrics is not None:
            self._metrics = chunk.metrics
        if chunk.error is not None:
            self._error = self._error or f"error in the stream: {_message(chunk.error)}"

    def _keep(self, choice: _Choice) -> None:
        self._text.append(_text_of(choice))
        if self.ask.keep_ids:
            self._ids += _ids_of(choice)

    def _arrived(self, tokens: int, stamp_ns: int) -> None:
        self.counted += tokens
        self._tokens.append(tokens)
        if self._last_ns is not None:
            self._gaps_ns.append(stamp_ns - self._last_ns)
        else:
            self._first_ns = stamp_ns
            if self._on_first is not None:
                self._on_first(stamp_ns)
        self._last_ns = stamp_ns

    def _comment(self, line: bytes) -> None:
        if line.startswith(LEDGER_MARK):
            try:
                self._ledger = _ledger(line[len(LEDGER_MARK) :])
            except UNREADABLE as error:
                self._error = self._error or f"unreadable ledger {line[:200]!r}: {error}"

    def _fault(self) -> str | None:
        if self.status != 200:
            return f"HTTP {self.status}: {_refusal(self._refusal)}"
        if self._error is not None:
            return self._error
        if not self._done_mark and self._finish_reason is None:
            return f"the stream ended after {self.counted} tokens without saying why"
        return None if self.counted else "the answer held no token"

    # ------------------------------------------------------------------------------- ends

    def stop(self) -> None:
        """The client ended the stream on purpose; what came so far is its record."""
        self._read_all()
        self._finish_reason = STOPPED
        self.finish(None, clock.now_ns())

    def finish(self, error: str | None, stamp_ns: int) -> None:
        """Hand over the record, the first time only."""
        self._read_all()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(self._record(error, stamp_ns))

    def so_far(self) -> Request:
        """The record as it stands, without an end."""
        return self._record(None, None)

    def _record(self, error: str | None, end_ns: int | None) -> Request:
        ask, usage = self.ask, self._usage
        details = usage.prompt_tokens_details if usage else None
        text = "".join(self._text) if ask.keep_text else None
        return Request(
            id=ask.id,
            cell=ask.cell,
            role=ask.role,
            index=ask.index,
            shot=ask.shot,
            user=ask.user,
            worker=self._worker,
            history_prompt=ask.history_prompt,
            history=ask.history,
            needle=_judged(ask, text),
            prompt_asked=ask.prompt,
            output_asked=ask.output,
            send_ns=self.send_ns,
            due_ns=self.due_ns,
            status=self.status,
            first_ns=self._first_ns,
            last_ns=self._last_ns,
            end_ns=end_ns,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=details.cached_tokens if details else None,
            output_tokens=max(self.counted, usage.completion_tokens if usage else 0),
            finish_reason=self._finish_reason,
            error=error,
            engine_times=self._engine_times(),
            ledger=self._ledger,
            text=text,
            answer_ids=self._ids if self.counted == len(self._ids) else [],
            gaps_ns=self._gaps_ns,
            tokens=[] if self.counted == len(self._tokens) else self._tokens,
        )

    def _engine_times(self) -> EngineTimes | None:
        metrics, usage = self._metrics, self._usage
        if metrics is None:
            return None
        details = usage.prompt_tokens_details if usage else None
        return EngineTimes(
            queue_ms=metrics.queue_time_ms,
            first_token_ms=metrics.time_to_first_token_ms,
            cached_tokens=details.cached_tokens if details else None,
        )


def _judged(ask: Ask, text: str | None) -> str | None:
    if ask.expected is None:
        return None
    verdict = needle.score(ask.expected, text or "")
    return verdict.reason or "ok"


def _carries(choice: _Choice) -> bool:
    if choice.text:
        return True
    delta = choice.delta
    return delta is not None and bool(
        delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls
    )


def _text_of(choice: _Choice) -> str:
    if choice.text is not None:
        return choice.text
    return (choice.delta.content or "") if choice.delta is not None else ""


def _ids_of(choice: _Choice) -> list[int]:
    """None where the server tells the tokens in another way, or not at all."""
    told = choice.logprobs.get("tokens") if isinstance(choice.logprobs, dict) else None
    words = told if isinstance(told, list) else []
    return [int(at[1]) for word in words if (at := _TOKEN_ID.fullmatch(str(word)))]


_TOKEN_ID: Final = re.compile(r"token_id:(\d{1,9})")


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _refusal(body: bytes) -> str:
    """What an error answer says, without its JSON where it has some."""
    try:
        told = msgspec.json.decode(body)
    except UNREADABLE:
        return body.decode("utf-8", "replace").strip() or "empty body"
    inner = told.get("error", told) if isinstance(told, dict) else told
    return _message(inner)
