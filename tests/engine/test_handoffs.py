"""Handoffs on a real pair, where one sequence and one token are not all that was asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.conftest import side
from tests.engine.leaving import PATIENCE_S, Scene, back_to_base, scene

from twolane.engines import metrics
from twolane.engines.fleet import Fleet
from twolane.gates import needle
from twolane.proxy.conformance.caller import Got, call

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

BLOCK = 128
LEASE_S = 30.0


async def asked(one: Scene, body: dict[str, Any]) -> Got:
    common = {"model": "needle", "top_k": 1}  # vLLM has one greedy answer at temperature 0
    return await (await call(one.port, common | body)).answer(PATIENCE_S)


async def computed(pair: Fleet) -> float:
    """Prompt tokens that D has computed itself."""
    values = await asyncio.to_thread(metrics.scrape, side(pair, "decode").launch.url)
    return values['vllm:prompt_tokens_by_source_total{source="local_compute"}']


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_to_one_prompt_are_right_and_d_computes_its_end_only(
    pair: Fleet, stream: bool
) -> None:
    echo = needle.echo(6000, seed=71 + stream)
    async with scene(pair) as one:
        before = await computed(pair)
        body = {"prompt": echo.text, "n": 3, "max_tokens": 24, "stream": stream}
        got = await asked(one, body)
        assert got.texts == [echo.continuation(24)] * 3
        assert await computed(pair) - before < 3 * BLOCK + 4
        assert await back_to_base(one, (0, 0), LEASE_S) < LEASE_S / 2


@pytest.mark.parametrize(
    "more", [{"stream_options": {"include_usage": True}}, {"max_tokens": "abc"}]
)
async def test_what_d_refuses_for_its_form_is_freed_at_p(pair: Fleet, more: dict[str, Any]) -> None:
    """P is asked without what D objects to, and D says nothing to P of it."""
    async with scene(pair) as one:
        got = await asked(one, {"prompt": needle.filler(3000, seed=len(more))} | more)
        assert (got.status, one.proxy.book.issued) == (400, 2)  # and the warm-up's
        assert await back_to_base(one, (0, 0), LEASE_S) < LEASE_S / 2
        assert one.proxy.book.ends["released"] == 1


async def test_what_p_sent_does_not_count_as_cached(pair: Fleet) -> None:
    """Users are billed by it: only what P had cached is, not what D got from P."""
    async with scene(pair) as one:
        body = {"prompt": needle.filler(1000, seed=77), "max_tokens": 2}
        first, second = [await asked(one, body) for _ in range(2)]
        cached = [
            g.json["usage"]["prompt_tokens_details"]["cached_tokens"] for g in (first, second)
        ]
        assert cached == [0, 1000 // BLOCK * BLOCK]


async def test_a_second_turn_goes_straight_to_d_which_computes_what_is_new(pair: Fleet) -> None:
    """The first turn's KV came from P; of the second D computes all that is new to it, and no
    more: the first answer, the new turn, and the unfinished block before them."""
    first = needle.filler(6000, seed=81)
    echo = needle.echo(300, seed=82)
    async with scene(pair, split_from_tokens=1000) as one:
        got = await asked(one, {"prompt": first, "max_tokens": 8})
        before = await computed(pair)
        turn = {"prompt": f"{first}{got.text} {echo.text}", "max_tokens": 24}
        again = await asked(one, turn)
        new = await computed(pair) - before
        assert one.proxy.ways.counts == {"split": 1, "held": 1}
        assert one.proxy.ways.beliefs == {"right": 1}
        usage = again.json["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == 6000 // BLOCK * BLOCK
        assert new == usage["prompt_tokens"] - cached < 300 + 8 + BLOCK + 2
        alone = await call(
            side(pair, "prefill").launch.port, turn | {"model": "needle", "top_k": 1}
        )
        assert again.text == (await alone.answer(PATIENCE_S)).text
        assert again.text == echo.continuation(24)
