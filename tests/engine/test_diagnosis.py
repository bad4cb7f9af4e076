"""Real engines made to fail: preflight knows it before, the log's cause and fix are right after.

TWOLANE_ALL_FAILURES=1 runs every way (about seven minutes); without it, the quicker half.
Start-up failures are one engine each, two at a time; the others need a pair that serves.
TWOLANE_FAILURES_TABLE=FILE writes what was found as Markdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from tests.engine.failures import CONTINUE, KILL, START_UP, STOP, Failure, connector, no_nixl

from twolane.config import Campaign, Engine, Layout, Model
from twolane.diagnosis.findings import Diagnosis
from twolane.diagnosis.postmortem import diagnose
from twolane.engines.fleet import Fleet
from twolane.engines.launch import launches
from twolane.engines.process import Process
from twolane.inspection import deployment, preflight
from twolane.load.driver import Question, Target, ask
from twolane.records import Request

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

ALL = bool(os.environ.get("TWOLANE_ALL_FAILURES"))
TABLE = os.environ.get("TWOLANE_FAILURES_TABLE")
CHOSEN = [f for f in START_UP if ALL or f.quick]
PATIENCE_S = 240.0  # a start-up takes 20 s, on a busy machine far more
slow = pytest.mark.skipif(not ALL, reason="only with TWOLANE_ALL_FAILURES=1")


@dataclass(frozen=True)
class Seen:
    """What preflight and the log alone said of one failure, and after how many seconds."""

    known: set[str]
    alone: Diagnosis
    together: Diagnosis
    seconds: float


# ----------------------------------------------------------------------------------- start-up


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def dead(
    campaign: Campaign, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, Seen]]:
    """Every start-up failure that this test run asks for, two engines at a time, one a core."""
    folder = tmp_path_factory.mktemp("failures")
    asked = [getattr(item, "callspec", None) for item in request.session.items]
    ids = {call.params["failure"].id for call in asked if call and "failure" in call.params}
    waiting, seen = [f for f in CHOSEN if f.id in ids], dict[str, Seen]()

    async def lane(core: int) -> None:
        while waiting:
            failure = waiting.pop(0)
            seen[failure.id] = await fail(campaign, failure, core, folder / slug(failure.id))

    await asyncio.gather(lane(0), lane(1))
    yield seen


def slug(name: str) -> str:
    return re.sub(r"\W+", "-", name)


async def fail(campaign: Campaign, failure: Failure, core: int, folder: Path) -> Seen:
    await asyncio.to_thread(folder.mkdir)
    path = failure.model(folder / "model") if failure.model else Path(campaign.model.path)
    model = replace(campaign.model, path=str(path))
    layout = alone(campaign, failure, core, folder)
    with failure.held():
        known = {f.rule for f in preflight(model, layout, "cpu") if f.severity == "error"}
        (launch,) = launches(model, layout, "cpu")
        began = time.monotonic()
        process = await Process.start(
            "engine", launch.argv, env=launch.env, log=folder / "engine.log", cores=(core,)
        )
        try:
            await failed(process, failure)
        finally:
            seconds = time.monotonic() - began
            answer = diagnose([process.log])
            await process.stop()
    judged = deployment(model, [launch], "cpu", starting=False)
    return Seen(known, answer, diagnose([process.log], judged), seconds)


def alone(campaign: Campaign, failure: Failure, core: int, folder: Path) -> Layout:
    """The demo's prefill engine on `core`, changed as the failure wants it."""
    base = pair_of(campaign).engines[0]
    env = {**base.env, **failure.env}
    if "PYTHONPATH" in env:
        env |= no_nixl(folder / "packages")
    engine = replace(base, name="engine", args=(*base.args, *failure.args), env=env)
    return Layout("alone", (replace(engine, devices=(core,)),))


async def failed(process: Process, failure: Failure) -> None:
    """Return when the engine has ended, or hangs and its log says why."""
    until = time.monotonic() + PATIENCE_S
    while process.code is None and time.monotonic() < until:
        await asyncio.sleep(0.5)
        if failure.kill:
            kill(process.log, failure.kill)
        elif failure.cause.startswith("PORT") and diagnose([process.log]).cause:
            return


def kill(log: Path, name: str) -> None:
    """SIGKILL the process of that name, once it has written to its log."""
    found = re.search(rf"\({name} pid=(\d+)\)", log.read_text(errors="replace"))
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(found[1]), KILL)


@pytest.mark.parametrize("failure", CHOSEN, ids=lambda f: slug(f.id))
async def test_an_engine_that_dies_or_hangs_at_start_up(
    dead: dict[str, Seen], failure: Failure
) -> None:
    seen = dead[failure.id]
    note(failure.id, failure.cause, seen.known if failure.known else None, seen.alone, seen.seconds)
    if failure.known:
        assert failure.cause in seen.known, "preflight"
    for answer in (seen.alone, seen.together):
        assert answer.cause in failure.cause.split(" or "), [f.rule for f in answer.findings]
        assert failure.fix in answer.findings[0].fix
        assert answer.findings[0].evidence or answer is seen.together


# ------------------------------------------------------------------------------------- serving


def pair_of(campaign: Campaign) -> Layout:
    return next(a.layout for a in campaign.arms if a.layout.split)


@contextlib.asynccontextmanager
async def serving(
    model: Model, layout: Layout, folder: Path
) -> AsyncIterator[tuple[Fleet, set[str]]]:
    """A pair that runs, and what preflight said of it."""
    await asyncio.to_thread(folder.mkdir)
    known = {f.rule for f in preflight(model, layout, "cpu") if f.severity == "error"}
    fleet = Fleet(folder)
    try:
        await fleet.start(model, layout, "cpu", timeout_s=300, told=lambda _: None)
        yield fleet, known
    finally:
        for engine in fleet.engines:
            for process in below(engine.process):
                process.send_signal(CONTINUE)
        await fleet.stop()


def changed(layout: Layout, *changes: tuple[Sequence[str], dict[str, str]]) -> Layout:
    """`layout` with arguments and variables added to each of its engines in turn."""

    def change(engine: Engine, args: Sequence[str], env: dict[str, str]) -> Engine:
        return replace(engine, args=(*engine.args, *args), env={**engine.env, **env})

    both = zip(layout.engines, changes, strict=True)
    return replace(layout, engines=tuple(change(e, *c) for e, c in both))


def below(process: Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def worker(log: Path) -> int:
    found = re.findall(r"\(Worker[^)]*? pid=(\d+)\)", log.read_text(errors="replace"))
    return int(found[-1])


async def one_request(url: str, tokens: int = 300, output: int = 8) -> Request | None:
    """One answer of `url`, whatever it is; None where none came in time."""
    got: list[Request] = []
    target = Target("127.0.0.1", int(url.rsplit(":", 1)[1]), "needle")
    question = Question(" a" * tokens, tokens=tokens, output=output, index=0)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            await ask([question], target, cell="x", record=got.append, progress=lambda _: None)
    return got[0] if got else None


async def cause_in(logs: Sequence[Path], rule: str, patience_s: float) -> Diagnosis:
    """The diagnosis of `logs` as soon as `rule` is its cause, at the latest after `patience_s`."""
    until = time.monotonic() + patience_s
    while (answer := diagnose(logs)).cause != rule and time.monotonic() < until:
        await asyncio.sleep(1)
    return answer


def agree(answer: Diagnosis, cause: str, fix: str) -> None:
    assert answer.cause == cause, [f.rule for f in answer.findings]
    assert fix in answer.findings[0].fix
    assert answer.findings[0].evidence


async def test_a_pair_of_two_precisions_and_a_killed_worker(
    campaign: Campaign, tmp_path: Path
) -> None:
    unknown = {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    layout = changed(pair_of(campaign), ([], unknown), (["--dtype", "bfloat16"], {}))
    async with serving(campaign.model, layout, tmp_path / "pair") as (fleet, known):
        prefill, decode = fleet.engines
        warned = {f.rule for f in preflight(campaign.model, layout, "cpu")}
        assert "ENV03" in warned
        assert "PAIR01" in known
        began = time.monotonic()
        assert fleet.front is not None
        await one_request(fleet.front.url)
        answer = await cause_in([decode.process.log], "PAIR01", 30)
        note("dtype mismatch in a pair", "PAIR01", known, answer, time.monotonic() - began)
        agree(answer, "PAIR01", "textually identical")
        unheard = diagnose([prefill.process.log])
        note("unknown variable (serves, but ignores it)", "ENV03", warned, unheard, 0)
        agree(unheard, "ENV03", "attention-backend")

        began = time.monotonic()
        os.kill(worker(prefill.process.log), KILL)
        answer = await cause_in([prefill.process.log], "RUN08", 30)
        note("killed worker", "RUN08", None, answer, time.monotonic() - began)
        agree(answer, "RUN08", "OOM")


@slow
async def test_a_pair_of_two_block_sizes_and_a_hanging_worker(
    campaign: Campaign, tmp_path: Path
) -> None:
    layout = changed(pair_of(campaign), ([], {}), (["--block-size", "64"], {}))
    async with serving(campaign.model, layout, tmp_path / "pair") as (fleet, known):
        prefill, decode = fleet.engines
        assert "PAIR03" in known
        began = time.monotonic()
        assert fleet.front is not None
        await one_request(fleet.front.url)
        answer = await cause_in([decode.process.log], "PAIR03", 30)
        note("block size mismatch in a pair", "PAIR03", known, answer, time.monotonic() - began)
        agree(answer, "PAIR03", "--block-size")

        began = time.monotonic()
        os.kill(worker(prefill.process.log), STOP)
        await one_request(prefill.launch.url)
        answer = await cause_in([prefill.process.log], "RUN10", 100)
        note("hanging worker", "RUN10", None, answer, time.monotonic() - began)
        agree(answer, "RUN10", "hung rank")


@slow
async def test_a_lease_that_expires_before_the_decode_engine_reads(
    campaign: Campaign, tmp_path: Path
) -> None:
    short = {"kv_lease_duration": 3}

    def lease(role: str) -> list[str]:
        return ["--kv-transfer-config", connector(kv_role=role, kv_connector_extra_config=short)]

    layout = changed(pair_of(campaign), (lease("kv_producer"), {}), (lease("kv_consumer"), {}))
    async with serving(campaign.model, layout, tmp_path / "pair") as (fleet, _):
        prefill, decode = fleet.engines
        began = time.monotonic()
        assert fleet.front is not None
        os.kill(worker(decode.process.log), STOP)
        asking = asyncio.create_task(one_request(fleet.front.url, tokens=2000))
        answer = await cause_in([prefill.process.log], "RUN01", 30)
        note("expired lease", "RUN01", None, answer, time.monotonic() - began)
        os.kill(worker(decode.process.log), CONTINUE)
        await asking
        agree(answer, "RUN01", "kv_lease_duration")


# ---------------------------------------------------------------------------------- the table


def note(what: str, cause: str, known: set[str] | None, answer: Diagnosis, seconds: float) -> None:
    """One line of docs/results/diagnosis.md."""
    if TABLE is None:
        return
    before = "cannot know" if known is None else "yes" if cause in known else "NO"
    found = answer.cause or "none"
    fix = answer.findings[0].fix if answer.findings else ""
    with Path(TABLE).open("a") as out:
        out.write(f"| {what} | {cause} | {before} | {found} | {seconds:.0f} s | {fix} |\n")
