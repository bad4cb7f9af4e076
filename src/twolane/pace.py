"""How long each step of a run should take: as long as it took the last time.

Rules of this file: pure; it reads the events that pass by and adds what it expects. Before a step
has been seen once, an estimate from the cell's own times stands in, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from twolane.clock import NS
from twolane.records import (
    AnyCell,
    Event,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    TraceCell,
)

_STEPS = ("launch", "gate", "cell", "stop")


@dataclass(frozen=True)
class Span:
    """Seconds: what a step should take, and between which two it should lie."""

    low: float
    expect: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.expect + other.expect, self.high + other.high)


NOTHING = Span(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Speed:
    """How fast a host is thought to be, until it has been seen.

    `prefill_tok_s` is one engine's; `step_s` is one decode iteration; `seen` are rates that were
    measured, by the prompt's length.
    """

    prefill_tok_s: float
    launch_s: float
    step_s: float
    seen: tuple[tuple[int, float], ...] = ()

    def prefill_s(self, tokens: int, prompt: int) -> float:
        """Seconds for `tokens` in prompts of about `prompt`, by the rate of the nearest length."""
        nearest = min(self.seen, key=lambda one: abs(math.log(one[0] / prompt)), default=None)
        return tokens / (self.prefill_tok_s if nearest is None else nearest[1])

    def taught(self, took: Iterable[tuple[AnyCell, float]]) -> Speed:
        """The same with the rates that follow from what cells took, in seconds."""
        seen = [one for cell, s in took if (one := _rate(cell, s, self.step_s)) is not None]
        return replace(self, seen=(*self.seen, *seen))


# Fifteen runs on two cores of a cloud host: engines were up after 25 to 30 s, and read 2,950 tokens
# of the needle model a second (docs/results/cpu-budget-sweep).
CPU = Speed(prefill_tok_s=2900.0, launch_s=30.0, step_s=0.005)
# Forty runs on H200s: up after 30 to 88 s, with compiled graphs; an 8B model of 64 streams makes a
# step in some 10 ms. How fast a prompt is read depends on the model.
GPU = Speed(prefill_tok_s=11_000.0, launch_s=60.0, step_s=0.010)

# Greedy probes are short; engines get at most 6 s to stop, and most need one.
_GREEDY = Span(0.8, 2.0, 6.0)
_STOP = Span(0.4, 1.0, 6.0)
# How far a first guess may be off: launches by the half, work by as much as the CPU sweep's and the
# H200s' cells were, of which all but two lay within 1.7 times.
_LAUNCH_OFF = 1.5
_WORK_OFF = 1.7
# Fewer than three measurements of a step have not seen how it varies.
_FEW, _FEW_OFF = 3, 1.2


class Pace:
    """Annotates events of one campaign with `expect_s`; forecasts its runs.

    A step takes what it took the last time in the same arm, else in any other. `before` are the
    events of an earlier campaign of the same cells, if there was one.
    """

    def __init__(
        self,
        cells: tuple[AnyCell, ...],
        speed: Speed = CPU,
        before: Iterable[Event] = (),
    ) -> None:
        self._guessed = {_key(cell): guess(cell, speed) for cell in cells}
        self._guessed["launch:"] = Span(
            speed.launch_s / _LAUNCH_OFF, speed.launch_s, speed.launch_s * _LAUNCH_OFF
        )
        self._took: dict[str, list[float]] = {}
        self._took_in: dict[tuple[str, str], list[float]] = {}
        self._open: tuple[str, str, int] | None = None
        # What the step before a stop took: true if the run comes to its end, else it was cut.
        self._unsure: tuple[str, str, float] | None = None
        self.seen = 0  # runs that came to their end
        self.learn(before)

    @property
    def took(self) -> Mapping[str, list[float]]:
        """What was seen of each step, e.g. `cell:<id>`, in seconds."""
        return self._took

    def learn(self, before: Iterable[Event]) -> None:
        """Take in what an earlier campaign took."""
        for event in before:
            self.annotate(event)

    def annotate(self, event: Event) -> Event:
        """`event` with what its step should take, where it begins one that is known."""
        if event.step == "begin":
            self._open = self._unsure = None  # whoever was in a step then is gone
        if event.step not in (*_STEPS, "done", "failed"):
            return event
        self._close(event)
        if event.step not in _STEPS:
            self._end(event)
            return event
        key = f"{event.step}:{event.cell or ''}"
        self._open = (event.arm or "", key, event.t_ns)
        return msgspec.structs.replace(event, expect_s=self.expect_s(event.arm or "", key))

    def _close(self, event: Event) -> None:
        if self._open is None:
            return
        arm, key, began_ns = self._open
        self._open = None
        # A failed step was cut short, and a step from before a reboot has another clock.
        if event.step == "failed" or event.t_ns < began_ns or (event.arm or "") != arm:
            return
        took = (event.t_ns - began_ns) / NS
        if event.step == "stop":
            self._unsure = arm, key, took
        else:
            self._learn(arm, key, took)

    def _end(self, event: Event) -> None:
        """A run came to its end, or failed: a stop before the time cuts the step before it."""
        if event.step == "done":
            self.seen += 1
            if self._unsure is not None:
                self._learn(*self._unsure)
        self._unsure = None

    def _learn(self, arm: str, key: str, took: float) -> None:
        self._took.setdefault(key, []).append(took)
        self._took_in.setdefault((arm, key), []).append(took)

    def span_s(self, arm: str, key: str) -> Span | None:
        """How long the step `key`, e.g. `cell:<id>`, should take in `arm`; None if unknown."""
        took = self._took_in.get((arm, key)) or self._took.get(key)
        if not took:
            return self._guessed.get(key)
        off = _FEW_OFF if len(took) < _FEW else 1.0
        return Span(min(took) / off, took[-1], max(took) * off)

    def expect_s(self, arm: str, key: str) -> float | None:
        """Seconds that the step should take; None if unknown."""
        span = self.span_s(arm, key)
        return None if span is None else span.expect

    def run_span_s(self, arm: str, gates: Iterable[AnyCell], cells: Iterable[AnyCell]) -> Span:
        """How long a whole run of `arm` should take."""
        keys = ["launch:", *map(_key, (*gates, *cells))]
        spans = [self.span_s(arm, key) or NOTHING for key in keys]
        greedy = self.span_s(arm, "gate:greedy") or _GREEDY
        return sum(spans, greedy + (self.span_s(arm, "stop:") or _STOP))

    def run_s(self, arm: str, gates: Iterable[AnyCell], cells: Iterable[AnyCell]) -> float:
        """Seconds that a whole run of `arm` should take."""
        return self.run_span_s(arm, gates, cells).expect


def _key(cell: AnyCell) -> str:
    return f"{'gate' if isinstance(cell, NeedleCell) else 'cell'}:{cell.id}"


# ------------------------------------------------------------------------------- first guesses


def guess(cell: AnyCell, speed: Speed = CPU) -> Span:
    """A first guess at a cell's duration: its own times are sure, the engines' work is not."""
    fixed, tokens, steps = _parts(cell)
    work = speed.prefill_s(tokens, cell.prompt) + steps * speed.step_s
    return Span(fixed + work / _WORK_OFF, fixed + work, fixed + work * _WORK_OFF)


def _parts(cell: AnyCell) -> tuple[float, int, int]:
    """What a cell takes: seconds of its own, prompt tokens to read, decode iterations one after the
    other."""
    fixed, tokens, steps = 0.0, 0, 0
    match cell:
        case InterferenceCell():
            fixed = (1 + cell.shots) * (cell.quiet_s + cell.recovery_s) + cell.null_s
            tokens = cell.shots * cell.prompt
        case GridCell(seconds=None):
            requests = cell.requests or 0
            tokens = requests * cell.prompt
            steps = math.ceil(requests / cell.users) * cell.output
        case GridCell():
            fixed = cell.seconds or 0.0
        case FreshCell():
            tokens, steps = cell.requests * cell.prompt, cell.requests * cell.output
        case RampCell():
            fixed, tokens = 1.5 * cell.turns, cell.users * cell.prompt
        case MixCell():
            fixed, tokens = 1.2 * cell.seconds, cell.prompt
        case TraceCell():
            fixed = cell.requests / cell.rate if cell.rate else 60.0
        case NeedleCell():
            tokens = len(cell.depths) * cell.prompt
    return fixed, tokens, steps


def _rate(cell: AnyCell, took: float, step_s: float) -> tuple[int, float] | None:
    """Prompt length and tokens a second that follow from what `cell` took, where most of that was
    reading prompts."""
    fixed, tokens, steps = _parts(cell)
    reading = took - fixed - steps * step_s
    if not tokens or reading <= took / 4:
        return None
    return cell.prompt, tokens / reading


def clock_text(seconds: float) -> str:
    """`4.2 s`, `2:41`, `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
