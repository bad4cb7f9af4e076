"""When an engine is given up: before its answer begins, and when it has fallen silent; never for
how long a stream lasts. And which engine, left by its client, tells P."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from twolane import clock
from twolane.proxy.body import without_transfer
from twolane.proxy.exchange import _will_hear_of_it
from twolane.proxy.handoff import MalformedHandoffError, read_params
from twolane.proxy.ledger import prompt_ids, read_answer
from twolane.proxy.leg import Collector, LegError, Relay
from twolane.proxy.opening import Opening
from twolane.proxy.refusal import from_error, of_form

SSE = [(b"content-type", b"text/event-stream")]
TOKEN = b'data: {"choices": [{"index": 0, "text": "x"}]}\n\n'


class NoReply:
    """A client that takes everything."""

    started = False
    paused = False

    def start(self, *_: Any) -> None:
        self.started = True

    def write(self, data: bytes) -> None:
        pass

    def flush(self) -> None:
        pass

    def raw(self) -> None:
        return None


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    stamps = [0]
    monkeypatch.setattr(clock, "now_ns", lambda: stamps[0])
    return stamps


def relay() -> Relay:
    return Relay(NoReply(), lambda: None, lambda: None)  # type: ignore[arg-type]


async def given_up(one: Relay) -> bool:
    """Whether it is now, with 10 s for a first byte and 5 s of silence."""
    one._check(10.0, 5.0)
    if not one.done.done():
        one._timer.cancel()
        return False
    assert isinstance(one.done.exception(), LegError)
    return True


@pytest.mark.parametrize("head", [False, True])  # which an engine may send before it computes
@pytest.mark.parametrize(("seconds", "lost"), [(9, False), (10, True)])
async def test_an_answer_may_take_its_time_to_begin(
    now: list[int], seconds: int, lost: bool, head: bool
) -> None:
    one = relay()
    if head:
        one.on_head(200, SSE)
    now[0] = seconds * clock.NS
    assert await given_up(one) == lost


async def test_a_stream_may_last_for_ever(now: list[int]) -> None:
    one = relay()
    one.on_head(200, SSE)
    for _ in range(1000):
        now[0] += 4 * clock.NS
        one.on_body(TOKEN, now[0])
        assert not await given_up(one)
    now[0] += 5 * clock.NS
    assert await given_up(one)
    await asyncio.sleep(0)


JSON = [(b"content-type", b"application/json")]
DRIBBLES = [(200, SSE, b"data: {}\n\n"), (200, SSE, b": keep-alive\n\n"), (200, SSE, b"data: ")]
DRIBBLES += [(200, JSON, b" "), (500, JSON, b" ")]


@pytest.mark.parametrize(("status", "headers", "piece"), DRIBBLES)
async def test_what_is_no_token_puts_the_end_off_by_nothing(
    now: list[int], status: int, headers: Any, piece: bytes
) -> None:
    one = relay()
    one.on_head(status, headers)
    for _ in range(9):
        now[0] += clock.NS
        one.on_body(piece, now[0])
        assert not await given_up(one)
    now[0] += clock.NS
    one.on_body(piece, now[0])
    assert await given_up(one)


async def test_an_answer_that_is_held_may_not_fall_silent(now: list[int]) -> None:
    one = relay()
    one.on_head(200, JSON)
    now[0] += 5 * clock.NS
    assert await given_up(one)


async def test_a_client_that_does_not_read_is_no_silence(now: list[int]) -> None:
    one = relay()
    one.on_head(200, SSE)
    one._reply.paused = True  # type: ignore[misc]
    now[0] += 1000 * clock.NS
    assert not await given_up(one)


SAID = [(b"", True), (b": keep-alive\n\n", True), (b"data: <p>\n\n", False)]


@pytest.mark.parametrize(("said", "hears"), SAID)
@pytest.mark.parametrize(("whole", "ours"), [(True, True), (False, True), (True, False)])
async def test_a_d_whose_client_leaves_tells_p_if_it_behaves_and_has_all_of_the_request(
    said: bytes, hears: bool, whole: bool, ours: bool
) -> None:
    one = relay()
    one.on_head(200, SSE)
    one.on_body(said, 0)
    connection: Any = SimpleNamespace(aborted_by_us=ours, cut_off=not whole)
    assert _will_hear_of_it(one, connection) == (hears and whole and ours)


@pytest.mark.parametrize(("status", "hears"), [(None, True), (200, True), (500, False)])
async def test_a_d_that_has_refused_tells_nothing_when_its_client_leaves(
    status: int | None, hears: bool
) -> None:
    one = relay()
    if status is not None:
        one.on_head(status, SSE)
    connection: Any = SimpleNamespace(aborted_by_us=True, cut_off=False)
    assert _will_hear_of_it(one, connection) == hears


@pytest.mark.parametrize(("event", "ends"), [(b'{"choices": [{}]}', 1), (b'{"choices": []}', 0)])
async def test_a_stream_ends_in_the_read_that_ends_it_where_it_served(
    event: bytes, ends: int
) -> None:
    one = relay()
    heard: list[bool] = []
    one.on_stream_end = lambda ended: heard.append(ended.done.done())
    one.on_head(200, SSE)
    one.on_body(b"data: " + event + b"\n\n", 0)
    one.on_end(0)
    assert heard == [False] * ends
    assert one.done.done()


async def test_who_waits_for_an_answer_may_leave_and_another_wait() -> None:
    sink = Collector()
    first = asyncio.create_task(sink.wait(60))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(sink.wait(60))
    await asyncio.sleep(0)
    sink.on_head(200, JSON)
    sink.on_end(7)
    assert (await second).end_ns == 7
    assert (await sink.wait(0)).end_ns == 7


async def test_an_answer_that_does_not_come_in_time_is_told_so() -> None:
    with pytest.raises(LegError, match="no answer within 0 s"):
        await Collector().wait(0)


async def test_a_defect_at_the_end_of_an_answer_is_heard_at_once() -> None:
    def broken() -> None:
        raise KeyError("defect")

    one = Relay(NoReply(), broken, lambda: None)  # type: ignore[arg-type]
    one.on_head(200, JSON)
    one.on_body(b'{"choices": [{}]}', 0)
    one.on_end(0)
    assert isinstance(one.done.exception(), KeyError)


NEST = b"[" * 100_000
READS: list[Callable[[bytes], object]] = [read_answer, prompt_ids, from_error, read_params]


@pytest.mark.parametrize("read", [*READS, of_form, without_transfer, Opening().feed])
@pytest.mark.parametrize("key", ["choices", "error", "kv_transfer_params", "usage"])
def test_nothing_an_engine_nests_gets_further_than_what_is_not_json(
    key: str, read: Callable[[bytes], object]
) -> None:
    for raw in (b'{"%b": %b' % (key.encode(), NEST), NEST):
        with contextlib.suppress(MalformedHandoffError):
            assert read(raw) in (None, False, raw)
