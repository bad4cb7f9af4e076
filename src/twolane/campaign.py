"""READ THIS FIRST: a campaign is runs; a run is place, check, launch, gate, drive, record, stop.

Everything that happens is told as an Event (to the live view and to events.jsonl) and everything
that is measured is appended to the run's folder as it happens. A run that fails is recorded with
its reason and the campaign goes on; an engine outlives neither its run nor this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from twolane import devices, plan, resume
from twolane.analysis.stats import summarise
from twolane.clock import now_ns
from twolane.config import Campaign
from twolane.engines import installed, ports
from twolane.engines.fleet import Fleet
from twolane.engines.hosttime import HostTime
from twolane.errors import AnswerError, GateError, QuestionError, TwolaneError
from twolane.gates import needle
from twolane.gates.validity import judge
from twolane.inspection import Inspector, explained, preflight_campaign
from twolane.load.calibration import calibrate
from twolane.load.driver import Question
from twolane.pace import Pace
from twolane.plan import PlannedRun
from twolane.recorder import Recorder, Status, Told, new_folder
from twolane.records import (
    AnyCell,
    Appender,
    CellSummary,
    Code,
    Event,
    NeedleAnswer,
    NeedleCell,
    NeedleResult,
    Request,
    RunMeta,
    write_json,
)

GREEDY_TOKENS = 32
"""Length of a greedy probe's answer: one wrong KV block changes it, and it costs under a second."""


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
) -> Outcome:
    """Drive `campaign` through all its runs; write everything under a new folder of `results`.

    If `continued`, into the campaign's newest folder, less the runs that are done there. `blocks`
    (from 0) limits it to the runs of these; the others can follow with `continued`.

    Raises QuestionError before anything starts if this host cannot hold it or preflight refuses.
    """
    planned = plan.runs(campaign)
    total = len(planned)
    if beyond := sorted(b + 1 for b in blocks if b >= campaign.blocks):
        raise QuestionError(
            f"no block {beyond[0]}",
            place=str(campaign.path),
            remedy=f"the campaign has {campaign.blocks} block(s), counted from 1",
        )
    kind = campaign.models.node.platform
    installed.require(kind, (p.layout for p in planned))
    devices.require((p.layout for p in planned), kind, results)
    preflight_campaign(campaign)
    folder = resume.latest_folder(results, campaign.name) if continued else None
    if folder is None:
        folder = new_folder(results, campaign.name)
    else:
        planned = resume.left_over(planned, folder)
    if blocks:
        planned = tuple(p for p in planned if p.block in blocks)
    metas: list[RunMeta] = []
    pace = Pace((*campaign.gates, *campaign.cells))
    with Appender(folder / "events.jsonl") as journal:

        def tell(event: Event) -> None:
            event = pace.annotate(event)
            journal.append(event)
            told(event)

        if why := devices.busy():
            tell(Event(t_ns=now_ns(), run="", step="note", text=why))
        if planned and (resolution := await calibrate(campaign.cells, seed=campaign.seed)):
            tell(Event(t_ns=now_ns(), run="", step="note", text=str(resolution)))
        for step in planned:
            metas.append(await one(campaign, step, folder, tell, total=total))
    return Outcome(folder, tuple(metas))


async def serve(
    campaign: Campaign, arm: str, results: Path, *, port: int, say: Callable[[str], None]
) -> None:
    """Start one arm of `campaign` and keep it up until cancelled or until an engine ends.

    `say` gets lines for a person, the endpoint among them. Raises QuestionError for an unknown
    arm, a taken port or what preflight refuses, EngineError when an engine ends.
    """
    names = {a.name: a for a in campaign.arms}
    if arm not in names:
        raise QuestionError(
            f"no arm {arm!r}", place=str(campaign.path), remedy=f"one of {', '.join(names)}"
        )
    layout, kind = names[arm].layout, campaign.models.node.platform
    installed.require(kind, [layout])
    devices.require([layout], kind, results)
    if port:
        ports.require_free(port, what="the proxy")
    fleet = Fleet(new_folder(results, f"up-{arm}"))
    inspector = Inspector(fleet.folder, campaign, layout, say)
    inspector.before()
    say(f"starting {', '.join(e.name for e in layout.engines)}; logs in {fleet.folder}")
    try:
        await fleet.start(
            campaign.model,
            layout,
            kind,
            timeout_s=campaign.start_timeout_s,
            told=say,
            port=port,
        )
        assert fleet.front is not None
        say(f"OpenAI endpoint: {fleet.front.url}/v1  model: {campaign.model.name}  (Ctrl-C stops)")
        await fleet.watch()
    except AnswerError as failure:
        answer = await inspector.after("", [e.launch for e in fleet.engines])
        raise explained(failure, answer, fleet.folder) from None
    finally:
        await fleet.stop()


async def one(
    campaign: Campaign, planned: PlannedRun, folder: Path, told: Told, *, total: int
) -> RunMeta:
    """One run: its meta as finally written. Raises only what cancels the whole campaign."""
    recorder = Recorder(campaign, planned, folder, told, total)
    status: Status = "failed"
    error: str | None = "ended by an error outside the run: a full disk, or a defect of twolane"
    try:
        async with recorder.launched() as fleet:
            await gate(recorder, fleet)
            for cell in campaign.cells:
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
    began = HostTime.read(fleet.pids)
    requests: list[Request] = []
    result = await recorder.drive(fleet, cell, requests)
    foreign_share = began.foreign_share(HostTime.read(fleet.pids))
    after = await recorder.sampler.take(f"end:{cell.id}")
    codes += judge(
        cell,
        requests,
        result.window_ns,
        before=before,
        after=after,
        roles={e.name: e.launch.engine.role for e in fleet.engines},
        needle=recorder.needle,
        block_size=max((e.block_size or 1 for e in fleet.engines), default=1),
        problem=result.problem,
        lag_p99_ms=result.lag_p99_ms,
        engines_held=recorder.sampler.in_flight(result.window_ns),
        # A GPU host has cores to spare; where an engine is a core, others' work is its handicap.
        foreign_share=foreign_share if recorder.on_cores else None,
    )
    recorder.keep_cell(
        CellSummary(
            cell=cell,
            started_ns=result.started_ns,
            ended_ns=result.ended_ns,
            window_ns=result.window_ns,
            values=summarise(cell, requests, result.window_ns)
            | {"foreign_cpu_share": round(foreign_share, 4)},
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
            output=GREEDY_TOKENS,
            role="greedy",
            index=i,
        )
        for i, length in enumerate(lengths)
    ]
    requests = await recorder.ask(fleet, "greedy", questions)
    return {f"{lengths[r.index]}:{seed}": r.text or f"error: {r.error}" for r in requests}
