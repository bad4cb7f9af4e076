"""Requests out of a file, sent when it says: an open loop with somebody's own workload."""

from __future__ import annotations

from typing import Final

from twolane import arrivals
from twolane.clock import MS
from twolane.config.traces import TraceLine, read_trace
from twolane.load.crew import Crew
from twolane.load.mix import Due, send_all
from twolane.load.orders import Ask
from twolane.load.workloads import OTHERS, VICTIMS, Outcome, Say
from twolane.records import TraceCell

LONG: Final = 8192
"""Tokens from which on a prompt is sent by the worker that reads no short one's stream."""


async def run(cell: TraceCell, crew: Crew, prefix: str, say: Say, *, seed: int) -> Outcome:
    """Every line of the trace; the window is from the first send to the last."""
    planned = schedule(cell, prefix, seed)
    return await send_all(planned, (0, planned[-1].at_ns), crew, say)


def schedule(cell: TraceCell, prefix: str, seed: int) -> list[Due]:
    """Every request in the order of its moment. Raises QuestionError if the file has changed."""
    lines = read_trace(cell.path, cell.requests)
    lines.sort(key=lambda line: line.timestamp or 0.0)
    moments = _moments(cell, lines, seed)
    return [
        Due(_ask(cell, prefix, key, line), at_ns, OTHERS if line.tokens >= LONG else VICTIMS)
        for key, (line, at_ns) in enumerate(zip(lines, moments, strict=True))
    ]


def _moments(cell: TraceCell, lines: list[TraceLine], seed: int) -> list[int]:
    if cell.rate is None:
        first = lines[0].timestamp or 0.0
        return [round(((one.timestamp or 0.0) - first) / cell.speed * MS) for one in lines]
    seconds = 2.0 * len(lines) / cell.rate + 10.0
    return arrivals.due_ns("poisson", cell.rate, seconds, seed=seed)[: len(lines)]


def _ask(cell: TraceCell, prefix: str, key: int, line: TraceLine) -> Ask:
    own = line.prompt is not None
    return Ask(
        key=key,
        id=f"{prefix}-{key}",
        cell=cell.id,
        role="own" if own else "trace",
        index=key,
        prompt=line.tokens,
        output=line.answer,
        text=line.prompt,
        blocks=line.hash_ids,
        keep_text=own,
        ignore_eos=not own,
    )
