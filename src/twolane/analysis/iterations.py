"""An engine's own iterations, where its log tells them, and when they ran on the run's clock.

With `--enable-logging-iteration-details` vLLM (0.26 and later) logs each step of the engine core:
how many tokens of prompts and of answers it held and how long it took. Its stamps are whole
seconds, so steps are placed by what they gave: a reader's stream on that engine gets one event a
step, so its gaps are the steps' times and find their place in the log; a prefill's steps hold just
its prompt's tokens and end with its answer.

Rules of this file: a place that does not fit is no place. Arrival is a little after the step's
end (output processing, HTTP), which is not taken off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from twolane.analysis.measures import event_times_ns
from twolane.clock import MS
from twolane.records import Request

FLAG: Final = "--enable-logging-iteration-details"
AROUND: Final = 96
"""Gaps around a stream's longest that must fit: enough that chance does not."""
FEWEST: Final = 8
"""Gaps that a stream needs, so that its place is no guess."""
MISFIT: Final = 0.4
"""Mean |log(gap / step)| up to which a place is believed. On two cores that other programs held
most of the time the right place had 0.23 to 0.36 and the next best 0.38 to 0.60."""

STRETCH: Final = 1 << 14
SHORTEST_NS: Final = MS // 10
"""No engine makes a step in less. On an H200 most of a small model's were 0.03 to 0.07 ms."""
WAITED_SHARE: Final = 0.01

_LINE = re.compile(
    rb"Iteration\((\d+)\): \d+ context requests, (\d+) context tokens, "
    rb"\d+ generation requests, (\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One step of an engine core, in the order of its log."""

    index: int
    context_tokens: int
    generation_tokens: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class Placed:
    """An iteration on the run's clock."""

    start_ns: int
    end_ns: int
    iteration: Iteration


def read(log: Path) -> Sequence[Iteration]:
    """The iterations that a log tells; empty where it tells none or cannot be read."""
    try:
        state = log.stat()
        return _read(log, state.st_size, state.st_mtime_ns)
    except OSError:
        return ()


@lru_cache(maxsize=8)  # one report asks for the same log once a shot
def _read(log: Path, _size: int, _changed_ns: int) -> Sequence[Iteration]:
    text = log.read_bytes()
    every = [
        Iteration(int(index), int(context), int(generation), round(float(ms) * MS))
        for index, context, generation, ms in _LINE.findall(text)
    ]
    return tuple(step for step in every if step.elapsed_ns > 0)


def waited(steps: Sequence[Iteration]) -> bool:
    """Whether the log tells what the engine's core waited for its steps, not what they took.

    Where the core overlaps its steps (asynchronous scheduling, the default on GPUs), some results
    are there before it asks.
    """
    return sum(step.elapsed_ns < SHORTEST_NS for step in steps) > WAITED_SHARE * len(steps)


def by_stream(steps: Sequence[Iteration], stream: Request) -> list[Placed]:
    """Where `steps` ran, by the events of a stream that the engine made; empty if none fits."""
    if waited(steps):
        return []
    giving = [i for i, step in enumerate(steps) if step.generation_tokens]
    times = event_times_ns(stream)
    gaps = np.diff(np.asarray(times, dtype=np.float64))
    if len(gaps) < FEWEST or len(giving) < len(gaps):
        return []
    lengths = np.asarray([steps[i].elapsed_ns for i in giving], dtype=np.float64)
    first = _fit(lengths, gaps)
    if first is None:
        return []
    ends = {giving[first + k]: times[k + 1] for k in range(len(gaps))}
    return _filled(steps, ends, giving[first], giving[first + len(gaps) - 1])


def _fit(lengths: np.ndarray, gaps: np.ndarray) -> int | None:
    """Which step made the first gap, judged over the gaps around the longest."""
    middle = int(np.argmax(gaps))
    low = max(0, min(middle - AROUND // 2, len(gaps) - AROUND))
    part = np.log(np.maximum(gaps[low : low + AROUND], 1.0))
    windows = np.lib.stride_tricks.sliding_window_view(np.log(lengths), len(part))
    # A stretch at a time: a million steps and their windows at once would take a gigabyte.
    stretches = (windows[i : i + STRETCH] for i in range(0, len(windows), STRETCH))
    misfit = np.concatenate([np.abs(some - part).mean(axis=1) for some in stretches])
    # Only places where all gaps, and not just those of the window, lie inside the log.
    last = len(lengths) - len(gaps) + low
    misfit[:low] = misfit[last + 1 :] = np.inf
    best = int(np.argmin(misfit))
    return best - low if misfit[best] <= MISFIT else None


def _filled(
    steps: Sequence[Iteration], ends: dict[int, int], first: int, last: int
) -> list[Placed]:
    """Steps from `first` to `last`; one that gave this stream nothing ends where the next began."""
    placed: list[Placed] = []
    begin = ends[last]
    for i in range(last, first - 1, -1):
        end = ends.get(i, begin)
        begin = end - steps[i].elapsed_ns
        placed.append(Placed(begin, end, steps[i]))
    return placed[::-1]


def by_prefill(
    steps: Sequence[Iteration], prompt_tokens: int, took_ns: int, end_ns: int
) -> list[Placed]:
    """Where a lone prompt's steps ran: those that hold its tokens and took about `took_ns`, laid
    end to end before `end_ns`; empty if no such run of steps is in the log."""
    best: tuple[float, int, int] | None = None
    if waited(steps):
        return []
    for start, stop, took in _runs_of(steps, prompt_tokens):
        misfit = abs(took - took_ns) / took_ns if took_ns else 0.0
        if misfit <= MISFIT and (best is None or misfit < best[0]):
            best = (misfit, start, stop)
    if best is None:
        return []
    placed: list[Placed] = []
    for step in reversed(steps[best[1] : best[2]]):
        start_ns = end_ns - step.elapsed_ns
        placed.append(Placed(start_ns, end_ns, step))
        end_ns = start_ns
    return placed[::-1]


def cuts(steps: Sequence[Iteration], tokens: int, beside: int) -> list[tuple[int, ...]]:
    """What each prompt of `tokens` was cut into, in the order of the log.

    The prompt tokens of consecutive steps that held it alone and gave `beside` streams a token.
    """
    return [
        tuple(step.context_tokens for step in steps[start:stop])
        for start, stop in stretches(steps, tokens, beside)
    ]


def stretches(steps: Sequence[Iteration], tokens: int, beside: int) -> list[tuple[int, int]]:
    """First and end of the steps of each prompt of `tokens`, as `cuts`; asks for no time."""
    found: list[tuple[int, int]] = []
    start = held = 0
    for i, step in enumerate([*steps, Iteration(-1, 0, 0, 0)]):
        if step.context_tokens and step.generation_tokens == beside:
            held += step.context_tokens
            continue
        if held == tokens and held:
            found.append((start, i))
        start, held = i + 1, 0
    return found


def _runs_of(steps: Sequence[Iteration], tokens: int) -> Iterable[tuple[int, int, int]]:
    """Stretches of steps, first and end, that hold exactly `tokens` of prompts, and their time."""
    start = held = took = 0
    for stop, step in enumerate(steps, 1):
        held += step.context_tokens
        took += step.elapsed_ns
        while held > tokens or (start < stop and not steps[start].context_tokens):
            held -= steps[start].context_tokens
            took -= steps[start].elapsed_ns
            start += 1
        if held == tokens and step.context_tokens:
            yield start, stop, took
