"""A conversation that was cut goes on at the turn that was not answered, on a new engine."""

from __future__ import annotations

from tests.golden_engine import Pace, serve

from twolane.gates.validity import judge
from twolane.load.driver import CellRun, Target, drive
from twolane.records import RampCell, Request

BLOCK = 16
FAST = Pace(ttft_s=0.002, gap_s=0.002, cache_block=BLOCK, knows=True)
RAMP = RampCell(id="ramp 1200", prompt=1200, users=2, turns=4, after=600, output=16)


async def driven(answered: list[Request]) -> tuple[CellRun, list[Request]]:
    """One drive of the ramp on a new engine, after the turns that were answered before."""
    seen: list[Request] = []
    async with serve(FAST) as (_, port):
        target = Target("127.0.0.1", port, "golden", patience_s=5.0)
        run = await drive(
            RAMP, target, seed=1, record=seen.append, progress=lambda _: None, answered=answered
        )
    return run, seen


def said(requests: list[Request]) -> dict[tuple[int, int], tuple[int | None, str | None, int]]:
    """By user and turn: prompt tokens, answer, tokens that an engine may have cached."""
    turns = [r for r in requests if r.role == "turn"]
    return {(r.user, r.index): (r.prompt_tokens, r.text, r.history) for r in turns}


async def test_the_rest_is_what_it_would_have_been() -> None:
    _, whole = await driven([])
    kept = [r for r in whole if (r.user, r.index) in {(0, 0), (0, 1), (0, 2), (1, 0)}]
    kept.sort(key=lambda r: (r.user, r.index))
    run, rest = await driven(kept)
    assert run.problem is None
    assert said(kept) | said(rest) == said(whole)
    assert said(kept).keys().isdisjoint(said(rest))
    again = [r for r in rest if r.role == "warmup"]
    assert sorted((r.user, r.index) for r in again) == [(0, 2), (1, 0)]
    assert judge(RAMP, rest, run.window_ns, {}, {}, {}, block_size=BLOCK) == []


async def test_a_conversation_that_was_over_is_not_begun_again() -> None:
    _, whole = await driven([])
    first = sorted((r for r in whole if r.user == 0), key=lambda r: r.index)
    run, rest = await driven(first)
    assert run.problem is None
    assert {(r.role, r.user) for r in rest} == {("turn", 1)}
