"""How long each step of a run should take: as long as it took the last time.

Rules of this file: pure; it reads the events that pass by and adds what it expects. Before a step
has been seen once, an estimate from the cell's own times stands in, or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

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

# Two engines on two CPU cores; GPU hosts with compiled graphs take about as long.
LAUNCH_S = 60.0
# One CPU core prefills the needle model at this rate, tokens a second.
PREFILL_TOK_S = 2000.0
# Greedy probes are short, and engines get at most 6 s to stop.
_GREEDY_S = 5.0
_STOP_S = 5.0
_STEPS = ("launch", "gate", "cell", "stop")


class Pace:
    """Annotates events of one campaign with `expect_s`; forecasts its runs.

    A step takes what it took the last time in the same arm, else in any other. `before` are the
    events of an earlier campaign of the same cells, if there was one.
    """

    def __init__(
        self,
        cells: tuple[AnyCell, ...],
        prefill_tok_s: float = PREFILL_TOK_S,
        before: Iterable[Event] = (),
    ) -> None:
        self._took: dict[str, float] = {}
        for cell in cells:
            step = "gate" if isinstance(cell, NeedleCell) else "cell"
            self._took[f"{step}:{cell.id}"] = estimate_s(cell, prefill_tok_s)
        self._took["launch:"] = LAUNCH_S
        self._took_in: dict[tuple[str, str], float] = {}
        self._open: tuple[str, str, int] | None = None
        # What the step before a stop took: true if the run comes to its end, else it was cut.
        self._unsure: tuple[str, str, float] | None = None
        self.seen = 0  # runs that came to their end
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
        self._took[key] = self._took_in[arm, key] = took

    def expect_s(self, arm: str, key: str) -> float | None:
        """Seconds that the step `key`, e.g. `cell:<id>`, should take in `arm`; None if unknown."""
        return self._took_in.get((arm, key), self._took.get(key))

    def run_s(self, arm: str, gates: Iterable[AnyCell], cells: Iterable[AnyCell]) -> float:
        """Seconds that a whole run of `arm` should take."""
        keys = ["launch:", *(f"gate:{c.id}" for c in gates), *(f"cell:{c.id}" for c in cells)]
        steps = sum(self.expect_s(arm, key) or 0.0 for key in keys)
        greedy = self.expect_s(arm, "gate:greedy") or _GREEDY_S
        return steps + greedy + (self.expect_s(arm, "stop:") or _STOP_S)


def estimate_s(cell: AnyCell, prefill_tok_s: float = PREFILL_TOK_S) -> float:
    """A first guess at a cell's duration, in seconds."""
    prefill = cell.prompt / prefill_tok_s
    match cell:
        case InterferenceCell():
            shots = (1 + cell.shots) * (cell.quiet_s + cell.recovery_s)
            guess = shots + cell.null_s + cell.shots * prefill
        case GridCell(seconds=None):
            guess = (cell.requests or 0) * prefill + 10.0
        case GridCell():
            guess = cell.seconds or 0.0
        case FreshCell():
            guess = cell.requests * prefill + 5.0
        case RampCell():
            guess = cell.users * prefill + 2.0 * cell.turns
        case MixCell():
            guess = 1.2 * cell.seconds + prefill
        case TraceCell():
            guess = cell.requests / cell.rate if cell.rate else 60.0
        case NeedleCell():
            guess = len(cell.depths) * prefill
    return guess


def clock_text(seconds: float) -> str:
    """`4.2 s`, `2:41`, `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
