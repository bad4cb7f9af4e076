"""In a burst what has begun goes on before more begins."""

from __future__ import annotations

import asyncio

from twolane.proxy.turns import Turns


async def test_a_burst_begins_a_few_at_a_time_in_order() -> None:
    turns, begun = Turns(a_round=2), list[int]()

    async def request(number: int) -> None:
        await turns.take()
        begun.append(number)

    waiting = [asyncio.ensure_future(request(n)) for n in range(7)]
    seen = []
    while len(begun) < len(waiting):
        await asyncio.sleep(0)
        seen.append(len(begun))
    assert begun == list(range(7))
    steps = [b - a for a, b in zip([0, *seen], seen, strict=False)]
    assert max(steps) == 2, steps
    await asyncio.gather(*waiting)


async def test_one_that_comes_alone_does_not_wait() -> None:
    turns = Turns(a_round=1)
    for _ in range(3):
        alone = turns.take()
        try:
            alone.send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("it waited")
        for _ in range(3):  # the round is over
            await asyncio.sleep(0)


async def test_who_has_left_takes_nobodys_turn() -> None:
    turns, begun = Turns(a_round=1), list[int]()

    async def request(number: int) -> None:
        await turns.take()
        begun.append(number)

    waiting = [asyncio.ensure_future(request(n)) for n in range(4)]
    await asyncio.sleep(0)
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert begun == [0, 1, 3]


async def test_it_stops_counting_rounds_when_nobody_comes() -> None:
    turns = Turns()
    await turns.take()
    for _ in range(4):
        await asyncio.sleep(0)
    assert not turns._counting
