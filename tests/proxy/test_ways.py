"""Straight to the D that holds the beginning, else split; a wrong belief costs time only."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.rig import Rig, completion, expected, rig, soon

from twolane.proxy.fault_answer import Behaviour
from twolane.proxy.fault_engine import FaultEngine
from twolane.proxy.scrape import Reading

FIRST = "".join(f"{i:08d}" for i in range(1000))  # 8,000 bytes: about 2,000 tokens
SECOND = FIRST + "an answer of D" + "the next question" * 40
FROM = 600


def caching(r: Rig) -> Rig:
    for engine in r.decode:
        engine.cache = []
    return r


def legs(r: Rig) -> tuple[int, list[int]]:
    return len(r.p.asked), [len(d.asked) for d in r.decode]


async def right(r: Rig, prompt: str, **more: Any) -> None:
    got = await r.ask(completion(prompt, **more))
    assert (got.status, got.text) == (200, expected(prompt))


async def counted(r: Rig, sample: str) -> float:
    lines = (await r.get("/metrics")).body.decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(sample + " ")), 0.0)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_second_turn_goes_straight_to_the_d_of_the_first(
    stream: bool, tmp_path: Path
) -> None:
    more = {"stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
    async with rig(decode=3, split_from_tokens=FROM, ledger=tmp_path / "ledger") as r:
        caching(r)
        await right(r, FIRST, **more)
        _, at_first = legs(r)
        await right(r, SECOND, **more)
        assert legs(r) == (1, [2 * asked for asked in at_first])
        (d,) = [d for d in r.decode if d.asked]
        assert "kv_transfer_params" not in d.asked[1].body
        assert await counted(r, "twolane_split_total") == 1
        assert await counted(r, 'twolane_not_split_total{why="held"}') == 1
        assert await counted(r, 'twolane_beliefs_total{outcome="right"}') == 1
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [line["ledger"]["path"] for line in lines] == ["split", "direct"]
    assert [line.get("alone") for line in lines] == [None, "held"]
    assert 1800 < lines[1]["believed_tokens"] <= 2000
    assert lines[1]["ledger"]["d_times"]["cached_tokens"] == len(FIRST)


async def test_messages_too() -> None:
    first = [{"role": "user", "content": FIRST}]
    second = [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "so?"}]
    async with rig(split_from_tokens=FROM) as r:
        caching(r)
        for messages in (first, second):
            body = {"model": "fake", "messages": messages, "max_tokens": 4}
            got = await r.ask(body, path="/v1/chat/completions")
            assert got.text == expected(json.dumps(messages))
        assert legs(r) == (1, [2])


async def test_what_is_new_is_compared_with_the_threshold_and_not_the_whole() -> None:
    async with rig(split_from_tokens=FROM) as r:
        caching(r)
        await right(r, FIRST)
        await right(r, FIRST + "much that is new " * 200)
        await right(r, "z" * 5000)
        assert legs(r) == (3, [3])


async def test_a_conversation_that_began_short_is_known() -> None:
    async with rig(split_from_tokens=FROM) as r:
        caching(r)
        await right(r, FIRST[:2000])
        await right(r, FIRST[:3500])
        assert legs(r) == (0, [2])
        assert await counted(r, 'twolane_not_split_total{why="short"}') == 1


async def test_without_a_threshold_nothing_is_remembered() -> None:
    async with rig() as r:
        await right(r, FIRST)
        await right(r, SECOND)
        assert legs(r) == (2, [2])
        assert not r.proxy.fleet.of("decode")[0].prefixes


async def test_a_reload_without_a_threshold_forgets() -> None:
    async with rig(split_from_tokens=FROM) as r:
        await right(r, FIRST)
        assert r.proxy.fleet.of("decode")[0].prefixes
        await r.proxy.reload(replace(r.proxy.config, split_from_tokens=0))
        assert not r.proxy.fleet.of("decode")[0].prefixes


async def test_an_emptied_cache_is_found_out_and_the_answer_is_right() -> None:
    async with rig(split_from_tokens=FROM) as r:
        caching(r)
        for prompt in (FIRST, "other " * 1000):
            await right(r, prompt)
        r.d.cache = []
        await right(r, "other " * 1000 + "and more")
        assert await counted(r, 'twolane_beliefs_total{outcome="wrong"}') == 1
        await right(r, SECOND)  # older than what was lost, so lost as well
        assert legs(r) == (3, [4])


async def test_a_d_that_keeps_nothing_is_believed_ever_less() -> None:
    async with rig(split_from_tokens=FROM) as r:
        for i in range(40):
            r.d.cache = []
            await right(r, FIRST + "more" * i)
        assert await counted(r, 'twolane_beliefs_total{outcome="wrong"}') <= 5
        assert len(r.p.asked) >= 35


async def test_a_d_that_does_not_report_is_believed() -> None:
    async with rig(split_from_tokens=FROM) as r:
        await right(r, FIRST, stream=True)
        await right(r, SECOND, stream=True)  # no usage at its end
        assert legs(r) == (1, [2])
        assert await counted(r, 'twolane_beliefs_total{outcome="unreported"}') == 1


async def test_a_d_without_a_prefix_cache_holds_nothing() -> None:
    async with rig(split_from_tokens=FROM) as r:
        r.proxy.fleet.of("decode")[0].reading = Reading(caches_prefixes=False)
        await right(r, FIRST)
        await right(r, SECOND)
        assert legs(r) == (2, [2])


async def test_what_a_small_d_has_no_room_for_is_not_believed() -> None:
    async with rig(split_from_tokens=FROM) as r:
        r.proxy.fleet.of("decode")[0].reading = Reading(kv_tokens=500)
        await right(r, FIRST)
        await right(r, SECOND)
        assert legs(r) == (2, [2])


async def test_a_d_that_is_gone_and_another_process_hold_nothing() -> None:
    async with rig(decode=2, split_from_tokens=FROM, health_down_every_s=0.01) as r:
        caching(r)
        await right(r, FIRST)
        (held,) = [d for d in r.decode if d.asked]
        held.stop()
        await right(r, SECOND)  # its connection is refused: split, over the other
        assert len(r.p.asked) == 2
        engine = r.proxy.fleet.of("decode")[r.decode.index(held)]
        assert (engine.usable, len(engine.prefixes)) == (False, 0)
        assert await counted(r, 'twolane_not_split_total{why="held"}') <= 1


async def test_a_fallen_counter_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(split_from_tokens=FROM) as r:
        await right(r, FIRST)
        engine = r.proxy.fleet.of("decode")[0]
        readings = iter([Reading(computed=10), Reading(computed=11), Reading(computed=3)])
        monkeypatch.setattr("twolane.proxy.fleet.read_metrics", lambda _: next(readings))
        known = []
        for _ in range(3):
            await engine.scrape(1.0)
            known.append(len(engine.prefixes) > 0)
        assert known == [True, True, False]


@pytest.mark.parametrize(("share", "status", "prefills"), [(0.0, 502, 1), (1.0, 200, 2)])
async def test_a_d_that_breaks_off_is_split_within_the_budget(
    share: float, status: int, prefills: int
) -> None:
    async with rig(split_from_tokens=FROM, retry_share=share) as r:
        caching(r)
        await right(r, FIRST)
        behaviours = iter([Behaviour(fault="reset"), Behaviour()])
        r.d.pick = lambda: next(behaviours)
        got = await r.ask(completion(SECOND))
        assert (got.status, len(r.p.asked)) == (status, prefills)


async def test_an_error_of_d_keeps_its_status() -> None:
    async with rig(split_from_tokens=FROM) as r:
        caching(r)
        await right(r, FIRST)
        r.d.behaviour = Behaviour(status=400)
        assert (await r.ask(completion(SECOND))).status == 400
        assert legs(r) == (1, [2])


async def test_a_client_that_leaves_leaves_no_place_taken() -> None:
    async with rig(split_from_tokens=FROM) as r:
        await right(r, FIRST)
        r.d.behaviour = Behaviour(first_byte=asyncio.Event())
        r.d.began.clear()
        call = await r.call(completion(SECOND))
        await soon(r.d.began)
        call.leave()
        await soon(r.d.left)


def busy(r: Rig, engine: FaultEngine, count: int) -> list[Any]:
    one = r.proxy.fleet.of("decode")[r.decode.index(engine)]
    return [r.proxy.fleet.place_on(one, 0) for _ in range(count)]


async def test_a_crowded_d_shares_what_it_holds() -> None:
    async with rig(decode=2, split_from_tokens=FROM) as r:
        caching(r)
        await right(r, FIRST)
        (first,) = [d for d in r.decode if d.asked]
        (other,) = [d for d in r.decode if d is not first]
        places = busy(r, first, 5)
        await right(r, SECOND)
        assert (len(r.p.asked), len(other.asked)) == (2, 1)
        await right(r, SECOND + "?")  # now the other holds it, too
        assert (len(r.p.asked), len(other.asked)) == (2, 2)
        for place in places:
            place.give_back()


async def test_limits_of_d_hold_here_too() -> None:
    async with rig(decode=2, split_from_tokens=FROM, decode_limit=2) as r:
        caching(r)
        await right(r, FIRST)
        (first,) = [d for d in r.decode if d.asked]
        places = busy(r, first, 2)
        await right(r, SECOND)
        assert len(r.p.asked) == 2
        for place in places:
            place.give_back()


async def test_with_an_aggregated_engine_a_prefix_is_still_d_s() -> None:
    async with rig(aggregated=1, split_from_tokens=FROM) as r:
        caching(r)
        await right(r, FIRST)
        await right(r, SECOND)
        await right(r, "short")
        assert (legs(r), len(r.aggregated[0].asked)) == ((1, [2]), 1)


async def test_both_legs_at_once_too() -> None:
    async with rig(push=True, connector="push-at-once", split_from_tokens=FROM) as r:
        caching(r)
        await right(r, FIRST)
        await r.settled()  # P's leg may end after the answer
        await right(r, SECOND)
        assert legs(r) == (1, [2])


async def test_what_d_was_given_to_compute_raises_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(split_from_tokens=FROM) as r:
        engine = r.proxy.fleet.of("decode")[0]
        computed = iter([0, 3000, 6000, 9000])
        monkeypatch.setattr(
            "twolane.proxy.fleet.read_metrics", lambda _: Reading(computed=next(computed))
        )
        alarms = []
        await engine.scrape(1.0)
        for prompts in (2, 0, 0):  # those of the first round are computed in the second
            for _ in range(prompts):
                await right(r, "short " * 350)
            await engine.scrape(1.0)
            alarms.append(engine.alarms["decode_computes_prompts"])
        assert alarms == [0, 0, 1]
