"""Engines that push: one leg after the other, and both at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.proxy.rig import completion, expected, rig, soon

from twolane.proxy.fault_answer import Behaviour

AT_ONCE: dict[str, Any] = {"push": True, "connector": "push-at-once"}


@pytest.mark.parametrize("connector", ["auto", "push-at-once"])
@pytest.mark.parametrize("stream", [False, True])
async def test_answers_are_right(connector: str, stream: bool) -> None:
    async with rig(push=True, connector=connector) as r:
        for prompt in ("one", "two"):
            got = await r.ask(completion(prompt, stream=stream))
            assert (got.status, got.text) == (200, expected(prompt))
        assert r.proxy.book.ends["admitted"] == 3  # and the warm-up


async def test_requests_of_one_id_do_not_get_each_others_blocks() -> None:
    async with rig(**AT_ONCE) as r:
        gate = asyncio.Event()
        r.p.behaviour = Behaviour(first_byte=gate)
        calls = [await r.call(completion(p), x_request_id="same") for p in ("one", "two")]
        gate.set()
        assert [(await c.answer()).text for c in calls] == [expected("one"), expected("two")]
        assert all(s.headers["x-request-id"].startswith("same.") for s in r.p.asked)


async def test_at_once_means_that_d_is_asked_before_p_has_answered() -> None:
    async with rig(**AT_ONCE) as r:
        gate = asyncio.Event()
        r.p.behaviour = Behaviour(first_byte=gate)
        r.d.began.clear()
        call = await r.call(completion())
        await soon(r.d.began)
        assert r.p.in_flight == 1
        gate.set()
        assert (await call.answer()).text == expected()
        ids = [s.asked[-1].headers["x-request-id"] for s in (r.p, r.d)]
        assert ids[0] == ids[1]


async def test_one_after_the_other_a_refusal_of_d_is_released_by_taking_the_blocks() -> None:
    async with rig(push=True) as r:
        statuses = iter([Behaviour(status=400), Behaviour()])
        r.d.pick = lambda: next(statuses)
        assert (await r.ask(completion())).status == 400
        await r.settled()
        assert r.proxy.book.ends["released"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_seen_out(stream: bool) -> None:
    async with rig(**AT_ONCE) as r:
        gate = asyncio.Event()
        r.p.behaviour = Behaviour(first_byte=gate)
        r.d.behaviour = Behaviour(after_first=asyncio.Event())
        r.p.began.clear()
        r.d.began.clear()
        call = await r.call(completion(stream=stream))
        await soon(r.p.began)
        await soon(r.d.began)
        call.leave()
        await asyncio.sleep(0)
        assert r.p.aborted == 0
        gate.set()
        await r.settled()
        assert (r.p.aborted, r.p.in_flight) == (0, 0)


async def test_a_client_that_leaves_in_the_stream_ends_it() -> None:
    async with rig(**AT_ONCE) as r:
        r.d.behaviour = Behaviour(after_first=asyncio.Event())
        call = await r.call(completion(stream=True))
        await call.first()
        call.leave()
        await soon(r.d.left)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failing_prefill_ends_the_request(stream: bool) -> None:
    async with rig(strands=True, **AT_ONCE) as r:  # D's blocks wait for ever: why it is no default
        r.p.behaviour = Behaviour(status=500)
        got = await r.ask(completion(stream=stream))
        assert got.status == 500
        await soon(r.d.left)


async def test_a_refusing_decode_ends_the_request() -> None:
    async with rig(strands=True, **AT_ONCE) as r:
        r.p.behaviour = Behaviour(first_byte=asyncio.Event())
        r.d.behaviour = Behaviour(status=400)
        assert (await r.ask(completion())).status == 400
        await soon(r.p.left)


async def test_a_prefill_that_came_back_is_asked_alone_first() -> None:
    async with rig(**AT_ONCE) as r:
        assert r.proxy.fleet.of("prefill")[0].pushes
        r.proxy.fleet.of("prefill")[0].handed = None
        assert (await r.ask(completion())).text == expected()
        assert r.proxy.fleet.of("prefill")[0].pushes
