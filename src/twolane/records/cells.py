"""What is driven through an arm: one kind of cell each."""

from __future__ import annotations

import msgspec


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """One workload at one setting. `id` is its canonical text, e.g. `c64 in1024 out1024 n256`."""

    id: str


class GridCell(Cell, frozen=True, kw_only=True, tag="grid"):
    """Closed loop: `users` requests in flight, each `prompt` tokens in and `output` out.

    Bounded by `requests` issued in the window, or by `seconds` of window; exactly one is set.
    """

    users: int
    prompt: int
    output: int
    requests: int | None = None
    seconds: float | None = None


class InterferenceCell(Cell, frozen=True, kw_only=True, tag="interference"):
    """`victims` streams already decode, then one aggressor of `prompt` tokens arrives.

    Three phases: quiet, hit (aggressor's send to its first token), recovery. One null shot
    (the aggressor replaced by a sleep of `null_s`) comes first, then `shots` real ones.
    """

    victims: int
    prompt: int
    victim_prompt: int = 64
    aggressor_output: int = 16
    quiet_s: float = 4.0
    recovery_s: float = 4.0
    null_s: float = 4.0
    shots: int = 1


class NeedleCell(Cell, frozen=True, kw_only=True, tag="needle"):
    """The gate: prompts of exactly `prompt` tokens, one for each planted fact."""

    prompt: int
    depths: tuple[float, ...] = (0.05, 0.5, 0.95)


class FreshCell(Cell, frozen=True, kw_only=True, tag="fresh"):
    """`requests` new prompts of `prompt` tokens, one after the other, `output` tokens each."""

    prompt: int
    output: int = 64
    requests: int = 1


class RampCell(Cell, frozen=True, kw_only=True, tag="ramp"):
    """Conversations that grow in `turns` equal steps to a prompt of `prompt` tokens.

    Every turn sends the whole history and asks for a planted fact. User n + 1 begins when user n
    has had the answer to a turn of `after` tokens or more.
    """

    prompt: int
    users: int = 1
    turns: int = 8
    after: int = 0
    output: int = 64


class MixCell(Cell, frozen=True, kw_only=True, tag="mix"):
    """Open loop: Poisson arrivals at `rate` requests a second over `seconds` of window.

    A `share` of them has `prompt` tokens, the others `short`; all of them get `output` tokens.
    """

    prompt: int
    share: float
    rate: float
    short: int = 512
    output: int = 64
    seconds: float = 60.0


class TraceCell(Cell, frozen=True, kw_only=True, tag="trace"):
    """The first `requests` lines of a file, sent when it says, `speed` times as fast.

    With a `rate` they are sent as Poisson arrivals instead, so many a second.
    """

    path: str
    prompt: int
    requests: int
    speed: float = 1.0
    rate: float | None = None


AnyCell = GridCell | InterferenceCell | NeedleCell | FreshCell | RampCell | MixCell | TraceCell
"""`prompt` is in each of them the longest prompt, in tokens."""
