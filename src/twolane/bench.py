"""Cells against an endpoint that somebody else started: place, drive, judge, record.

It does for one server what campaign.py does for engines of its own, and writes the same folder:
`<out>/bench/runs/<run>/` with run.json, requests.jsonl, cells.jsonl, metrics.jsonl and
needle.json. What the server runs on is not known, so nothing is claimed about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import msgspec

from twolane import devices, seal
from twolane.analysis import measures
from twolane.analysis.counted import counted
from twolane.analysis.stats import Values, summarise
from twolane.clock import boot_id, now_ns, wall
from twolane.config.cells import tokens_needed
from twolane.engines import metrics
from twolane.engines.sampler import Sampler
from twolane.errors import AnswerError, Faults, QuestionError
from twolane.gates.transfers import EngineRole
from twolane.gates.validity import DEFAULT_BLOCK, judge
from twolane.load import workloads
from twolane.load.calibration import calibrate
from twolane.load.driver import CellRun, Progress, Target, drive, form_of, words_of
from twolane.load.endpoint import Server, find
from twolane.load.orders import Form, Words
from twolane.recorder import Status, Told, new_folder, versions
from twolane.records import (
    AnyCell,
    Appender,
    CellSummary,
    Code,
    EngineMeta,
    Event,
    NeedleAnswer,
    NeedleCell,
    NeedleResult,
    RampCell,
    Request,
    RunMeta,
    write_json,
)
from twolane.seal import RequestFile
from twolane.wire import address

__all__ = ["Outcome", "Server", "answer", "engines_by_name", "find", "run"]

PROBE_S: Final = 60.0
"""How long the first token may take: a server that is up may be busy with a long prompt."""

_ROLES: Final[tuple[EngineRole, ...]] = ("prefill", "decode")


@dataclass(frozen=True)
class Outcome:
    """What a bench left behind: its folder, and every cell's summary in order."""

    folder: Path
    meta: RunMeta
    cells: tuple[CellSummary, ...]

    @property
    def good(self) -> bool:
        return self.meta.status == "done" and not any(cell.codes for cell in self.cells)


def answer(outcome: Outcome) -> dict[str, Any]:
    """An outcome for a machine: every cell's values and reason codes."""
    return {
        "good": outcome.good,
        "results": str(outcome.folder),
        "run": outcome.meta.id,
        "cells": [
            {"cell": one.cell.id, "values": one.values, "codes": one.codes} for one in outcome.cells
        ],
    }


async def run(
    server: Server,
    cells: Sequence[AnyCell],
    results: Path,
    told: Told,
    *,
    seed: int,
    engines: Mapping[str, str] | None = None,
    chat: bool = False,
    calibrated: bool = True,
) -> Outcome:
    """Drive `cells` against `server` one after the other.

    `engines` are base URLs whose /metrics are read, by name; a name that begins with prefill or
    decode says what that engine does. Raises QuestionError before anything is sent if a cell
    cannot be asked of this server.
    """
    _refuse(server, cells, chat=chat)
    folder = new_folder(results, "bench")
    with Appender(folder / "events.jsonl") as journal:

        def tell(event: Event) -> None:
            journal.append(event)
            told(event)

        bench = _Bench(server, tuple(cells), folder, tell, seed, engines or {}, chat, calibrated)
        return await bench.run()


def _refuse(server: Server, cells: Sequence[AnyCell], *, chat: bool) -> None:
    if not cells:
        raise QuestionError("no cell was given", remedy="--cell 'c4 in512 out64 n40'")
    ids = [cell.id for cell in cells]
    if again := next((cell for i, cell in enumerate(ids) if cell in ids[:i]), None):
        raise QuestionError(
            f"cell {again!r} was given twice", place="--cell", remedy="run bench again to repeat it"
        )
    faults = Faults()
    for cell in cells:
        if server.context is not None and (needs := tokens_needed(cell)) > server.context:
            faults.add(
                QuestionError(
                    f"cell {cell.id!r} needs {needs} tokens for a prompt and its answer, the "
                    f"server's context is {server.context}",
                    place=server.url,
                    remedy="shorten prompt or answer, or start the server with a longer context",
                )
            )
        if chat and isinstance(cell, RampCell):
            what = "a ramp keeps its history as plain text, which a chat template would break"
            faults.add(QuestionError(what, place=cell.id, remedy="leave out --chat"))
    faults.refuse()


@dataclass
class _Bench:
    server: Server
    cells: tuple[AnyCell, ...]
    root: Path
    told: Told
    seed: int
    engines: Mapping[str, str]
    chat: bool
    calibrated: bool
    form: Form = "text"
    words: Words | None = None
    resolution_ms: float | None = None
    summaries: list[CellSummary] = field(default_factory=list)
    answers: list[NeedleAnswer] = field(default_factory=list)
    meta: RunMeta = field(init=False)
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        server = self.server
        name = re.sub(r"[^A-Za-z0-9.]+", "-", server.model).strip("-")
        stamp = wall().strftime("%m%d-%H%M%S")
        self.folder = self.root / "runs" / f"{name}__external__{server.context}__http__{stamp}"
        self.folder.mkdir(parents=True)
        self.meta = self._first_meta()
        write_json(self.folder / "run.json", self.meta)
        self.requests = RequestFile(self.folder / "requests.jsonl")
        self.summary_lines = Appender(self.folder / "cells.jsonl")
        self.sampler = Sampler(self.folder / "metrics.jsonl")

    def _first_meta(self) -> RunMeta:
        server = self.server
        config = {
            "url": server.url,
            "chat": self.chat,
            "seed": self.seed,
            "calibrated": self.calibrated,
            "cells": [cell.id for cell in self.cells],
        }
        return RunMeta(
            id=self.folder.name,
            campaign="bench",
            arm=f"{server.host}:{server.port}",
            model=server.model,
            layout="external",
            context=server.context or 0,
            block=0,
            order=0,
            seed=self.seed,
            started_at=wall().isoformat(timespec="seconds"),
            boot=boot_id(),
            config=config,
            config_hash=hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16],
            versions=versions(),
            host=devices.describe(),
            cells=list(self.cells),
            engines=[_engine(name, url) for name, url in self.engines.items()],
        )

    async def run(self) -> Outcome:
        status: Status = "done"
        error: str | None = None
        try:
            self._tell("place", self.server.url, total=1, done=0)
            if self.calibrated and (found := await calibrate(self.cells, seed=self.seed)):
                self.resolution_ms = found.stall_ms
                self._tell("note", str(found))
            self._tell("note", f"asking the server for one token, at most {PROBE_S:.0f} s")
            self.form = await form_of(replace(self._target(), patience_s=PROBE_S))
            if self.form == "ids":
                self._tell("note", "to this server a byte is not a token: prompts are token ids")
            if self.chat:
                self.words = await words_of(self._target())
                self._tell("note", _of_chat(self.words))
            async with self.sampler.every_second(self.engines):
                for cell in self.cells:
                    await self._measure(cell)
        except asyncio.CancelledError:
            status, error = "interrupted", "interrupted by the user"
            raise
        except AnswerError as failure:
            status, error = "failed", str(failure)
            raise
        finally:
            self._finish(status, error)
        return Outcome(self.root, self.meta, tuple(self.summaries))

    async def _measure(self, cell: AnyCell) -> None:
        self._tell("cell", cell.id, cell=cell.id)
        refused = await self._reset_caches()
        before = await self.sampler.take(f"begin:{cell.id}")
        requests: list[Request] = []
        result = await self._drive(cell, requests)
        after = await self.sampler.take(f"end:{cell.id}")
        block = max((_block_size(values) for values in after.values()), default=DEFAULT_BLOCK)
        codes = judge(
            cell,
            requests,
            result.window_ns,
            before=before,
            after=after,
            roles={name: _role(name) for name in self.engines},
            block_size=block,
            problem=result.problem,
            lag_p99_ms=result.lag_p99_ms,
            resolution_ms=self.resolution_ms,
            engines_held=self.sampler.in_flight(result.window_ns),
        )
        if refused:
            why = f"prefix cache not emptied: {', '.join(refused)}"
            codes.insert(0, Code(code="RESET", why=why))
        if isinstance(cell, NeedleCell):
            self.answers += _answers(cell, requests, self.seed)
        self._keep(cell, result, requests, codes, counted(before, after))

    async def _drive(self, cell: AnyCell, requests: list[Request]) -> CellRun:
        def record(request: Request) -> None:
            self.requests.append(request)
            requests.append(request)

        def progress(now: Progress) -> None:
            rates = list(now.rates) or None
            self._tell(
                "phase", now.phase, cell=cell.id, done=now.done, total=now.total, rates=rates
            )

        target = self._target()
        return await drive(cell, target, seed=self.seed, record=record, progress=progress)

    def _target(self) -> Target:
        server = self.server
        return Target(
            server.host,
            server.port,
            server.model,
            endpoint="chat" if self.chat else "completions",
            context=server.context,
            form=self.form,
            words=self.words,
        )

    def _keep(
        self,
        cell: AnyCell,
        result: CellRun,
        requests: list[Request],
        codes: list[Code],
        engines: Values,
    ) -> None:
        summary = CellSummary(
            cell=cell,
            started_ns=result.started_ns,
            ended_ns=result.ended_ns,
            window_ns=result.window_ns,
            values=summarise(cell, requests, result.window_ns) | engines,
            codes=codes,
        )
        self.summaries.append(summary)
        sealed = self.requests.sealed(self.meta, summary, measures=measures.VERSION)
        self.summary_lines.append(sealed)

    async def _reset_caches(self) -> list[str]:
        """Empty the prefix caches of the engines that offer it; names of those that refused.

        An engine without that route is no fault: prompts are salted, and CACHE watches.
        """
        answers = await asyncio.gather(
            *(asyncio.to_thread(_reset, url) for url in self.engines.values())
        )
        return [name for name, good in zip(self.engines, answers, strict=True) if good is False]

    def _finish(self, status: Status, error: str | None) -> None:
        for open_file in (self.requests, self.summary_lines, self.sampler):
            open_file.close()
        write_json(self.folder / "needle.json", NeedleResult(answers=self.answers))
        ended = wall().isoformat(timespec="seconds")
        meta = msgspec.structs.replace(self.meta, status=status, error=error, ended_at=ended)
        self.meta = seal.close_run(self.folder, meta)
        write_json(self.folder / "run.json", self.meta)
        self._tell("done" if status == "done" else "failed", error or "done")

    def _tell(self, step: str, text: str, **more: Any) -> None:
        run, arm = self.meta.id, self.meta.arm
        self.told(Event(t_ns=now_ns(), run=run, step=step, text=text, arm=arm, **more))


def _of_chat(words: Words | None) -> str:
    if words is None:
        return (
            "how this server tokenises a chat cannot be asked of it: prompts are as long in bytes "
            "as they should be in tokens"
        )
    return f"prompts are words that are a token each, and {words.frame} tokens of the chat template"


def _engine(name: str, url: str) -> EngineMeta:
    return EngineMeta(
        name=name, role=_role(name), group="", devices=[], url=url, argv=[], env={}, log=""
    )


def _role(name: str) -> EngineRole:
    return next((role for role in _ROLES if name.startswith(role)), "both")


def _block_size(values: dict[str, float]) -> int:
    told = metrics.cache_config(values).get("block_size", "")
    return int(told) if told.isdigit() else DEFAULT_BLOCK


def _reset(url: str) -> bool | None:
    """Whether the cache was emptied; None where the engine has no such route or no answer."""
    request = urllib.request.Request(f"{url}/reset_prefix_cache", method="POST")
    with (
        contextlib.suppress(OSError, HTTPException),
        urllib.request.urlopen(request, timeout=30) as answer,
    ):
        return b"true" in answer.read().lower()
    return None


def _answers(cell: NeedleCell, requests: Sequence[Request], seed: int) -> list[NeedleAnswer]:
    asked = workloads.needles(cell, seed)
    return [
        NeedleAnswer(
            request=r.id,
            length=cell.prompt,
            depth=cell.depths[r.index],
            expected=asked[r.index].answer,
            got=r.text or "",
            ok=r.needle == "ok" and r.error is None,
            reason=r.error or ("" if r.needle == "ok" else r.needle or ""),
        )
        for r in requests
    ]


def _is_base(url: str) -> bool:
    try:
        parts = address.split(url)
    except ValueError:
        return False
    return parts.scheme == "http" and bool(parts.hostname)


def engines_by_name(given: Sequence[str]) -> dict[str, str]:
    """`[NAME=]URL` words as base URLs by name; unnamed ones are engine0, engine1 ..."""
    named: dict[str, str] = {}
    for number, word in enumerate(given):
        name, mark, url = word.partition("=")
        if not mark or "/" in name:
            name, url = f"engine{number}", word
        if not _is_base(url) or name in named:
            raise QuestionError(
                f"{word!r} is not another engine", remedy="write [NAME=]http://HOST:PORT"
            )
        named[name] = url.rstrip("/").removesuffix("/metrics")
    return named
