"""The queue before the engines: limits, order, ageing, and every way out of it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.rig import Rig, completion, expected, rig, soon

from twolane import clock
from twolane.proxy.admission import Admission, Places, TokenMeter
from twolane.proxy.config import ProxyConfig, Upstream
from twolane.proxy.fault_answer import Behaviour
from twolane.proxy.fleet import Fleet
from twolane.proxy.refusal import RefusalError
from twolane.routing import urgency


class Clock:
    ns = 0

    def __call__(self) -> int:
        return self.ns


class Queue:
    """An admission of one P and one D, 4 bytes a token, and a log of who came in."""

    def __init__(self, **limits: object) -> None:
        self.clock = Clock()
        pair = (Upstream("prefill", "p", "127.0.0.1", 1), Upstream("decode", "d", "127.0.0.1", 2))
        config = ProxyConfig(prefill=pair[:1], decode=pair[1:], **limits)  # type: ignore[arg-type]
        self.fleet = Fleet(config)
        self.admission = Admission(config, self.fleet, TokenMeter(), self.clock)
        self.entered: list[int] = []

    async def enter(self, tokens: int) -> Places:
        places = await self.admission.enter(4 * tokens)
        self.entered.append(tokens)
        return places

    async def queue(self, *sizes: int) -> list[asyncio.Task[Places]]:
        tasks = [asyncio.create_task(self.enter(tokens)) for tokens in sizes]
        await turns()
        return tasks

    @property
    def idle(self) -> bool:
        p, d = self.fleet.engines
        return not (p.in_flight or d.in_flight or p.prompt_bytes or self.admission.waiting)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_limits_nobody_waits() -> None:
    queue = Queue()
    for _ in range(1000):
        await queue.enter(100_000)
    assert queue.admission.waiting == 0


async def test_short_prompts_go_first_and_one_over_the_limit_alone() -> None:
    queue = Queue(backlog_tokens=1000)
    first = await queue.enter(60_000)
    tasks = await queue.queue(900, 60_000, 10)
    assert queue.entered == [60_000]
    first.prefill.prompt_done()
    await turns()
    assert queue.entered == [60_000, 10, 900]
    for task in (tasks[2], tasks[0]):
        (await task).give_back()
    await turns()
    assert queue.entered[-1] == 60_000
    (await tasks[1]).give_back()
    first.give_back()
    assert queue.idle


async def test_a_long_prompt_gains_on_newcomers() -> None:
    queue = Queue(backlog_tokens=1000, ageing_tokens_s=5000.0)
    first = await queue.enter(1000)
    long, *_ = await queue.queue(60_000)
    queue.clock.ns = 13 * clock.NS
    await queue.queue(10)
    first.prefill.prompt_done()
    await turns()
    assert queue.entered == [1000, 60_000]
    (await long).prefill.prompt_done()
    await turns()
    assert queue.entered[-1] == 10


async def test_decode_room_is_a_limit_of_its_own() -> None:
    queue = Queue(decode_limit=1)
    first = await queue.enter(1)
    first.prefill.give_back()
    (second,) = await queue.queue(1)
    assert not second.done()
    first.decode.give_back()
    assert (await second).decode.engine.name == "d"


async def test_a_full_queue_is_429_with_the_time_the_backlog_takes() -> None:
    queue = Queue(backlog_tokens=1, queue_limit=1, ageing_tokens_s=100.0)
    await queue.enter(200)
    (task,) = await queue.queue(250)
    with pytest.raises(RefusalError) as caught:
        await queue.enter(1)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 5)
    task.cancel()


async def test_waiting_too_long_is_503() -> None:
    queue = Queue(decode_limit=1, queue_timeout_s=0.0)
    await queue.enter(1)
    with pytest.raises(RefusalError) as caught:
        await queue.enter(1)
    assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
    assert queue.admission.waiting == 0
    assert queue.admission.refused == 1


async def test_a_client_that_leaves_the_queue_lets_the_next_one_in() -> None:
    queue = Queue(backlog_tokens=100)
    first = await queue.enter(50)
    blocking, small = await queue.queue(60, 61)
    blocking.cancel()
    first.prefill.prompt_done()
    await turns()
    assert (await small).prefill.engine.name == "p"
    assert blocking.cancelled()


async def test_places_given_in_the_instant_of_leaving_go_back() -> None:
    queue = Queue(decode_limit=1)
    first = await queue.enter(1)
    (task,) = await queue.queue(1)
    first.give_back()  # the waiter has its places now, and does not know yet
    task.cancel()
    await turns()
    assert task.cancelled()
    assert queue.idle


async def test_waiters_hear_that_no_engine_is_left() -> None:
    queue = Queue(decode_limit=1)
    first = await queue.enter(1)
    (task,) = await queue.queue(1)
    queue.fleet.engines[1].usable = False
    first.give_back()
    with pytest.raises(RefusalError, match="no usable decode"):
        await task


@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=30))
def test_whatever_happens_all_places_come_back(story: list[tuple[int, bool]]) -> None:
    async def play() -> None:
        queue = Queue(backlog_tokens=2000, decode_limit=3)
        tasks = await queue.queue(*(tokens for tokens, _ in story))
        for task, (_, leaves) in zip(tasks, story, strict=True):
            if leaves:
                task.cancel()
        for task in sorted(tasks, key=lambda one: not one.done()):
            while not task.done():
                await turns()
                for other in tasks:
                    if other.done() and not other.cancelled():
                        other.result().give_back()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).give_back()
        assert queue.idle

    asyncio.run(play())


def test_the_meter_learns_what_a_token_weighs() -> None:
    meter = TokenMeter()
    for _ in range(200):
        meter.learn(700, 100)
    assert meter.tokens(7000) == pytest.approx(1000, rel=0.01)
    meter.learn(0, 5)
    meter.learn(5, 0)
    assert meter.bytes_a_token == pytest.approx(7, rel=0.01)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e4))
def test_urgency_orders_by_length_and_by_waiting(a: float, b: float, waited_s: float) -> None:
    assert (urgency(a, 0, 10) <= urgency(b, 0, 10)) == (a <= b)
    assert urgency(a, waited_s, 10) <= urgency(a, 0, 10)


# ------------------------------------------------------------------------ through the proxy


async def test_a_burst_keeps_to_the_decode_limit_and_all_are_served() -> None:
    async with rig(decode_limit=4) as r:
        calls = [await r.call(completion(f"p{i}")) for i in range(40)]
        for i, call in enumerate(calls):
            assert (await call.answer()).text == expected(f"p{i}")
        assert r.d.peak <= 4


async def test_who_leaves_the_queue_has_never_been_at_an_engine() -> None:
    async with rig(decode_limit=1) as r:
        await _hold_the_only_place(r)
        waiting = await r.call(completion("second"))
        await _until_waiting(r, 1)
        waiting.leave()
        await _until_waiting(r, 0)
        r.calls[0].leave()
        await r.settled()
        assert len(r.p.asked) == 1


async def test_a_full_queue_through_the_proxy() -> None:
    async with rig(decode_limit=1, queue_limit=0) as r:
        await _hold_the_only_place(r)
        got = await r.ask(completion("second"))
        assert (got.status, got.json["error"]["type"]) == (429, "RateLimitError")
        assert int(got.headers["retry-after"]) >= 1
        assert b"twolane_refused_total 1.0" in (await r.get("/metrics")).body
        r.calls[0].leave()


async def _hold_the_only_place(r: Rig) -> None:
    r.d.behaviour = Behaviour(after_first=asyncio.Event())
    first = await r.call(completion(stream=True))
    await first.first()
    await soon(r.d.began)


async def _until_waiting(r: Rig, count: int) -> None:
    async with asyncio.timeout(10):
        while r.proxy.admission.waiting != count:
            await asyncio.sleep(0.001)


async def test_short_prompts_go_straight_to_one_engine_and_are_counted() -> None:
    async with rig(split_from_tokens=100) as r:
        assert (await r.ask(completion())).text == expected()
        assert not r.p.asked
        long = "long " * 200
        assert (await r.ask(completion(long))).text == expected(long)
        assert len(r.p.asked) == 1
        assert b'twolane_not_split_total{why="short"} 1.0' in (await r.get("/metrics")).body


@pytest.mark.parametrize(
    ("given_header", "status"),
    [("Bearer k2", 200), ("bearer  k1 ", 200), ("Bearer k3", 401), ("k1", 401), ("", 401)],
)
async def test_keys_are_checked_where_there_are_some(given_header: str, status: int) -> None:
    async with rig(api_keys=("k1", "k2")) as r:
        headers = {"authorization": given_header} if given_header else {}
        got = await r.ask(completion(), **headers)
        assert got.status == status
        if status == 401:
            assert got.json["error"]["type"] == "AuthenticationError"
            assert not r.p.asked
        assert (await r.get("/health")).status == 200


async def test_a_short_prompt_passes_a_long_one_that_does_not_fit() -> None:
    queue = Queue(backlog_tokens=100)
    (first,) = await queue.queue(90)
    long, short = await queue.queue(90, 5)
    assert queue.entered == [90, 5]
    (await first).give_back()
    (await short).give_back()
    (await long).give_back()
    assert queue.entered == [90, 5, 90]
    assert queue.idle
