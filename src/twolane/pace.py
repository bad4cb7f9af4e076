"""How long each step of a run should take: as long as it took in the run before.

Rules of this file: pure; it reads the events that pass by and adds what it expects. Before a step
has been seen once, an estimate from the cell's own times stands in, or nothing.
"""

from __future__ import annotations

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
# One CPU core prefills the needle model at this rate; GPUs are faster, and are seen to be in run 2.
PREFILL_TOK_S = 2000.0
_STEPS = ("launch", "gate", "cell", "stop")


class Pace:
    """Annotates events of one campaign with `expect_s`."""

    def __init__(self, cells: tuple[AnyCell, ...]) -> None:
        self._took = {f"cell:{c.id}": estimate_s(c) for c in cells if not _needle(c)}
        self._took |= {f"gate:{c.id}": estimate_s(c) for c in cells if _needle(c)}
        self._took["launch:"] = LAUNCH_S
        self._open: tuple[str, int] | None = None

    def annotate(self, event: Event) -> Event:
        """`event` with what its step should take, where it begins one that is known."""
        if event.step not in (*_STEPS, "done", "failed"):
            return event
        if self._open is not None:
            key, began_ns = self._open
            self._took[key] = (event.t_ns - began_ns) / NS
            self._open = None
        if event.step not in _STEPS:
            return event
        key = f"{event.step}:{event.cell or ''}"
        self._open = (key, event.t_ns)
        return msgspec.structs.replace(event, expect_s=self._took.get(key))


def _needle(cell: AnyCell) -> bool:
    return isinstance(cell, NeedleCell)


def estimate_s(cell: AnyCell) -> float:
    """A first guess at a cell's duration, in seconds."""
    prefill = cell.prompt / PREFILL_TOK_S
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
