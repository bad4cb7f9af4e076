"""What the driver and its worker processes say to each other, one JSON line each.

Rules of this file: data only. Orders go to a worker's stdin, reports come from its stdout. A
request is named by its key, unique within one drive; times are monotonic nanoseconds, which all
processes of a host share, so that an order can name the moment of its execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from twolane.records import GridCell, Request, Role

PATIENCE_S: Final = 1200.0
"""How long a request may stay silent before it is given up: twice the longest first token of
a million-token prompt that was measured on one GPU (551 s)."""


Form = Literal["text", "ids"]
"""What prompts are made of: text, where a byte is a token, or token ids."""


@dataclass(frozen=True, slots=True)
class Words:
    """What chat prompts of an exact length are made of: a text of so many words of `each`, joined
    by `joint`, has as many tokens, and its chat template adds `frame`."""

    each: tuple[str, ...]
    joint: str
    frame: int


@dataclass(frozen=True, slots=True)
class Target:
    """Where load goes: one OpenAI-compatible server.

    `context` is the most tokens a prompt and its answer may have together, where it is known.
    Of a chat `words` are known where its server can be asked how it tokenises.
    """

    host: str
    port: int
    model: str
    endpoint: Literal["completions", "chat"] = "completions"
    context: int | None = None
    patience_s: float = PATIENCE_S
    form: Form = "text"
    words: Words | None = None


class Expected(msgspec.Struct, frozen=True):
    """The planted fact that an answer must begin with; `others` are wrong in a known way."""

    key: str
    answer: str
    others: tuple[str, ...]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request to make.

    The prompt is `text`, or else `prompt` tokens generated from `salt` and the seed; asks whose
    `blocks` begin alike share as many blocks of `config.traces.BLOCK` tokens. A null ask
    sends nothing: it sleeps for `sleep_s` in the aggressor's place.
    """

    key: int
    id: str
    cell: str
    role: Role
    index: int
    prompt: int
    output: int
    shot: int = 0
    user: int = 0
    salt: int = 0
    history_prompt: int = 0
    history: int = 0
    expected: Expected | None = None
    text: str | None = None
    ids: list[int] | None = None  # in the place of `text`
    blocks: tuple[int, ...] = ()
    keep_text: bool = False
    keep_ids: bool = False  # of the answer's tokens
    ignore_eos: bool = True
    sleep_s: float = 0.0


# -------------------------------------------------------------------------------------- orders


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag="begin"):
    """The first order: who the worker is and where its load goes."""

    worker: int
    target: Target
    seed: int


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Make the bodies, so that nothing is serialised once the clock runs. Answered by Ready."""

    asks: list[Ask]


class Fire(msgspec.Struct, frozen=True, kw_only=True, tag="fire"):
    """Send prepared requests at `at_ns`, all of them at once."""

    keys: list[int]
    at_ns: int


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End these streams from the client's side. Each is answered by its Done."""

    keys: list[int]


class ClosedLoop(msgspec.Struct, frozen=True, kw_only=True, tag="closed_loop"):
    """Run one of `parts` of a grid cell: users number `part`, `part` + `parts`, ... of it.

    Answered by Warm, and after Count or Enough by LoopEnded.
    """

    cell: GridCell
    id_prefix: str
    part: int = 0
    parts: int = 1


class Count(msgspec.Struct, frozen=True, kw_only=True, tag="count"):
    """Every part is warm: from `at_ns` on, requests count."""

    at_ns: int


class Enough(msgspec.Struct, frozen=True, kw_only=True, tag="enough"):
    """Issue no more requests; those in flight end as they do."""


Order = Begin | Prepare | Fire | Stop | ClosedLoop | Count | Enough

# ------------------------------------------------------------------------------------- reports


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Prepared; with no keys, the worker has begun."""

    keys: list[int] = []


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """A request left: its record so far, in case the worker does not live to finish it."""

    key: int
    request: Request


class Warm(msgspec.Struct, frozen=True, kw_only=True, tag="warm"):
    """Every user of the worker's part has had an answer."""


class First(msgspec.Struct, frozen=True, kw_only=True, tag="first"):
    """A request's first token event."""

    key: int
    first_ns: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    key: int
    request: Request


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag="rates"):
    """Tokens a second over the last second: of every victim, or of a whole loop, which also
    says its phase and how many of `total` requests are done."""

    rates: list[float]
    done: int = 0
    total: int | None = None
    phase: str = ""


class LoopEnded(msgspec.Struct, frozen=True, kw_only=True, tag="loop_ended"):
    """`window_ns` is None if no request was issued in one; `problem` says why it ended early."""

    window_ns: tuple[int, int] | None
    problem: str | None = None


class Lag(msgspec.Struct, frozen=True, kw_only=True, tag="lag"):
    """How late the worker's own timers were: its 99th percentile and its worst, ms."""

    p99_ms: float
    worst_ms: float


Report = Ready | Sent | Warm | First | Done | Rates | LoopEnded | Lag
