"""One long prompt as its readers felt it: a gap for each chunk, and the pauses around them.

A prompt of n tokens is cut into chunks of about the token budget c, one an engine step. The step
that takes the prompt from prefix p to p + c also makes each reader's next token, so the reader's
gap is that step's time, and grows with p by attention: gap = o + T_decode + c * (a + b * p).

Rules of this file: the engine's own log says what the prompt was cut into, a reader's tokens say
how long each piece took. A piece belongs to the gap that ends with the token of its step, found by
counting the reader's tokens back from the prompt's first token, which the last step made. Logged
times are not used: an engine that overlaps its steps logs what it waited, not what a step took.

What is no chunk's is kept apart. The *entry* is the longest pause that ends before the first
chunk's token: the engine takes the prompt in. The *exit* is the pause that ends with the prompt's
first token, that of its last chunk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from twolane.analysis.iterations import Iteration, Placed
from twolane.analysis.measures import event_times_ns, token_counts
from twolane.clock import MS
from twolane.records import Request

SKEW_NS: Final = MS // 2
"""A reader's token of a step may be stamped this much after the prompt's. The server writes the
older streams first; 0.1 to 0.5 ms were seen between the two."""
CLEARLY: Final = 2.0
"""How much more time must lie in the gaps one token earlier or later, for these to be the chunks'
own. An engine that overlaps its steps may hand a token over late, when the next step is
under way: that step's time then ends with the token before its own."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a prompt and the longest gap that a reader on its engine had for it.

    `start` and `end` are the prefix before and after it. `edge`: the first or the last chunk.
    """

    start: int
    end: int
    gap_ms: float
    edge: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """One prompt as its readers felt it; `entry_ms` is None where no token came before the first
    chunk's."""

    chunks: tuple[Chunk, ...]
    entry_ms: float | None

    @property
    def first_ms(self) -> float:
        """The pause of the first chunk; that of the only one where there is one."""
        return self.chunks[0].gap_ms

    @property
    def exit_ms(self) -> float:
        return self.chunks[-1].gap_ms


def hit(prompt: Request, readers: Iterable[Request], cut: Sequence[int]) -> Hit | None:
    """What a prompt that was cut into `cut` did to `readers` on its engine; None if no reader was
    streaming all the while, or the prompt had no first token."""
    felt = [one for reader in readers if (one := _felt(prompt, reader, len(cut))) is not None]
    if not felt or not cut:
        return None
    ends = list(accumulate(cut, initial=prompt.cached_tokens or 0))
    gaps, shared = np.array([one.gaps for one in felt]), np.array([one.shared for one in felt])
    # Of a chunk that one reader's client saw together with the edge, the others' gaps are better.
    alone = np.where(shared, -1, gaps).max(axis=0)
    worst = np.where(alone >= 0, alone, gaps.max(axis=0)) / MS
    edges = [bool(column.all()) for column in shared.T]
    chunks = [Chunk(ends[k], ends[k + 1], float(worst[k]), edges[k]) for k in range(len(cut))]
    entries = [one.entry / MS for one in felt if one.entry is not None]
    return Hit(tuple(chunks), max(entries, default=None))


@dataclass(frozen=True, slots=True)
class _Felt:
    """One reader's gap in ns for each chunk, whether it is the first's or the last's too, and the
    longest before them."""

    gaps: np.ndarray
    shared: np.ndarray
    entry: int | None


def _felt(prompt: Request, reader: Request, count: int) -> _Felt | None:
    aligned = _aligned(prompt, reader, count)
    if aligned is None:
        return None
    times, gaps, events, last = aligned
    mine = events[last - count + 1 : last + 1]
    entry = [int(gaps[i]) for i in range(1, mine[0]) if times[i] > prompt.send_ns]
    shared = (mine == mine[0]) | (mine == mine[-1])
    return _Felt(gaps[mine], shared, max(entry, default=None))


_Aligned = tuple[list[int], np.ndarray, np.ndarray, int]
"""A reader's events, the gap that each ended, the event of each token, and the token that the
prompt's last chunk made."""


def _aligned(prompt: Request, reader: Request, count: int) -> _Aligned | None:
    """None where the reader was not streaming through all of the prompt's `count` chunks."""
    if not (count and _sound(prompt) and _sound(reader) and reader.gaps_ns):
        return None
    times, tokens = event_times_ns(reader), token_counts(reader)
    last = _last(prompt, times, tokens)
    if last is None:
        return None
    events = np.repeat(np.arange(len(times)), tokens)
    gaps = np.diff(np.asarray(times), prepend=times[0])
    last = _shifted((gaps / np.asarray(tokens))[events], last, count)
    if last - count + 1 < tokens[0] or last >= len(events):  # the first event ended no gap
        return None
    return times, gaps, events, last


def _sound(request: Request) -> bool:
    """Whether it has events, each with its tokens: files may be damaged."""
    tokens = token_counts(request)
    return bool(tokens) and len(tokens) == len(request.gaps_ns) + 1 and min(tokens) > 0


def placed(
    steps: Sequence[Iteration], stretch: tuple[int, int], prompt: Request, reader: Request
) -> list[Placed]:
    """Where an engine's steps ran while it made `reader`, by counting from a prompt's `stretch`.

    Each step that gives tokens made one of the reader's; it ends with that token's event and begins
    where the one before ended. Steps whose tokens came in one event share its gap evenly.
    """
    aligned = _aligned(prompt, reader, stretch[1] - stretch[0])
    if aligned is None:
        return []
    times, _, events, last = aligned
    giving = [i for i, step in enumerate(steps) if step.generation_tokens]
    offset = bisect_right(giving, stretch[1] - 1) - 1 - last
    first = token_counts(reader)[0]
    at = np.interp(np.arange(len(events)), _ends(events), np.asarray(times, dtype=np.float64))
    tokens = range(max(first, -offset), min(len(events), len(giving) - offset))
    return [
        Placed(round(at[token - 1]), round(at[token]), steps[giving[token + offset]])
        for token in tokens
    ]


def _ends(events: np.ndarray) -> np.ndarray:
    """The last token of each event."""
    return np.flatnonzero(np.diff(events, append=events[-1] + 1))


def _last(prompt: Request, times: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Which of a reader's tokens the prompt's last chunk made.

    From then on every step makes a token of both, so a reader is ahead by always the same number,
    however the tokens are bundled into events: the most common one, asked at each of the answer's
    events.
    """
    mine, theirs = list(accumulate(token_counts(prompt))), list(accumulate(tokens))
    answered = event_times_ns(prompt)
    ahead = []
    for at in answered:
        seen = bisect_right(times, at + SKEW_NS)
        done = bisect_right(answered, at + SKEW_NS)
        if 0 < seen < len(times) or at == answered[0]:
            ahead.append((theirs[seen - 1] if seen else 0) - mine[done - 1])
    return Counter(ahead).most_common(1)[0][0] if ahead else None


def _shifted(shared: np.ndarray, last: int, count: int) -> int:
    """`last`, or its neighbour if clearly more time lies in the `count` gaps that end there."""

    def held(end: int) -> float:
        inside = count <= end < len(shared)
        return float(shared[end - count + 1 : end + 1].sum()) if inside else 0.0

    best = max((last - 1, last + 1), key=held)
    return best if held(best) > CLEARLY * held(last) else last


Cuts = Callable[[str, int, int], Sequence[tuple[int, ...]]]
"""What an engine's log says prompts were cut into: engine, tokens, streams beside."""


def hits_of(
    requests: Iterable[Request], engine_of: Callable[[Request], str], cuts: Cuts
) -> list[Hit]:
    """The hits of one interference cell, shot by shot.

    The i-th shot's prompt is the i-th in the log with as many tokens beside as many streams; where
    the log has fewer of them than there were shots, nobody can say whose they are.
    """
    shots: dict[int, list[Request]] = {}
    for request in requests:
        shots.setdefault(request.shot, []).append(request)
    asked: dict[tuple[str, int, int], list[tuple[Request, list[Request]]]] = {}
    for _, shot in sorted(shots.items()):
        for prompt in shot:
            if prompt.role != "aggressor" or prompt.error is not None:
                continue
            engine = engine_of(prompt)
            beside = [r for r in shot if r.role == "victim" and engine_of(r) == engine]
            tokens = (prompt.prompt_tokens or prompt.prompt_asked) - (prompt.cached_tokens or 0)
            asked.setdefault((engine, tokens, len(beside)), []).append((prompt, beside))
    found = []
    for key, pairs in asked.items():
        told = cuts(*key)
        if len(told) >= len(pairs):
            placed = zip(pairs, told, strict=False)
            found += [hit(prompt, beside, cut) for (prompt, beside), cut in placed]
    return [one for one in found if one is not None]
