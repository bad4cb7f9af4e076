"""The fault table: what a client must see, and what the engines must end with."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from tests.proxy.rig import PATIENCE_S, Rig, completion, expected, rig, soon

from twolane import clock
from twolane.proxy.conformance.caller import Got
from twolane.proxy.fault_answer import Behaviour, Fault
from twolane.proxy.fault_engine import FaultEngine
from twolane.proxy.leg import Relay

STATUSES = [400, 401, 404, 422, 429, 500, 503]


def engines(r: Rig, leg: str) -> FaultEngine:
    return {"prefill": r.prefill, "decode": r.decode, "aggregated": r.aggregated}[leg][0]


def well_shaped(got: Got, status: int) -> None:
    assert (got.status, got.complete) == (status, True)
    error = got.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert b"127.0.0.1" not in got.body
    assert b"remote_" not in got.body


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_statuses_are_kept_and_handoffs_released(leg: str, stream: bool, status: int) -> None:
    async with rig() as r:
        engines(r, leg).behaviour = Behaviour(status=status, retry_after="7")
        got = await r.ask(completion(stream=stream))
        well_shaped(got, status)
        assert got.json["error"]["message"] == f"engine says {status}"
        assert got.headers["retry-after"] == "7"
        await r.settled()
        assert r.proxy.book.ends["released"] == (leg == "decode")


@pytest.mark.parametrize("status", [201, 204, 205, 206, 301, 304, 600])
@pytest.mark.parametrize("leg", ["prefill", "decode", "aggregated"])
async def test_a_status_that_is_neither_200_nor_an_error_is_a_bad_gateway(
    leg: str, status: int
) -> None:
    alone = leg == "aggregated"
    async with rig(0, 0, 1) if alone else rig() as r:
        engines(r, leg).behaviour = Behaviour(status=status)
        for stream in (False, True):
            well_shaped(await r.ask(completion(stream=stream)), 502)
        await r.settled()
        assert r.proxy.book.ends["released"] == 2 * (leg == "decode")


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_ours_where_the_engine_gave_none(status: int) -> None:
    async with rig() as r:
        r.p.behaviour = Behaviour(status=status)
        assert (await r.ask(completion())).headers["retry-after"] == "1"


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_an_error_that_is_not_openai_shaped_tells_only_its_status(leg: str) -> None:
    async with rig() as r:
        engines(r, leg).behaviour = Behaviour(status=500, fault="html")
        got = await r.ask(completion())
        well_shaped(got, 500)
        assert b"bad gateway" not in got.body


P_FAULTS: list[tuple[Fault, int]] = [
    ("reset", 502),
    ("truncate", 502),
    ("garbage", 502),
    ("no_handoff", 502),
    ("bad_handoff", 502),
    ("hang", 504),
]


@pytest.mark.parametrize(("fault", "status"), P_FAULTS)
async def test_a_broken_prefill_is_a_bad_gateway_and_decode_is_not_asked(
    fault: Fault, status: int
) -> None:
    limits: dict[str, Any] = {"answer_timeout_s": 0.05} if fault == "hang" else {}
    async with rig(strands=fault == "truncate", **limits) as r:
        r.p.behaviour = Behaviour(fault=fault)
        well_shaped(await r.ask(completion(stream=True)), status)
        assert not r.d.asked
        if fault == "hang":
            return
        r.p.behaviour = Behaviour()
        assert (await r.ask(completion())).text == expected()


D_FAULTS: list[tuple[Fault, int]] = [("reset", 502), ("truncate", 502), ("hang", 504)]


@pytest.mark.parametrize(("fault", "status"), D_FAULTS)
async def test_a_broken_decode_is_a_bad_gateway(fault: Fault, status: int) -> None:
    limits: dict[str, Any] = {"answer_timeout_s": 0.05} if fault == "hang" else {}
    async with rig(**limits) as r:
        r.d.behaviour = Behaviour(fault=fault)
        well_shaped(await r.ask(completion()), status)
        await r.settled()
        assert r.proxy.book.ends == {"admitted": 1, "released": 1}


TOKENLESS: list[tuple[Fault, int]] = [
    ("garbage", 502), ("deep", 502), ("junk", 502), ("noise", 502), ("hollow", 502), ("cut", 502),
    ("null_choice", 502),
    ("first_error", 500),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fault", "status"), TOKENLESS)
async def test_a_200_without_a_token_is_an_error_and_its_handoff_is_released(
    fault: Fault, status: int, stream: bool
) -> None:
    async with rig() as r:
        r.d.behaviour = Behaviour(fault=fault)
        got = await r.ask(completion(stream=stream))
        well_shaped(got, status)
        if fault == "first_error":
            assert got.json["error"]["message"] == "KV load failed"
        await r.settled()
        assert r.proxy.book.ends == {"admitted": 1, "released": 1}
        r.d.behaviour = Behaviour()
        assert (await r.ask(completion(stream=stream))).text == expected()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_d_that_dribbles_is_given_up_as_one_that_hangs(stream: bool) -> None:
    async with rig(answer_timeout_s=0.1) as r:
        r.d.behaviour = Behaviour(fault="dribble")
        well_shaped(await r.ask(completion(stream=stream)), 504)
        await r.settled()
        assert r.proxy.book.ends == {"admitted": 1, "released": 1}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("leg", "asked"), [("prefill", 0), ("decode", 1)])
async def test_an_answer_that_is_too_large_is_told_as_such_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, leg: str, asked: int, stream: bool
) -> None:
    async with rig(retry_share=1.0, strands=leg == "prefill") as r:
        engines(r, leg).pick = lambda: _small_from_here(monkeypatch)
        got = await r.ask(completion(stream=stream))
        well_shaped(got, 502)
        assert got.json["error"]["message"] == "the engine's answer is too large"
        monkeypatch.undo()
        await r.settled()
        assert (len(r.p.asked), len(r.d.asked)) == (1, asked)


def _small_from_here(monkeypatch: pytest.MonkeyPatch) -> Behaviour:
    monkeypatch.setattr("twolane.proxy.leg.MAX_ANSWER_BYTES", 10)
    return Behaviour()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fault", "status"), TOKENLESS)
async def test_a_200_without_a_token_of_one_engine_alone_is_an_error(
    fault: Fault, status: int, stream: bool
) -> None:
    async with rig(0, 0, aggregated=1) as r:
        r.aggregated[0].behaviour = Behaviour(fault=fault)
        well_shaped(await r.ask(completion(stream=stream)), status)


@pytest.mark.parametrize(("fault", "status"), TOKENLESS)
async def test_before_the_first_token_a_stream_falls_back_as_any_request(
    fault: Fault, status: int
) -> None:
    async with rig(aggregated=1, fallback_share=1.0) as r:
        r.d.behaviour = Behaviour(fault=fault)
        got = await r.ask(completion(stream=True))
        assert got.status == (500 if status == 500 else 200)  # 500 is an answer of the engine


@pytest.mark.parametrize(
    "more", [{"stream_options": {"include_usage": True}}, {"max_tokens": "abc"}]
)
async def test_a_refusal_of_a_requests_form_has_told_p_nothing(more: dict[str, Any]) -> None:
    async with rig() as r:
        well_shaped(await r.ask(completion() | more), 400)
        await r.settled()
        assert len(r.d.asked) == 1
        assert r.store.counts["rejected"] == 1  # by the release
        assert r.proxy.book.ends == {"admitted": 1, "released": 1}


async def test_a_warm_up_without_a_token_has_not_taken_the_blocks() -> None:
    async with rig(strands=True) as r:
        r.d._behaviour = lambda _: Behaviour(fault="junk")  # type: ignore
        book = r.proxy.book
        before = dict(book.ends)
        assert not await r.proxy._pairs()[0].warm()
        assert book.ends == before | {"expired": 1}


@pytest.mark.parametrize("aggregated", [0, 1])
async def test_a_stream_that_breaks_says_so_and_does_not_end_as_if_complete(
    aggregated: int,
) -> None:
    async with rig(1 - aggregated, 1 - aggregated, aggregated) as r:
        engines(r, "aggregated" if aggregated else "decode").behaviour = Behaviour(fault="truncate")
        got = await r.ask(completion(stream=True), x_twolane_ledger="1")
    assert (got.status, got.complete) == (200, False)
    *_, last = got.events
    assert json.loads(last)["error"]["code"] == 502
    assert b"[DONE]" not in got.body
    assert any(c.startswith(b"twolane-ledger ") for c in got.comments)


async def test_a_stream_that_falls_silent_is_ended() -> None:
    async with rig(idle_timeout_s=0.05) as r:
        r.d.behaviour = Behaviour(after_first=asyncio.Event())
        got = await r.ask(completion(stream=True))
        assert json.loads(got.events[-1])["error"]["code"] == 504
        assert not got.complete
        await soon(r.d.left)


async def test_an_error_event_of_the_engine_passes() -> None:
    async with rig() as r:
        r.d.behaviour = Behaviour(fault="stream_error")
        got = await r.ask(completion(stream=True))
        assert json.loads(got.events[-2])["error"]["message"] == "KV load failed"
        assert got.complete


async def test_without_a_decode_engine_no_prefill_is_wasted() -> None:
    async with rig() as r:
        r.d.stop()
        well_shaped(await r.ask(completion()), 503)  # found out by connecting: P was asked
        well_shaped(await r.ask(completion()), 503)
        assert len(r.p.asked) == 1
        assert (await r.get("/health")).status == 503
        await r.settled()
        assert r.proxy.book.ends["expired"] == 1
        r.store.held.clear()  # the lease


async def test_a_refused_decode_is_replaced_with_the_same_handoff() -> None:
    async with rig(decode=2) as r:
        r.decode[0].stop()
        for _ in range(3):
            assert (await r.ask(completion())).text == expected()
        assert len(r.decode[1].asked) == 3
        assert len(r.p.asked) == 3


async def test_a_refused_prefill_is_replaced() -> None:
    async with rig(prefill=2) as r:
        r.prefill[0].stop()
        for _ in range(3):
            assert (await r.ask(completion())).text == expected()
        assert len(r.prefill[1].asked) == 3


async def test_a_killed_engine_is_used_again_when_it_is_back() -> None:
    async with rig(health_down_every_s=0.01) as r:
        port = r.d.port
        r.d.stop()
        assert (await r.ask(completion())).status == 503
        await r.settled()
        r.store.held.clear()
        warmed = len(r.d.seen)
        await r.d.start(port)
        async with asyncio.timeout(10):
            while not r.proxy.fleet.ready("decode"):
                await asyncio.sleep(0.005)
        assert (await r.ask(completion())).text == expected()
        async with asyncio.timeout(10):
            while len(r.d.seen) < warmed + 2:  # the pair was warmed again
                await asyncio.sleep(0.005)


async def test_a_stale_handoff_is_not_read() -> None:
    async with rig(handoff_age_s=-1.0) as r:
        well_shaped(await r.ask(completion()), 503)
        assert not r.d.asked
        assert r.proxy.book.ends["expired"] == 1
        r.store.held.clear()


# ---------------------------------------------------------------------------------------- load


async def test_a_thousand_streams_at_once() -> None:
    async with rig() as r:
        gate = asyncio.Event()
        r.d.behaviour = Behaviour(after_first=gate)
        calls = [await r.call(completion(f"p{i}", 3, stream=True)) for i in range(1000)]
        for call in calls:
            await call.first()
        assert (r.d.in_flight, r.proxy.fleet.of("decode")[0].in_flight) == (1000, 1000)
        gate.set()
        for i, call in enumerate(calls):
            assert (await call.answer()).text == expected(f"p{i}", 3)


async def test_seven_megabytes() -> None:
    prompt = 'the quick brown fox \\ "\n é' * 280_000
    async with rig() as r:
        assert (await r.ask(completion(prompt))).text == expected(prompt)
        ids = list(range(1_000_000))
        got = await r.ask(completion() | {"prompt": ids})
        assert got.text == expected(json.dumps(ids))


async def test_a_slow_reader_pauses_the_engine() -> None:
    async with rig() as r:
        r.d.behaviour = Behaviour(tokens_at_once=10_000)
        call = await r.call(completion(tokens=1_000_000, stream=True))
        await call.first()
        call.connection.pause_reading()
        reply = next(iter(r.proxy.replies))
        async with asyncio.timeout(10):
            while not reply.paused:
                await asyncio.sleep(0.001)
        call.connection.resume_reading()
        assert (await call.answer()).text == expected(tokens=1_000_000)


async def test_who_reads_nothing_is_let_go_and_the_engine_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig() as r:
        r.d.behaviour = Behaviour(tokens_at_once=10_000)
        call = await r.call(completion(tokens=1_000_000, stream=True))
        await call.first()
        call.connection.pause_reading()
        (side,) = r.proxy.clients
        now = clock.now_ns()
        async with asyncio.timeout(PATIENCE_S):
            while len(r.proxy.clients):
                now += 20 * clock.NS
                monkeypatch.setattr(clock, "now_ns", lambda now=now: now)
                side._look()
                await asyncio.sleep(0.001)
        await r.settled()
        assert r.proxy.book.ends["admitted"] == 2  # and the warm-up's


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_a_slow_reader_had_paused_is_heard_by_the_next(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The last read of an answer may fill its client's buffer."""
    to_the_end = Relay.on_end

    def fills(relay: Relay, stamp_ns: int) -> None:
        relay._reply.pause()
        to_the_end(relay, stamp_ns)

    monkeypatch.setattr(Relay, "on_end", fills)
    async with rig() as r:
        for prompt in ("slow", "other", "another"):
            got = await r.ask(completion(prompt, stream=stream))
            assert got.text == expected(prompt)


async def test_reading_a_large_body_gives_others_their_turn() -> None:
    async with rig() as r:
        turns = 0
        done = False

        async def count() -> None:
            nonlocal turns
            while not done:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        await r.ask(completion("x" * 7_000_000))
        done = True
        await counting
        assert turns > 7_000_000 / 512 / 1024


async def test_a_release_that_fails_by_a_defect_is_counted_as_stranded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def defect(*_: object) -> bytes:
        raise RuntimeError("a defect")

    monkeypatch.setattr("twolane.proxy.body.Body.for_release", defect)
    async with rig(strands=True) as r:
        r.d.behaviour = Behaviour(status=500)
        await r.ask(completion())
        await r.settled()
        book = r.proxy.book
        assert (book.stranded, book.held, book.issued) == (1, 0, 2)
        book.ends["released"] += book.ends.pop("stranded")  # the rig accepts none


@pytest.mark.parametrize("seed", range(3))
async def test_clients_that_leave_at_any_moment_strand_nothing(seed: int) -> None:
    dice = random.Random(seed)
    async with rig(prefill=2, decode=2) as r:

        async def one(i: int) -> str | None:
            call = await r.call(completion(f"p{i}", 6, stream=dice.random() < 0.7))
            if dice.random() < 0.5:
                return (await call.answer()).text
            for _ in range(dice.randrange(60)):
                await asyncio.sleep(0)
            call.leave()
            return None

        texts = await asyncio.gather(*(one(i) for i in range(256)))
        for i, text in enumerate(texts):
            assert text in (None, expected(f"p{i}", 6))
        await r.settled()
        async with asyncio.timeout(10):
            while any(e.in_flight for e in (*r.prefill, *r.decode)):
                await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(3))
async def test_random_faults_under_load_strand_nothing(seed: int) -> None:
    dice = random.Random(seed)
    faults: list[Behaviour] = [
        Behaviour(),
        Behaviour(status=500),
        Behaviour(status=503),
        Behaviour(status=400),
        Behaviour(fault="reset"),
    ]
    async with rig(prefill=2, decode=2) as r:
        for engine in (*r.prefill, *r.decode):
            engine.pick = lambda: dice.choice(faults)

        async def one(i: int) -> None:
            got = await r.ask(completion(f"p{i}", 3, stream=dice.random() < 0.5))
            assert got.status in (200, 400, 500, 502, 503)
            if got.status == 200 and got.complete:
                assert got.text == expected(f"p{i}", 3)

        for _ in range(4):
            await asyncio.gather(*(one(i) for i in range(64)))
        await r.settled()
        assert r.proxy.book.issued > 20


async def test_a_defect_in_reading_ps_answer_is_a_500_and_no_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def defect(*_: object) -> None:
        raise RuntimeError("a defect")

    async with rig(strands=True) as r:
        monkeypatch.setattr("twolane.proxy.exchange.times_of", defect)
        well_shaped(await r.ask(completion()), 500)


async def test_a_connection_that_takes_long_does_not_take_the_engine_out() -> None:
    """It may be the proxy itself that is busy: thousands connect at once."""
    async with rig(connect_timeout_s=0.05) as r:
        engine = r.proxy.fleet.of("prefill")[0]
        engine.pool.acquire, engine.pool.take = never, lambda: None  # type: ignore
        assert (await r.ask(completion())).status == 503
        assert engine.usable
        del engine.pool.acquire, engine.pool.take


async def never() -> Any:
    await asyncio.Event().wait()
