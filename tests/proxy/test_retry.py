"""Asked again only within the budget, only before the client saw anything, never with the same
handoff."""

from __future__ import annotations

import pytest
from tests.proxy.rig import completion, expected, rig

from twolane.proxy.fault_answer import Behaviour, Fault
from twolane.proxy.retry import RetryBudget

BROKEN: list[tuple[str, Fault]] = [("p", "reset"), ("d", "reset"), ("d", "truncate")]


def test_a_budget_is_a_share_with_a_limit() -> None:
    budget = RetryBudget(0.25)
    taken = []
    for _ in range(8):
        budget.earn()
        taken.append(budget.take())
    assert taken == [False, False, False, True] * 2
    for _ in range(1000):
        budget.earn()
    assert sum(budget.take() for _ in range(100)) == 10
    assert budget.used == 12


def test_without_a_share_there_are_none() -> None:
    budget = RetryBudget(0.0)
    for _ in range(100):
        budget.earn()
    assert not budget.take()


@pytest.mark.parametrize(("leg", "fault"), BROKEN)
async def test_a_broken_leg_is_asked_again_from_the_beginning(leg: str, fault: Fault) -> None:
    async with rig(retry_share=1.0) as r:
        behaviours = iter([Behaviour(fault=fault), Behaviour()])
        engine = r.p if leg == "p" else r.d
        engine.pick = lambda: next(behaviours)
        assert (await r.ask(completion())).text == expected()
        assert (len(r.p.asked), len(r.d.asked)) == ((2, 1) if leg == "p" else (2, 2))
        assert r.d.late_reads == 0
        assert b"twolane_retries_total 1.0" in (await r.get("/metrics")).body


async def test_it_is_asked_again_once_a_budget_and_not_more() -> None:
    async with rig(retry_share=1.0) as r:
        r.d.behaviour = Behaviour(fault="reset")
        assert (await r.ask(completion())).status == 502
        assert len(r.d.asked) == 2


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_an_answer_is_an_answer(status: int) -> None:
    async with rig(retry_share=1.0) as r:
        r.d.behaviour = Behaviour(status=status)
        assert (await r.ask(completion())).status == status
        assert len(r.d.asked) == 1


async def test_a_stream_that_has_begun_is_not_asked_again() -> None:
    async with rig(retry_share=1.0) as r:
        r.d.behaviour = Behaviour(fault="truncate")
        got = await r.ask(completion(stream=True))
        assert (got.status, got.complete) == (200, False)
        assert len(r.d.asked) == 1
