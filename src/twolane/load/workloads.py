"""The choreography of each cell kind, told to a crew.

Rules of this file: a workload decides what happens when, in terms of reports and of absolute
moments; it sends nothing itself. Victims live in worker VICTIMS, everything else in worker
OTHERS, so that writing a long prompt cannot delay the reading of a stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from twolane import clock
from twolane.clock import MS, NS
from twolane.gates import needle
from twolane.load.crew import Crew
from twolane.load.orders import Ask, ClosedLoop, Count, Enough, Expected
from twolane.records import (
    FreshCell,
    GridCell,
    InterferenceCell,
    NeedleCell,
    Request,
    Role,
)

OTHERS: Final = 0
VICTIMS: Final = 1

LEAD_NS: Final = 50 * MS
"""From an order to its moment: far longer than a line takes through a pipe."""

COUNT_LEAD_NS: Final = 5 * MS
"""From an order to count to its moment: several turns of a worker's loop."""

UNKNOWN_CONTEXT: Final = 4096
"""Context assumed where nobody told it: small enough for every model that is still served."""


@dataclass(frozen=True, slots=True)
class Question:
    """A ready-made prompt of `tokens` tokens, and how long its answer may be, in tokens.

    The answer's text is kept, and judged where something is `expected`. `index` is the record's.
    """

    prompt: str
    tokens: int
    output: int
    role: Role = "needle"
    index: int = 0
    expected: Expected | None = None
    ids: list[int] | None = None  # in the place of `prompt`, where the server takes ids

    @property
    def answer(self) -> str:
        return self.expected.answer if self.expected is not None else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`window_ns` where throughput may be taken; `problem` if the cell ended early, and why."""

    window_ns: tuple[int, int] | None = None
    problem: str | None = None


Say = Callable[[str, int | None, int | None], None]
"""Phase, done, total."""


# ---------------------------------------------------------------------------------------- grid


STREAMS_A_WORKER: Final = 512
"""At 50 tokens/s each and some 20 microseconds an event, a worker of 512 streams fills half a
core and still comes back to every stream within a millisecond."""


def grid_workers(cell: GridCell) -> int:
    """How many workers share a grid: no more than there are cores."""
    return min(-(-cell.users // STREAMS_A_WORKER), os.cpu_count() or 1)


async def grid(cell: GridCell, crew: Crew, prefix: str, say: Say) -> Outcome:
    """All users warm, then the window; it ends when the first worker has issued its last."""
    say("warm-up", 0, cell.requests)
    for part in range(crew.size):
        crew.order(part, ClosedLoop(cell=cell, id_prefix=prefix, part=part, parts=crew.size))
    await crew.until(lambda: crew.warm == crew.size or bool(crew.loops))
    at_ns = clock.now_ns() + COUNT_LEAD_NS
    for part in range(crew.size):
        crew.order(part, Enough() if crew.loops else Count(at_ns=at_ns))
    await crew.until(lambda: len(crew.loops) == crew.size or _gave_up(crew))
    if _gave_up(crew):
        for part in range(crew.size):
            crew.order(part, Enough())
        await crew.until(lambda: len(crew.loops) == crew.size)
    problems = [loop.problem for loop in crew.loops if loop.problem]
    return Outcome(_common(crew), problems[0] if problems else None)


def _gave_up(crew: Crew) -> bool:
    return any(loop.problem for loop in crew.loops)


def _common(crew: Crew) -> tuple[int, int] | None:
    """The time in which every worker was in its window."""
    windows = [loop.window_ns for loop in crew.loops if loop.window_ns is not None]
    if len(windows) < crew.size:
        return windows[0] if windows and crew.size == 1 else None
    begin, end = max(w[0] for w in windows), min(w[1] for w in windows)
    return (begin, end) if end > begin else None


# --------------------------------------------------------------------------------- interference


async def interference(
    cell: InterferenceCell, crew: Crew, prefix: str, say: Say, *, context: int | None
) -> Outcome:
    """The null shot, then the real ones. One shot's victims are not the next one's."""
    keys = count()
    begin_ns = clock.now_ns()
    for shot in range(cell.shots + 1):
        problem = await _Shot(cell, crew, prefix, shot=shot, keys=keys, context=context).run(say)
        if problem is not None:
            return Outcome((begin_ns, clock.now_ns()), f"shot {shot}: {problem}")
    return Outcome((begin_ns, clock.now_ns()))


class _Shot:
    """Victims start; quiet; the aggressor is fired (or a sleep); hit; recovery; victims stop."""

    def __init__(
        self,
        cell: InterferenceCell,
        crew: Crew,
        prefix: str,
        *,
        shot: int,
        keys: count[int],
        context: int | None,
    ) -> None:
        self.cell = cell
        self.crew = crew
        self.name = "null shot" if shot == 0 else f"shot {shot} of {cell.shots}"
        self._prefix = prefix
        self._shot = shot
        self._keys = keys
        room = (context or UNKNOWN_CONTEXT) - cell.victim_prompt
        self._victims = [
            self._ask("victim", index, cell.victim_prompt, room) for index in range(cell.victims)
        ]
        self._aggressor = (
            self._ask("null", 0, 0, 0, sleep_s=cell.null_s)
            if shot == 0
            else self._ask("aggressor", 0, cell.prompt, cell.aggressor_output)
        )

    async def run(self, say: Say) -> str | None:
        """Returns what went wrong, if anything did."""
        crew = self.crew
        victims = await crew.prepare(VICTIMS, self._victims)
        (aggressor,) = await crew.prepare(OTHERS, [self._aggressor])
        say(f"{self.name}: quiet", None, None)
        crew.fire(VICTIMS, victims, clock.now_ns() + LEAD_NS)
        problem = await self._watch(victims, aggressor, say)
        crew.stop(VICTIMS, victims)
        await crew.until(lambda: crew.done.keys() >= set(victims))
        return problem

    async def _watch(self, victims: list[int], aggressor: int, say: Say) -> str | None:
        crew = self.crew
        await crew.until(lambda: self._ended(victims) or crew.first.keys() >= set(victims))
        if self._ended(victims):
            return self._why(victims)
        hit_ns = max(crew.first[key] for key in victims) + round(self.cell.quiet_s * NS)
        crew.fire(OTHERS, [aggressor], hit_ns)
        if await crew.until(lambda: self._ended(victims), hit_ns):
            return self._why(victims)
        say(f"{self.name}: hit", None, None)
        await crew.until(lambda: aggressor in crew.first or aggressor in crew.done)
        say(f"{self.name}: recovery", None, None)
        await self._recovered(victims, aggressor)
        return self._why(victims)

    async def _recovered(self, victims: list[int], aggressor: int) -> None:
        """Until the recovery time is over and the aggressor has its whole answer."""
        crew = self.crew
        begun_ns = crew.first.get(aggressor, clock.now_ns())
        await crew.until(lambda: self._ended(victims), begun_ns + round(self.cell.recovery_s * NS))
        await crew.until(lambda: aggressor in crew.done)

    def _ended(self, victims: Sequence[int]) -> bool:
        return any(key in self.crew.done for key in victims)

    def _why(self, victims: Sequence[int]) -> str | None:
        """Why a victim is not streaming any more, though nobody stopped it."""
        for key in victims:
            ended = self.crew.done.get(key)
            if ended is not None:
                return f"victim {ended.index} ended by itself: {_end_of(ended)}"
        return None

    def _ask(
        self, role: Role, index: int, prompt: int, output: int, *, sleep_s: float = 0.0
    ) -> Ask:
        return Ask(
            key=next(self._keys),
            id=f"{self._prefix}-{role}-{self._shot}-{index}",
            cell=self.cell.id,
            role=role,
            index=index,
            shot=self._shot,
            prompt=prompt,
            output=output,
            sleep_s=sleep_s,
        )


def _end_of(request: Request) -> str:
    return request.error or f"{request.output_tokens} tokens, {request.finish_reason}"


# ------------------------------------------------------------------------------------ questions


async def questions(
    crew: Crew, prefix: str, say: Say, *, cell: str, asked: Sequence[Question], at_once: int
) -> Outcome:
    """Send ready-made prompts, `at_once` of them at a time, in order, and keep the answers."""
    asks = [_ask(cell, prefix, key, question) for key, question in enumerate(asked)]
    for begin in range(0, len(asks), at_once):
        say("asking", begin, len(asks))
        batch = await crew.prepare(OTHERS, asks[begin : begin + at_once])
        crew.fire(OTHERS, batch, clock.now_ns())
        await crew.until(lambda keys=set(batch): crew.done.keys() >= keys)  # type: ignore[misc]
    say("asking", len(asks), len(asks))
    return Outcome()


def _ask(cell: str, prefix: str, key: int, question: Question) -> Ask:
    return Ask(
        key=key,
        id=f"{prefix}-{question.role}-{question.index}-{key}",
        cell=cell,
        role=question.role,
        index=question.index,
        prompt=question.tokens,
        output=question.output,
        text=question.prompt,
        ids=question.ids,
        keep_text=True,
        ignore_eos=False,
        expected=question.expected,
    )


def needles(cell: NeedleCell, seed: int) -> list[Question]:
    """The prompts of a needle cell, with what their answers must begin with."""
    prompts = needle.make(cell.prompt, seed, cell.depths)
    return [
        Question(
            p.text,
            tokens=cell.prompt,
            output=needle.ANSWER_TOKENS,
            index=index,
            expected=Expected(p.key, p.answer, p.others),
        )
        for index, p in enumerate(prompts)
    ]


# ---------------------------------------------------------------------------------------- fresh


async def fresh(cell: FreshCell, crew: Crew, prefix: str, say: Say) -> Outcome:
    """New prompts, one after the other; a failed one does not keep the next from its turn."""
    begin_ns = clock.now_ns()
    for index in range(cell.requests):
        say("fresh prompt", index, cell.requests)
        ask = Ask(
            key=index,
            id=f"{prefix}-fresh-{index}",
            cell=cell.id,
            role="fresh",
            index=index,
            prompt=cell.prompt,
            output=cell.output,
        )
        await crew.prepare(OTHERS, [ask])
        crew.fire(OTHERS, [index], clock.now_ns())
        await crew.until(lambda key=index: key in crew.done)  # type: ignore[misc]
    return Outcome((begin_ns, clock.now_ns()))
