"""Ctrl-C once waits for the request under way, twice for nothing."""

from __future__ import annotations

import asyncio

from twolane.halt import Halt


async def test_the_first_wish_waits_for_the_request_under_way() -> None:
    halt = Halt()
    with halt.driving():
        assert halt.ask()
        waiting = asyncio.create_task(halt.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        halt.request_ended()
        await waiting


def test_the_second_wish_does_not_wait() -> None:
    halt = Halt()
    with halt.driving():
        assert halt.ask()
        assert not halt.ask()


def test_between_requests_there_is_nothing_to_wait_for() -> None:
    halt = Halt()
    with halt.driving():
        halt.request_ended()
    assert not halt.ask()
