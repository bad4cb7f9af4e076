"""The table from top to bottom, before one router.

    for row in table: a router that serves, the row's fault, the row's way of asking,
    two seconds for the engines to settle, a verdict

A router that a row has disabled for longer than 5 s is started anew before the next one, which is
counted: rows must not be judged by what came before them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from twolane import clock
from twolane.proxy.conformance.caller import Got, call
from twolane.proxy.conformance.judge import Ended, complaints, headers_seen, saw
from twolane.proxy.conformance.scene import LARGE, PLAY, body_of
from twolane.proxy.conformance.stage import MARK, RECOVER_S, Stage, completion, expected
from twolane.proxy.conformance.table import Row
from twolane.proxy.fault_answer import Behaviour

SETTLE_S = 2.0
_BACKGROUND_S = 4.0  # how long a stream in the background lasts
_BACKGROUND_PATIENCE_S = 30.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One row's result. `seconds` is from the first request to the engines' rest."""

    row: str
    passed: bool
    client_saw: str
    engines_ended: str
    complaints: list[str]
    seconds: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A whole table's result. `restarts` counts routers that a row had disabled."""

    verdicts: list[Verdict]
    restarts: int
    background: int = 0
    background_streams: int = 0
    background_wrong: list[str] = []

    @property
    def passed(self) -> bool:
        return all(v.passed for v in self.verdicts) and not self.background_wrong


Told = Callable[[Verdict], None]


async def play(
    argv: Sequence[str],
    table: Iterable[Row],
    log: Path,
    *,
    background: int = 0,
    told: Told = lambda _: None,
) -> Outcome:
    """Play `table` before the router that `argv` starts. `told` hears of every verdict at once.

    Raises QuestionError and AnswerError where the router cannot be started.
    """
    verdicts: list[Verdict] = []
    async with Stage(argv, log) as stage, _background(stage, background) as others:
        for row in table:
            await stage.clear()
            if not await stage.serves(RECOVER_S):
                await stage.restart_router()
            others.excused = row.down is not None  # until the router serves again
            verdicts.append(await _play_row(stage, row))
            told(verdicts[-1])
        others.excused = True
    return Outcome(
        verdicts=verdicts, restarts=stage.restarts, background=background,
        background_streams=others.served, background_wrong=others.wrong,
    )  # fmt: skip


async def _play_row(stage: Stage, row: Row) -> Verdict:
    await stage.reset()
    stage.p.behaviour, stage.d.behaviour = row.p, replace(row.d)
    began = clock.now_ns()
    engine = {"prefill": stage.p, "decode": stage.d}.get(row.down or "")
    if engine is not None and row.act != "restart":
        engine.stop()
    try:
        answers = await PLAY[row.act](stage, row)
    except OSError as error:
        answers = []
        await asyncio.sleep(0)
        note = f"the router refused the connection: {error}"
    else:
        note = ""
    ended = await _settle(stage, row)
    seconds = (clock.now_ns() - began) / clock.NS
    if engine is not None and row.act != "restart":
        await engine.start(engine.port)
    wrong = [note] if note else list(dict.fromkeys(complaints(row, answers, ended, _prompts(row))))
    return Verdict(
        row=row.name, passed=not wrong, client_saw=saw(answers), engines_ended=ended.text(),
        complaints=wrong, seconds=round(seconds, 2),
    )  # fmt: skip


def _prompts(row: Row) -> list[str]:
    """The prompts of the answers that the row's client must get."""
    if row.act == "many":
        return [f"{MARK} {i}" for i in range(row.count)]
    if row.act == "large":
        return [MARK + LARGE]
    if row.act == "pipelined":
        return [MARK, MARK]
    messages = body_of(row).get("messages")
    return [MARK if messages is None else json.dumps(messages)]


async def _settle(stage: Stage, row: Row) -> Ended:
    """What the engines have when nothing changes any more, at the latest after SETTLE_S."""
    end_ns = clock.now_ns() + int(SETTLE_S * clock.NS)
    while clock.now_ns() < end_ns and (stage.working() or stage.held()):  # noqa: ASYNC110 - a glance
        await asyncio.sleep(0.01)
    mine = {
        engine.role: [s for s in engine.asked if MARK in str(s.body)] for engine in stage.engines
    }
    return Ended(
        held=stage.held(), working=stage.working(), late_reads=stage.d.late_reads,
        crashed=stage.p.crashed + stage.d.crashed, decode_asked=len(mine["decode"]),
        decode_peak=stage.d.peak, p_headers=headers_seen(mine["prefill"]),
        d_headers=headers_seen(mine["decode"]), served=len(mine["prefill"]),
    )  # fmt: skip


# ------------------------------------------------------------------------------ the background


class _Others:
    """Streams of other users, which no row may touch."""

    def __init__(self) -> None:
        self.excused = False  # their engine is down
        self.served = 0
        self.wrong: list[str] = []

    async def one(self, stage: Stage, name: str) -> None:
        number = 0
        while True:
            number += 1
            prompt = f"background {name} {number}"
            excused = self.excused
            got = await _background_stream(stage, prompt)
            right = got.status == 200 and got.complete and got.text == expected(prompt)
            self.served += right
            if not (right or excused or self.excused):
                self.wrong.append(f"{prompt}: {got.status}, complete: {got.complete}")
            if not right:
                await asyncio.sleep(0.5)


async def _background_stream(stage: Stage, prompt: str) -> Got:
    try:
        one = await call(stage.port, completion(prompt, stream=True))
    except OSError:
        return Got()
    return await one.answer(_BACKGROUND_PATIENCE_S)


@asynccontextmanager
async def _background(stage: Stage, count: int) -> AsyncIterator[_Others]:
    stage.d.unmarked = Behaviour(after_first_s=_BACKGROUND_S if count else 0.0)
    others = _Others()
    tasks = [asyncio.create_task(others.one(stage, str(i))) for i in range(count)]
    try:
        yield others
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
