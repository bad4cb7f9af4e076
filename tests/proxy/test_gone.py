"""Clients that leave: engines are freed, handoffs released, at every moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.proxy.rig import completion, rig, soon

from twolane.proxy.config import Upstream
from twolane.proxy.fault_answer import Behaviour
from twolane.proxy.fleet import Engine
from twolane.proxy.ledger import LedgerLine
from twolane.records import read_jsonl


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("moment", ["at once", "in prefill", "p finishing"])
async def test_client_gone_before_decode(moment: str, stream: bool) -> None:
    async with rig() as r:
        gate = asyncio.Event()
        r.p.behaviour = Behaviour(first_byte=gate)
        call = await r.call(completion(stream=stream))
        if moment != "at once":
            await soon(r.p.began)
        if moment == "p finishing":
            gate.set()
            await asyncio.sleep(0)
        call.leave()
        await r.settled()
        gate.set()
    assert moment == "p finishing" or not r.d.asked


async def test_client_gone_between_the_legs_releases_through_decode(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    async with rig(ledger=file) as r:
        call = await r.call(completion())
        held = asyncio.Event()
        pool = r.proxy.fleet.of("decode")[0].pool
        real, take = pool.acquire, pool.take

        async def slow_connect() -> object:
            held.set()
            await asyncio.Event().wait()
            return None

        pool.acquire, pool.take = slow_connect, lambda: None  # type: ignore
        await soon(held)
        assert r.proxy.book.held == 1
        call.leave()
        await asyncio.sleep(0)
        pool.acquire, pool.take = real, take  # type: ignore
        await r.settled()
        assert r.proxy.book.ends == {"admitted": 1, "released": 1}
        assert r.store.counts["rejected"] == 1
        assert not r.d.asked
    (line,) = read_jsonl(file, LedgerLine, [])
    assert (line.outcome, line.ledger.handoff) == ("client gone", "released")


async def test_a_prefill_that_was_finishing_is_heard_out_and_released() -> None:
    async with rig(hear_out_s=10.0) as r:
        r.p.behaviour = Behaviour(tail_s=0.02)
        call = await r.call(completion())
        await soon(r.p.began)
        call.leave()
        await r.settled()
        assert r.proxy.book.ends == {"admitted": 1, "released": 1}
        assert not r.d.asked


def test_ps_rate_is_that_of_prompts_about_as_long() -> None:
    p = Engine(Upstream("prefill", "p", "127.0.0.1", 1))
    assert p.tokens_a_second(5000) is None
    p.computed(255, seconds=1.0)  # too few to tell
    assert p.tokens_a_second(255) is None
    p.computed(300, seconds=0.03)
    assert p.tokens_a_second(6000) == p.tokens_a_second(10) == pytest.approx(10_000)
    p.computed(6000, seconds=2.0)
    assert [p.tokens_a_second(n) for n in (300, 5000, 60_000)] == pytest.approx([1e4, 3000, 3000])
    p.computed(6000, seconds=4.0)
    assert p.tokens_a_second(6000) == pytest.approx(2700)  # a fifth of the way


@pytest.mark.parametrize(("rate", "heard_out"), [(10, False), (1e9, True)])
async def test_a_prefill_with_longer_to_go_is_stopped_at_once(rate: float, heard_out: bool) -> None:
    """Some 500 tokens: 50 s at one rate, through in a moment at the other."""
    async with rig(hear_out_s=20.0) as r:
        r.proxy.fleet.of("prefill")[0].computed(1000, seconds=1000 / rate)
        gate = r.p.behaviour.first_byte = asyncio.Event()
        call = await r.call(completion("long " * 400))
        await soon(r.p.began)
        call.leave()
        if heard_out:
            for _ in range(20):
                await asyncio.sleep(0)
            assert not r.p.left.is_set()
            gate.set()
            await r.settled()
            assert r.proxy.book.ends == {"admitted": 1, "released": 1}
        else:
            await soon(r.p.left)
        assert not r.d.asked


@pytest.mark.parametrize("stream", [False, True])
async def test_client_gone_before_decode_answers(stream: bool) -> None:
    async with rig() as r:
        r.d.behaviour = Behaviour(first_byte=asyncio.Event())
        call = await r.call(completion(stream=stream))
        await soon(r.d.began)
        call.leave()
        await soon(r.d.left)
        await r.settled()
        assert r.proxy.book.ends == {"admitted": 2}


async def test_client_gone_in_the_stream() -> None:
    async with rig() as r:
        r.d.behaviour = Behaviour(after_first=asyncio.Event())
        call = await r.call(completion(stream=True))
        await call.first()
        call.leave()
        await soon(r.d.left)


async def test_stopping_the_proxy_releases_what_is_held() -> None:
    async with rig() as r:
        r.p.behaviour = Behaviour(first_byte=asyncio.Event())
        r.d.behaviour = Behaviour(after_first=asyncio.Event())
        calls = [await r.call(completion(stream=True)) for _ in range(3)]
        await soon(r.p.began)
        await r.proxy.close()
        for call in calls:
            assert not (await call.answer()).complete
