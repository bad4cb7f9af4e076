"""READ THIS FIRST: a campaign is runs; a run is place, check, launch, gate, drive, record, stop.

Everything that happens is told as an Event (to the live view and to events.jsonl) and everything
that is measured is appended to the run's folder as it happens. A run that fails is recorded with
its reason and the campaign goes on; an engine outlives neither its run nor this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twolane import claims, devices, schedule
from twolane.analysis import speculation
from twolane.analysis.counted import counted
from twolane.analysis.stats import summarise
from twolane.claims import Claim
from twolane.clock import NS, now_ns
from twolane.config import Campaign
from twolane.config.cells import GREEDY_ANSWER
from twolane.engines import release
from twolane.engines.fleet import Fleet
from twolane.engines.hosttime import HostTime
from twolane.errors import GateError, TwolaneError
from twolane.gates import needle
from twolane.gates.validity import judge
from twolane.halt import Halt
from twolane.journal import Journal
from twolane.load.calibration import calibrate
from twolane.load.driver import Question
from twolane.recorder import Recorder, Status, Told, new_folder
from twolane.records import (
    AnyCell,
    CellSummary,
    Code,
    NeedleAnswer,
    NeedleCell,
    NeedleResult,
    Request,
    RunMeta,
    write_json,
)
from twolane.schedule import Schedule


@dataclass(frozen=True)
class Outcome:
    """What a campaign left behind: its folder, and each run's final meta in order."""

    folder: Path
    runs: tuple[RunMeta, ...]

    @property
    def failed(self) -> tuple[RunMeta, ...]:
        return tuple(r for r in self.runs if r.status != "done")


async def run(
    campaign: Campaign,
    results: Path,
    told: Told,
    *,
    continued: bool = False,
    blocks: Collection[int] = (),
    arms: Collection[str] = (),
    redo: Collection[str] = (),
    halt: Halt | None = None,
) -> Outcome:
    """Drive `campaign` through all its runs; write everything under a new folder of `results`.

    If `continued`, into the campaign's newest folder, less the runs that are done there. `blocks`
    (from 0) and `arms` limit it to the runs of these; the others can follow with `continued`. Runs
    in which a cell has one of the codes `redo` are set aside and done again.

    Raises QuestionError before anything starts if this host cannot hold it, preflight refuses, or
    another run has one of its devices.
    """
    planned = partial(
        schedule.prepare,
        campaign,
        results,
        continued=continued,
        blocks=blocks,
        arms=arms,
        redo=redo,
    )
    todo = planned()
    if todo.obstacle is not None:
        raise todo.obstacle
    layouts = [step.layout for step in todo.runs]
    kind = campaign.models.node.platform
    what, beside = f"campaign {campaign.name}", campaign.beside_others
    with claims.held(layouts, kind, what, beside=beside) as claim:
        todo = planned()  # who held the devices until now may have finished runs of this folder
        folder = todo.folder or new_folder(results, campaign.name)
        with Journal(
            folder, todo.pace, told, done=todo.total - len(todo.left.runs), total=todo.total,
            expect_s=todo.total_s,
        ) as journal:  # fmt: skip
            for note in todo.notes:
                journal.note(note)
            todo.left.set_aside()
            metas = await _every_run(todo, folder, journal, claim, halt or Halt())
    return Outcome(folder, tuple(metas))


async def _every_run(
    todo: Schedule, folder: Path, journal: Journal, claim: Claim, halt: Halt
) -> list[RunMeta]:
    campaign = todo.campaign
    if campaign.models.node.platform == "gpu":
        held = {d for step in todo.runs for e in step.layout.engines for d in e.devices}
        await release.require_free(sorted(held))
    layouts = [step.layout for step in todo.runs]
    if why := devices.busy(layouts, campaign.models.node.platform):
        journal.note(why)
    resolution = await calibrate(campaign.cells, seed=campaign.seed) if todo.runs else None
    if resolution is not None:
        journal.note(str(resolution))
    metas: list[RunMeta] = []
    began = now_ns()
    for step in todo.runs:
        if todo.exceeds((now_ns() - began) / NS, step):
            left = len(todo.runs) - len(metas)
            journal.note(f"the time budget is used up: {left} runs are left for --resume")
            break
        recorder = Recorder(
            campaign, step, folder, journal.tell, todo.total, halt=halt, claim=claim,
            carried=todo.left.carried.get(step.key),
            resolution_ms=None if resolution is None else resolution.stall_ms,
        )  # fmt: skip
        metas.append(await one(recorder))
    return metas


async def one(recorder: Recorder) -> RunMeta:
    """One run: its meta as finally written. Raises only what cancels the whole campaign."""
    status: Status = "failed"
    error: str | None = "ended by an error outside the run: a full disk, or a defect of twolane"
    try:
        async with recorder.launched() as fleet:
            await gate(recorder, fleet)
            for cell in recorder.cells_left:
                await measure(recorder, fleet, cell)
        status, error = "done", None
    except asyncio.CancelledError:
        status, error = "interrupted", "interrupted by the user"
        raise
    except TwolaneError as failure:
        status, error = "failed", str(failure)
    finally:
        recorder.finish(status, error)
    return recorder.meta


async def gate(recorder: Recorder, fleet: Fleet) -> None:
    """Needles at every gate length, then the greedy probes.

    Raises GateError at the first needle that is missed: what follows would mean nothing.
    """
    campaign = recorder.campaign
    answers: list[NeedleAnswer] = []
    greedy: dict[str, str] = {}
    try:
        for cell in campaign.gates:
            answers += await _needles(recorder, fleet, cell)
            _refuse_misses(recorder, answers)
        if campaign.greedy:
            greedy = await _greedy(recorder, fleet, campaign.greedy)
    finally:
        recorder.needle = NeedleResult(answers=answers, greedy=greedy)
        write_json(recorder.folder / "needle.json", recorder.needle)


def _refuse_misses(recorder: Recorder, answers: list[NeedleAnswer]) -> None:
    missed = [a for a in answers if not a.ok]
    if missed:
        first = missed[0]
        raise GateError(
            f"needle of {first.length} tokens at depth {first.depth:.0%}: {first.reason} "
            f"(expected {first.expected!r}, got {first.got[:40]!r})",
            place=recorder.meta.id,
            remedy="the engines answer wrongly: read their logs before trusting a number",
        )


async def measure(recorder: Recorder, fleet: Fleet, cell: AnyCell) -> None:
    """One cell: caches emptied, metrics before and after, requests recorded, codes judged."""
    codes: list[Code] = []
    if refused := await fleet.reset_caches():
        codes.append(Code(code="RESET", why=f"prefix cache not emptied: {', '.join(refused)}"))
    before = await recorder.sampler.take(f"begin:{cell.id}")
    await asyncio.to_thread(recorder.draft_logs.begin)
    cores = fleet.devices if recorder.on_cores else {}
    began = HostTime.read(fleet.pids, cores)
    answered = recorder.answered(cell)
    requests: list[Request] = []
    result = await recorder.drive(fleet, cell, requests, answered)
    ended = HostTime.read(fleet.pids, cores)
    foreign_share, lost_share = began.foreign_share(ended), began.lost_share(ended)
    after = await recorder.sampler.take(f"end:{cell.id}")
    logged = await asyncio.to_thread(recorder.draft_logs.end)
    block_size = max((e.block_size or 1 for e in fleet.engines), default=1)
    codes += judge(
        cell,
        requests,
        result.window_ns,
        before=before,
        after=after,
        roles={e.name: e.launch.engine.role for e in fleet.engines},
        needle=recorder.needle,
        block_size=block_size,
        problem=result.problem,
        lag_p99_ms=result.lag_p99_ms,
        resolution_ms=recorder.resolution_ms,
        engines_held=recorder.sampler.in_flight(result.window_ns),
        # A GPU host has cores to spare; where an engine is a core, others' work is its handicap.
        foreign_share=foreign_share if recorder.on_cores else None,
        lost_share=lost_share,
    )
    # What an earlier run had answered was counted by engines that are gone: judged by itself.
    known = {code.code for code in codes}
    earlier = judge(cell, answered, None, {}, {}, {}, block_size=block_size)
    codes += [code for code in earlier if code.code not in known]
    recorder.keep_cell(
        CellSummary(
            cell=cell,
            started_ns=result.started_ns,
            ended_ns=result.ended_ns,
            window_ns=result.window_ns,
            values=summarise(cell, [*answered, *requests], result.window_ns)
            | counted(before, after)
            | speculation.values(logged, before, after)
            | {
                "foreign_cpu_share": round(foreign_share, 4),
                "lost_to_others_share": None if lost_share is None else round(lost_share, 4),
                "resolution_ms": recorder.resolution_ms,
            },
            codes=codes,
        )
    )
    if result.problem:
        recorder.tell("note", f"{cell.id}: {result.problem}", cell=cell.id)
    if codes:
        await recorder.explain(cell.id, fleet, before, after)


async def _needles(recorder: Recorder, fleet: Fleet, cell: NeedleCell) -> list[NeedleAnswer]:
    prompts = needle.make(cell.prompt, recorder.planned.seed, cell.depths)
    questions = [
        Question(p.text, tokens=cell.prompt, output=needle.ANSWER_TOKENS, index=i)
        for i, p in enumerate(prompts)
    ]
    answers = []
    for request in await recorder.ask(fleet, cell.id, questions):
        prompt = prompts[request.index]
        verdict = needle.score(prompt, request.text or "")
        answers.append(
            NeedleAnswer(
                request=request.id,
                length=cell.prompt,
                depth=prompt.depth,
                expected=prompt.answer,
                got=request.text or "",
                ok=verdict.ok,
                reason=request.error or verdict.reason or "",
            )
        )
    return answers


async def _greedy(recorder: Recorder, fleet: Fleet, lengths: Sequence[int]) -> dict[str, str]:
    """Continuations of self-quoting prompts, by length: equal in every arm, or an arm is wrong."""
    seed = recorder.planned.seed
    questions = [
        Question(
            needle.echo(length, seed).text,
            tokens=length,
            output=GREEDY_ANSWER,
            role="greedy",
            index=i,
        )
        for i, length in enumerate(lengths)
    ]
    requests = await recorder.ask(fleet, "greedy", questions)
    return {f"{lengths[r.index]}:{seed}": _continuation(r) for r in requests}


def _continuation(request: Request) -> str:
    """An answer may be empty, of a model with made-up weights say, and is compared as such."""
    return f"error: {request.error}" if request.error else request.text or ""
