"""Cells driven against the golden engine, whose own account says what was true."""

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
import pytest
from tests.golden_engine import GoldenEngine, Pace, serve

import twolane
from twolane.analysis import stats
from twolane.clock import MS, NS
from twolane.gates.validity import judge
from twolane.load import workloads
from twolane.load.driver import CellRun, Progress, Question, Target, ask, drive
from twolane.records import AnyCell, GridCell, InterferenceCell, NeedleCell, Request

SHOT = InterferenceCell(
    id="interference v2 n3000",
    victims=2,
    prompt=3000,
    victim_prompt=64,
    aggressor_output=4,
    quiet_s=0.3,
    recovery_s=0.1,
    null_s=0.2,
)
GRID = GridCell(id="c4 in64 out8 n12", users=4, prompt=64, output=8, requests=12)


class Driven:
    """What one drive gave: requests in the order of their end, and all that was told."""

    def __init__(self, engine: GoldenEngine, port: int) -> None:
        self.engine = engine
        self.target = Target("127.0.0.1", port, "golden", context=50_000)
        self.requests: list[Request] = []
        self.told: list[Progress] = []
        self.on_phase: Callable[[str], None] = lambda _: None

    def _tell(self, progress: Progress) -> None:
        self.told.append(progress)
        self.on_phase(progress.phase)

    async def drive(self, cell: AnyCell, target: Target | None = None) -> CellRun:
        return await drive(
            cell,
            target or self.target,
            seed=1,
            record=self.requests.append,
            progress=self._tell,
        )

    def roles(self, *roles: str) -> list[Request]:
        return [r for r in self.requests if r.role in roles]


def lateness_ms(engine: GoldenEngine, request: Request) -> list[float]:
    """How long after each event was written the client had its stamp."""
    written = engine.by_id(request.id).written_ns
    seen = stats.event_times_ns(request)
    return [(b - a) / MS for a, b in zip(written, seen, strict=False)]


# --------------------------------------------------------------------------------- interference


async def test_an_aggressor_that_is_in_the_way_is_seen() -> None:
    async with serve(Pace(prefill_s_per_token=1e-4)) as (engine, port):
        driven = Driven(engine, port)
        run = await driven.drive(SHOT)
    assert run.problem is None
    assert [len(driven.roles(role)) for role in ("null", "victim", "aggressor")] == [1, 4, 1]
    values = stats.summarise(SHOT, driven.requests, run.window_ns)
    worst = [v.worst_gap_ms for v in stats.victims(driven.requests) if not v.null]
    truth = [
        max(b - a for a, b in itertools.pairwise(w)) / MS
        for w in (engine.by_id(r.id).written_ns for r in driven.roles("victim") if r.shot == 1)
    ]
    assert sorted(worst) == pytest.approx(sorted(truth), abs=20)
    assert (values["null_worst_gap_ms"] or 0) < 200 < (values["worst_gap_ms"] or 0)
    assert driven.roles("aggressor")[0].output_tokens == 4


async def test_an_aggressor_that_is_not_in_the_way_is_not() -> None:
    async with serve(Pace(prefill_s_per_token=1e-4, shared=False)) as (engine, port):
        driven = Driven(engine, port)
        run = await driven.drive(SHOT)
    assert run.problem is None
    values = stats.summarise(SHOT, driven.requests, run.window_ns)
    assert (values["worst_gap_ms"] or 999) < 200
    assert (values["aggressor_ttft_ms"] or 0) >= 310


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Driven, CellRun]:
    """A whole interference cell whose aggressor disturbs nobody, three tokens an event."""

    async def run() -> tuple[Driven, CellRun]:
        async with serve(Pace(tokens_per_event=3)) as (engine, port):
            driven = Driven(engine, port)
            return driven, await driven.drive(SHOT)

    return asyncio.run(run())


def test_stamps_are_close_to_the_truth_and_never_before_it(
    undisturbed: tuple[Driven, CellRun],
) -> None:
    driven, _ = undisturbed
    late = [ms for r in driven.roles("victim") for ms in lateness_ms(driven.engine, r)]
    assert len(late) > 100
    assert min(late) > 0
    assert median(late) < 5
    assert {n for r in driven.roles("victim") for n in r.tokens} == {3}


def test_phases_come_in_order(undisturbed: tuple[Driven, CellRun]) -> None:
    driven, run = undisturbed
    phases = list(dict.fromkeys(told.phase for told in driven.told))
    assert phases == [
        f"{shot}: {phase}"
        for shot in ("null shot", "shot 1 of 1")
        for phase in ("quiet", "hit", "recovery")
    ]
    assert run.lag_p99_ms is not None


def test_victims_have_a_worker_of_their_own(undisturbed: tuple[Driven, CellRun]) -> None:
    driven, _ = undisturbed
    assert {r.worker for r in driven.roles("victim")} == {1}
    assert {r.worker for r in driven.roles("aggressor", "null")} == {0}
    assert {r.finish_reason for r in driven.roles("victim")} == {"stopped_by_client"}


def test_every_phase_has_its_length(undisturbed: tuple[Driven, CellRun]) -> None:
    driven, _ = undisturbed
    victims = stats.victims(driven.requests)
    assert len(victims) == 4
    for victim in victims:
        assert stats.seconds_of(victim.phases.quiet) >= SHOT.quiet_s
        hit_s = stats.seconds_of(victim.phases.hit)
        assert not victim.null or hit_s == pytest.approx(SHOT.null_s, abs=0.1)
        watched = (victim.phases.end_ns - victim.phases.recovery_ns) / NS
        assert watched >= SHOT.recovery_s


def test_the_rates_told_are_the_victims(undisturbed: tuple[Driven, CellRun]) -> None:
    driven, _ = undisturbed
    told = [progress.rates for progress in driven.told if any(progress.rates)]
    assert told
    assert {len(rates) for rates in told} == {2}


async def test_a_victim_that_ends_by_itself_ends_the_cell() -> None:
    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        short = Target("127.0.0.1", port, "golden", context=64 + 10)
        run = await driven.drive(SHOT, short)
    assert run.problem is not None
    assert "shot 0: victim" in run.problem
    assert "ended by itself: 10 tokens, length" in run.problem
    assert len(driven.roles("victim")) == 2


async def test_a_failed_aggressor_is_a_record_and_not_a_hang() -> None:
    async with serve(Pace(longest_prompt=1000)) as (engine, port):
        driven = Driven(engine, port)
        run = await driven.drive(SHOT)
    assert run.problem is None
    assert [r.error for r in driven.roles("aggressor")] == ["HTTP 400: planted refusal"]
    assert len(driven.roles("victim")) == 4


# ----------------------------------------------------------------------------------------- grid


async def test_a_closed_loop_keeps_its_users_in_flight() -> None:
    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        run = await driven.drive(GRID)
    assert run.problem is None
    assert run.window_ns is not None
    assert len(driven.roles("grid")) == 12
    assert sorted(r.index for r in driven.roles("grid")) == list(range(12))
    assert engine.most_running == 4
    inflight = stats.inflight(driven.requests, run.window_ns)
    assert inflight == pytest.approx(4, rel=0.05)
    assert len({r.id for r in driven.requests}) == len(driven.requests)


async def test_workers_share_a_grid_as_if_they_were_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "STREAMS_A_WORKER", 2)
    async with serve(Pace()) as (engine, port):
        two = Driven(engine, port)
        run = await two.drive(GRID)
    assert run.problem is None
    assert {r.worker for r in two.roles("grid")} == {0, 1}
    assert sorted(r.index for r in two.roles("grid")) == list(range(12))
    assert engine.most_running == 4
    assert run.window_ns is not None
    assert stats.inflight(two.requests, run.window_ns) == pytest.approx(4, rel=0.05)
    assert len({r.id for r in two.requests}) == len(two.requests)
    assert {told.total for told in two.told if told.phase == "window"} <= {12, 6}


async def test_a_grid_that_loses_a_worker_ends_with_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill_one(phase: str) -> None:
        if phase == "window" and not killed:
            killed.extend(workers_of(os.getpid())[:1])
            killed[0].kill()

    killed: list[psutil.Process] = []
    monkeypatch.setattr(workloads, "STREAMS_A_WORKER", 2)
    cell = GridCell(id="c4 in64 out8 60s", users=4, prompt=64, output=8, seconds=60)
    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        driven.on_phase = kill_one
        run = await driven.drive(cell)
    assert run.problem is not None
    assert "died (signal 9)" in run.problem
    assert any(r.error is None for r in driven.roles("grid"))
    assert 0 < sum(r.error == run.problem for r in driven.requests) <= 4
    assert workers_of(os.getpid()) == []


async def test_the_warm_up_is_spread_not_drained_and_not_counted() -> None:
    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        run = await driven.drive(GRID)
    warm = sorted(driven.roles("warmup"), key=lambda r: r.index)
    assert [r.output_tokens for r in warm[:4]] == [2, 4, 6, 8]
    assert run.window_ns is not None
    assert run.window_ns[0] == min(r.send_ns for r in driven.roles("grid"))
    assert run.window_ns[1] == max(r.send_ns for r in driven.roles("grid"))
    assert any((r.last_ns or 0) > run.window_ns[0] for r in warm)
    assert all(r.send_ns <= run.window_ns[0] for r in warm)


async def test_a_cell_may_be_bounded_by_seconds() -> None:
    cell = GridCell(id="c2 in64 out4 0.3s", users=2, prompt=64, output=4, seconds=0.3)
    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        run = await driven.drive(cell)
    assert run.window_ns is not None
    assert 0.1 < stats.seconds_of(run.window_ns) <= 0.3


async def test_nobody_there_ends_the_cell_with_a_reason() -> None:
    async with serve(Pace()) as (engine, port):
        pass
    driven = Driven(engine, port)
    run = await driven.drive(GridCell(id="c2 n9", users=2, prompt=64, output=4, seconds=60))
    assert run.problem is not None
    assert "requests failed in a row" in run.problem
    assert f"no connection to 127.0.0.1:{port}" in (driven.requests[0].error or "")


# ------------------------------------------------------------------------------------ questions


async def test_questions_are_asked_in_order_and_answers_kept() -> None:
    async with serve(Pace(ledger=True)) as (engine, port):
        driven = Driven(engine, port)
        run = await ask(
            [Question(f"{i}-abcdef", 8, 4, index=i) for i in range(3)],
            driven.target,
            cell="needle 8",
            record=driven.requests.append,
            progress=driven.told.append,
            at_once=2,
        )
    assert run.problem is None
    assert sorted((r.index, r.text) for r in driven.requests) == [
        (0, "0-ab"),
        (1, "1-ab"),
        (2, "2-ab"),
    ]
    assert all(r.ledger is not None for r in driven.requests)
    assert engine.most_running == 2
    assert (driven.told[-1].done, driven.told[-1].total) == (3, 3)


async def test_a_needle_cell_asks_its_questions() -> None:
    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        await drive(
            NeedleCell(id="needle 8", prompt=8),
            driven.target,
            seed=1,
            record=driven.requests.append,
            progress=driven.told.append,
            questions=[Question("abcdefgh", 8, 2)],
        )
    assert [(r.role, r.text) for r in driven.requests] == [("needle", "ab")]


@pytest.mark.parametrize(("knows", "needle"), [(True, "ok"), (False, "wrong value")])
async def test_a_needle_cell_makes_and_judges_its_own_questions(knows: bool, needle: str) -> None:
    async with serve(Pace(knows=knows)) as (engine, port):
        driven = Driven(engine, port)
        await driven.drive(NeedleCell(id="needle 500", prompt=500))
    assert [(r.prompt_tokens, r.needle) for r in driven.requests] == [(500, needle)] * 3
    codes = judge(NeedleCell(id="", prompt=500), driven.requests, None, {}, {}, {})
    assert [(code.code, code.value) for code in codes] == ([] if knows else [("NEEDLE", 3)])


@pytest.mark.parametrize(
    ("pace", "says"),
    [
        (Pace(error_after=2), "error in the stream: planted error"),
        (Pace(cut_after=2), "connection lost after 2 tokens"),
        (Pace(hang_after=2), "silent for 0.2 s, given up"),
        (Pace(status=429), "HTTP 429: planted refusal"),
    ],
)
async def test_what_an_engine_breaks_is_told(pace: Pace, says: str) -> None:
    async with serve(pace) as (_, port):
        got: list[Request] = []
        run = await ask(
            [Question("abcd" * 8, 32, 8)],
            Target("127.0.0.1", port, "golden", patience_s=0.2),
            cell="x",
            record=got.append,
            progress=lambda _: None,
        )
    assert run.problem is None
    assert says in (got[0].error or "")


async def test_a_chat_is_driven_too() -> None:
    async with serve(Pace(tokens_per_event=2)) as (engine, port):
        got: list[Request] = []
        await ask(
            [Question("abcdefgh", 8, 6)],
            Target("127.0.0.1", port, "golden", endpoint="chat"),
            cell="x",
            record=got.append,
            progress=lambda _: None,
        )
    assert (got[0].text, got[0].output_tokens, got[0].tokens) == ("abcdef", 6, [2, 2, 2])
    assert lateness_ms(engine, got[0])[0] > 0


# ---------------------------------------------------------------------------- worker processes


def workers_of(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children()
    return [c for c in children if "twolane.load.worker" in " ".join(c.cmdline())]


async def test_a_killed_worker_ends_the_cell_with_a_reason_and_the_data_so_far() -> None:
    def kill_one(phase: str) -> None:
        if phase == "shot 1 of 1: hit" and not killed:
            killed.extend(workers_of(os.getpid())[1:])
            killed[0].kill()

    killed: list[psutil.Process] = []

    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        driven.on_phase = kill_one
        run = await driven.drive(SHOT)
    assert run.problem == "load worker 1 died (signal 9)"
    cut_off = [r for r in driven.roles("victim") if r.error is not None]
    assert {r.shot for r in driven.roles("victim") if r.error is None} == {0}
    assert [(r.shot, r.error) for r in cut_off] == [(1, run.problem)] * 2
    assert all(r.send_ns < (r.first_ns or 0) < (r.end_ns or 0) for r in cut_off)
    (code,) = (c for c in judge(SHOT, driven.requests, None, {}, {}, {}, problem=run.problem)
               if c.code == "FAILED")  # fmt: skip
    assert code.why.startswith("load worker 1 died (signal 9); ")
    assert workers_of(os.getpid()) == []


async def test_a_record_that_cannot_be_kept_ends_the_drive() -> None:
    def full(request: Request) -> None:
        raise OSError(28, "No space left on device")

    async def one(port: int) -> CellRun:
        return await ask(
            [Question("abcd", 4, 2)],
            Target("127.0.0.1", port, "golden"),
            cell="x",
            record=full,
            progress=lambda _: None,
        )

    async with serve(Pace()) as (_, port):
        (ended,) = await asyncio.gather(one(port), return_exceptions=True)
    assert "No space left" in str(ended)
    assert isinstance(ended, OSError)
    assert workers_of(os.getpid()) == []


async def test_a_cancelled_drive_leaves_no_worker() -> None:
    async with serve(Pace()) as (engine, port):
        driven = Driven(engine, port)
        begun = asyncio.Event()
        driven.on_phase = lambda _: begun.set()
        driving = asyncio.create_task(driven.drive(SHOT))
        await begun.wait()
        assert len(workers_of(os.getpid())) == 2
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
    assert workers_of(os.getpid()) == []


PARENT = """
import asyncio, sys
from twolane.load.driver import Target, drive
from twolane.records import GridCell
cell = GridCell(id="c1 60s", users=1, prompt=64, output=8, seconds=60)
def tell(progress):
    print(progress.phase, flush=True)
asyncio.run(drive(cell, Target("127.0.0.1", int(sys.argv[1]), "golden"), seed=1,
                  record=lambda request: None, progress=tell))
"""


async def test_workers_die_with_their_parent() -> None:
    source = str(Path(twolane.__file__).parents[1])
    async with serve(Pace()) as (_, port):
        parent = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PARENT,
            str(port),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": source},
        )
        assert parent.stdout is not None
        await parent.stdout.readline()
        orphans = workers_of(parent.pid)
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
    assert len(orphans) == 1
    _, alive = psutil.wait_procs(orphans, timeout=5)
    assert alive == []
