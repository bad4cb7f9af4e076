"""Several answers to one prompt: over one handoff where that is worth it, each of them right."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.proxy.rig import Rig, completion, expected, rig, soon

from twolane.proxy.body import Body
from twolane.proxy.fault_answer import Behaviour, Fault
from twolane.proxy.scrape import Reading, read
from twolane.wire.http1 import ClientConnection

LONG = "long " * 1200  # over a thousand tokens


def asked(**more: Any) -> dict[str, Any]:
    return completion(LONG, n=3, **more)


def ends(r: Rig) -> dict[str, int]:
    """Of handoffs but the warm-up's."""
    counts: dict[str, int] = dict(r.proxy.book.ends.items())
    return counts | {"admitted": counts["admitted"] - 1}


async def test_d_reads_the_blocks_once_and_is_then_asked_for_all() -> None:
    async with rig() as r:
        got = await r.ask(asked(), x_request_id="id-3")
        assert got.texts == [expected(LONG)] * 3
        (p,), (reads, answers) = r.p.asked, r.d.asked
        assert "n" not in p.body
        assert "n" not in reads.body
        assert (reads.body["max_tokens"], reads.body["stream"]) == (1, False)
        assert reads.body["kv_transfer_params"]["remote_block_ids"]
        assert answers.body == asked()
        assert {s.headers["x-request-id"] for s in (p, reads, answers)} == {"id-3"}
        assert r.store.counts["pulled"] == 2  # a warm-up's as well
        assert ends(r) == {"admitted": 1}
        metrics = (await r.get("/metrics")).body
        assert b"twolane_fanned_out_total 1.0" in metrics
        assert b'twolane_not_split_total{why="n"}' not in metrics


async def test_streamed() -> None:
    async with rig() as r:
        got = await r.ask(asked(stream=True))
        assert (got.text, got.complete) == (expected(LONG), True)


async def test_where_p_pushes() -> None:
    async with rig(push=True, connector="push-at-once") as r:
        assert (await r.ask(asked())).texts == [expected(LONG)] * 3


ELSEWHERE: list[dict[str, Any]] = [
    {"prompt": "short", "n": 3},
    {"prompt": LONG, "n": 3, "echo": True},
    {"prompt": [LONG, LONG], "n": 3},
    {"prompt": LONG, "n": "3"},
]


@pytest.mark.parametrize("more", ELSEWHERE)
async def test_what_one_engine_serves_as_before(more: dict[str, Any]) -> None:
    async with rig() as r:
        assert (await r.ask(completion() | more)).status == 200
        assert (len(r.p.asked), len(r.d.asked)) == (0, 1)


async def test_an_aggregated_engine_takes_them_where_there_is_one() -> None:
    async with rig(aggregated=1) as r:
        assert (await r.ask(asked())).texts == [expected(LONG)] * 3
        assert (len(r.p.asked), len(r.aggregated[0].asked)) == (0, 1)


async def test_a_d_without_a_prefix_cache_computes_the_prompt_once_and_not_twice() -> None:
    async with rig() as r:
        r.proxy.fleet.of("decode")[0].reading = Reading(caches_prefixes=False)
        assert (await r.ask(asked())).texts == [expected(LONG)] * 3
        assert (len(r.p.asked), len(r.d.asked)) == (0, 1)


def test_vllm_says_whether_prefixes_are_cached() -> None:
    line = b'vllm:cache_config_info{enable_prefix_caching="%b",num_gpu_blocks="4"} 1.0\n'
    assert read(line % b"True").caches_prefixes
    assert not read(line % b"False").caches_prefixes
    assert read(b"").caches_prefixes


FAILS: list[tuple[Behaviour, int]] = [
    *((Behaviour(status=status), status) for status in (400, 429, 500)),
    *(
        (Behaviour(fault=fault), 502)
        for fault in ("reset", "truncate", "junk", "deep", "hollow", "cut")
    ),
]


@pytest.mark.parametrize(("behaviour", "status"), FAILS)
async def test_a_d_that_fails_to_read_releases(behaviour: Behaviour, status: int) -> None:
    async with rig() as r:
        r.d.behaviour = behaviour
        got = await r.ask(asked())
        assert (got.status, bool(got.json["error"]["message"])) == (status, True)
        assert "Bad Gateway" not in got.json["error"]["message"]
        assert len(r.d.asked) == 1
        await r.settled()
        assert ends(r) == {"admitted": 0, "released": 1}


async def test_a_200_of_the_reading_without_a_token_is_told_as_such() -> None:
    async with rig() as r:
        r.d.behaviour = Behaviour(fault="junk")
        error = (await r.ask(asked())).json["error"]
        assert error["message"] == "the engine answered without a token"
        r.d.behaviour = Behaviour(fault="first_error")
        got = await r.ask(asked())
        assert (got.status, got.json["error"]["message"]) == (500, "KV load failed")


@pytest.mark.parametrize("n", [1, 3])
async def test_who_leaves_a_d_that_has_begun_to_refuse_has_the_handoff_released(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    refused = asyncio.Event()
    was = ClientConnection.on_headers_complete

    def headed(connection: ClientConnection) -> None:
        was(connection)
        if connection._parser.get_status_code() == 503:
            refused.set()

    monkeypatch.setattr(ClientConnection, "on_headers_complete", headed)
    async with rig() as r:
        r.d.behaviour = Behaviour(fault="half_refusal")
        call = await r.call(completion(LONG, n=n))
        await soon(refused)
        call.leave()
        await r.settled()
        assert ends(r) == {"admitted": 0, "released": 1}


@pytest.mark.parametrize("fault", ["reset", "junk", "deep"])
async def test_a_d_that_fails_after_reading_has_read(fault: Fault) -> None:
    async with rig() as r:
        behaviours = iter([Behaviour(), Behaviour(fault=fault)])
        r.d.pick = lambda: next(behaviours)
        assert (await r.ask(asked())).status == 502
        assert ends(r) == {"admitted": 1}


@pytest.mark.parametrize("reading", [True, False])
async def test_a_client_that_leaves_frees_both(reading: bool) -> None:
    async with rig() as r:
        slow = Behaviour(first_byte=asyncio.Event())
        behaviours = iter([slow] if reading else [Behaviour(), slow])
        r.d.pick = lambda: next(behaviours)
        call = await r.call(asked())
        await soon(r.d.began)
        while len(r.d.asked) < 2 - reading:
            await asyncio.sleep(0)
        call.leave()
        await soon(r.d.left)
        await r.settled()
        assert ends(r) == {"admitted": 1}
        assert r.store.counts["late"] == 0  # and nobody told P twice


async def test_a_stale_handoff_is_not_read() -> None:
    async with rig(handoff_age_s=-1.0) as r:
        assert (await r.ask(asked())).status == 503
        assert not r.d.asked
        assert ends(r) == {"admitted": 0, "expired": 1}
        r.store.held.clear()


@pytest.mark.parametrize("n", [None, 0, 1, 1.5, "2", True])
def test_only_a_whole_number_above_one_fans_out(n: Any) -> None:
    assert not Body.parse(b'{"prompt":"a","n":%b}' % json.dumps(n).encode()).fans_out
