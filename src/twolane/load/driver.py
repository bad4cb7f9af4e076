"""Drive one cell: workers up, workload run, every request recorded, workers gone.

Rules of this file: `drive` and `ask` return whatever happens to a server or to a worker; what
went wrong is in `CellRun.problem` and in the requests. Only a question that cannot be asked
raises.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from twolane import clock
from twolane.errors import AnswerError
from twolane.load import exact, mix, prompts, ramp, trace, words, workloads
from twolane.load.body import PATHS
from twolane.load.crew import Crew, WorkerLostError
from twolane.load.orders import Form, Rates, Target, Words
from twolane.load.workloads import Outcome, Question
from twolane.records import (
    AnyCell,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    Request,
    TraceCell,
)

__all__ = ["CellRun", "Progress", "Question", "Target", "ask", "drive", "form_of", "words_of"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a cell stands. `rates` are tokens/s over the last second: of each victim, or of
    the whole grid as one number."""

    phase: str
    done: int | None = None
    total: int | None = None
    rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CellRun:
    """How driving a cell went; its requests were given to `record`.

    `window_ns` is where throughput and in-flight may be taken. `problem` says why the cell ended
    before its end, in words. `lag_p99_ms` is the worst worker's timer lag, None if none told it.
    """

    started_ns: int
    ended_ns: int
    window_ns: tuple[int, int] | None
    problem: str | None
    lag_p99_ms: float | None


Record = Callable[[Request], None]
Tell = Callable[[Progress], None]
Workload = Callable[[Crew, str, workloads.Say], Awaitable[Outcome]]


async def drive(
    cell: AnyCell,
    target: Target,
    *,
    seed: int,
    record: Record,
    progress: Tell,
    questions: Sequence[Question] = (),
    answered: Sequence[Request] = (),
) -> CellRun:
    """Run one cell against `target`.

    `record` gets each request as it ends, `progress` every change of phase and the rates twice
    a second. A needle cell sends `questions`, or else its own, one after the other. A ramp whose
    first turns were `answered` in an earlier run goes on after them. Raises QuestionError for a
    cell whose prompts cannot be made.
    """
    if isinstance(cell, NeedleCell):
        asked = questions or workloads.needles(cell, seed)
        return await ask(asked, target, cell=cell.id, record=record, progress=progress)
    encode = await _tokeniser(target) if isinstance(cell, RampCell) else None
    work, workers = _choreography(cell, target, seed, answered, encode)
    return await _run(
        work,
        workers=workers,
        cell=cell.id,
        target=target,
        seed=seed,
        record=record,
        progress=progress,
    )


def _choreography(
    cell: GridCell | InterferenceCell | FreshCell | RampCell | MixCell | TraceCell,
    target: Target,
    seed: int,
    answered: Sequence[Request],
    encode: exact.Encode | None,
) -> tuple[Workload, int]:
    """What happens in a cell, and how many workers it needs."""
    match cell:
        case GridCell():
            return partial(workloads.grid, cell), workloads.grid_workers(cell)
        case InterferenceCell():
            return partial(workloads.interference, cell, context=target.context), 2
        case FreshCell():
            return partial(workloads.fresh, cell), 1
        case RampCell():
            ramped = partial(ramp.run, cell, seed=seed, answered=answered, encode=encode)
            return ramped, cell.users
        case MixCell():
            return partial(mix.run, cell, seed=seed), 2
        case TraceCell():
            return partial(trace.run, cell, seed=seed), 2


async def _tokeniser(target: Target) -> exact.Encode | None:
    """The server's own, where prompts are to be token ids and it has one."""
    return await asyncio.to_thread(exact.tokeniser, target) if target.form == "ids" else None


PROBE_BYTES: Final = 64
PROBE_PATIENCE_S: Final = 120.0
"""How long one token may take: a first request that compiles kernels takes about a minute."""


async def form_of(target: Target) -> Form:
    """What prompts this server needs: text if a byte is a token to it, else token ids.

    Found out by asking it for one token; text where it does not tell, or takes no ids (chat).
    Raises AnswerError if that request fails or is not answered, since no other would be.
    """
    seen: list[Request] = []
    patience_s = min(PROBE_PATIENCE_S, target.patience_s)
    probe = Question(prompts.text(PROBE_BYTES, 0), tokens=PROBE_BYTES, output=1, role="probe")
    asked = await ask(
        [probe],
        replace(target, patience_s=patience_s),
        cell="probe",
        record=seen.append,
        progress=lambda _: None,
    )
    error = asked.problem or (seen[0].error if seen else "no record of it")
    if error is not None:
        raise AnswerError(
            f"a request for one token failed: {error}",
            place=f"http://{target.host}:{target.port}{PATHS[target.endpoint]}",
            remedy="see the server's log: is the model loaded, and does it stream completions "
            "without a key?",
        )
    if target.endpoint == "chat":
        return "text"
    return "text" if seen[0].prompt_tokens in (None, PROBE_BYTES) else "ids"


async def words_of(target: Target) -> Words | None:
    """What chat prompts of an exact length can be made of for this server, if that is known.

    Raises AnswerError if its /tokenize cannot be read.
    """
    return await asyncio.to_thread(words.find, target) if target.endpoint == "chat" else None


async def ask(
    questions: Sequence[Question],
    target: Target,
    *,
    cell: str,
    record: Record,
    progress: Tell,
    at_once: int = 1,
) -> CellRun:
    """Send ready-made prompts with temperature 0 and keep the answers' text in the records.

    Where prompts are to be token ids, or words of a chat, needles become as many as they say.
    """

    asked = questions
    if target.form == "ids":
        asked = await asyncio.to_thread(exact.questions, questions, target)
    elif target.words is not None:
        asked = await asyncio.to_thread(words.questions, questions, target)

    async def work(crew: Crew, prefix: str, say: workloads.Say) -> Outcome:
        return await workloads.questions(crew, prefix, say, cell=cell, asked=asked, at_once=at_once)

    return await _run(
        work, workers=1, cell=cell, target=target, seed=0, record=record, progress=progress
    )


async def _run(
    work: Workload,
    *,
    workers: int,
    cell: str,
    target: Target,
    seed: int,
    record: Record,
    progress: Tell,
) -> CellRun:
    started_ns = clock.now_ns()
    teller = _Teller(progress)
    crew = Crew(workers, target, seed, record, teller.rates)
    try:
        async with crew:
            outcome = await work(crew, _prefix(cell, started_ns), teller.say)
    except WorkerLostError as lost:
        outcome = Outcome(problem=str(lost))
        for request in crew.lost(str(lost)):
            record(request)
    return CellRun(
        started_ns=started_ns,
        ended_ns=clock.now_ns(),
        window_ns=outcome.window_ns,
        problem=outcome.problem,
        lag_p99_ms=max((lag.p99_ms for lag in crew.lags), default=None),
    )


class _Teller:
    """Joins phases, which the workload says, and rates, which the workers say."""

    def __init__(self, progress: Tell) -> None:
        self._progress = progress
        self._last = Progress("starting")
        self._parts: dict[int, Rates] = {}

    def say(self, phase: str, done: int | None, total: int | None) -> None:
        self._last = Progress(phase, done, total, self._last.rates)
        self._progress(self._last)

    def rates(self, worker: int, told: Rates) -> None:
        if not told.rates and not told.phase:
            return  # a worker with nothing open
        last = self._last
        if told.phase:
            self._parts[worker] = told
            self._last = self._whole()
        else:
            self._last = Progress(last.phase, last.done, last.total, tuple(told.rates))
        self._progress(self._last)

    def _whole(self) -> Progress:
        """The parts of a grid as one: the earliest phase, everything else added up."""
        parts = list(self._parts.values())
        phases = [part.phase for part in parts]
        phase = next((name for name in ("warm-up", "window") if name in phases), phases[0])
        totals = [part.total for part in parts if part.total is not None]
        return Progress(
            phase,
            sum(part.done for part in parts),
            sum(totals) if totals else None,
            (sum(rate for part in parts for rate in part.rates),),
        )


def _prefix(cell: str, started_ns: int) -> str:
    """Start of the request ids of one drive: unlike those of any other drive of this boot."""
    name = re.sub(r"[^A-Za-z0-9.]+", "_", cell).strip("_")
    return f"{name}-{started_ns // 1000:x}"
