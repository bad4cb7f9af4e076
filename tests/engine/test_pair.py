"""The split on real engines: right answers, the same tokens, and no prefill on the decode side."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Sequence

import numpy as np
import pytest
from tests.engine.conftest import side

from twolane.analysis.attribution import parts
from twolane.engines import metrics
from twolane.engines.fleet import Fleet
from twolane.gates import needle
from twolane.load.driver import Question, Target, ask
from twolane.records import Request

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


async def asked(url: str, questions: Sequence[Question]) -> list[Request]:
    """Answers of `url` to `questions`, in order; every one must have succeeded."""
    port = urllib.parse.urlsplit(url).port
    assert port is not None
    requests: list[Request] = []
    result = await ask(
        questions,
        Target("127.0.0.1", port, "needle"),
        cell="test",
        record=requests.append,
        progress=lambda _: None,
    )
    assert result.problem is None
    assert [r.error for r in requests] == [None] * len(questions)
    return sorted(requests, key=lambda r: r.index)


def front(pair: Fleet) -> str:
    assert pair.front is not None
    return pair.front.url


async def by_source(pair: Fleet, role: str) -> dict[str, float]:
    values = await asyncio.to_thread(metrics.scrape, side(pair, role).launch.url)
    name = "vllm:prompt_tokens_by_source_total"
    return {
        source: values.get(f'{name}{{source="{source}"}}', 0.0)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }


@pytest.mark.parametrize("length", [500, 6000])
async def test_needles_are_found_through_the_split(pair: Fleet, length: int) -> None:
    prompts = needle.make(length, seed=11)
    questions = [
        Question(p.text, tokens=length, output=needle.ANSWER_TOKENS, index=i)
        for i, p in enumerate(prompts)
    ]
    answers = await asked(front(pair), questions)
    assert [
        needle.score(p, r.text or "").reason for p, r in zip(prompts, answers, strict=True)
    ] == [None] * 3


async def test_twenty_greedy_answers_equal_the_aggregated_engines(pair: Fleet) -> None:
    """50 to 8,000 tokens. The aggregated answers are the prefill engine's own, caches emptied."""
    lengths = [round(n) for n in np.geomspace(50, 8000, 20)]
    questions = [
        Question(_text(n), tokens=n, output=24, role="greedy", index=i)
        for i, n in enumerate(lengths)
    ]
    alone = await asked(side(pair, "prefill").launch.url, questions)
    assert await pair.reset_caches() == []
    split = await asked(front(pair), questions)
    assert [r.text for r in split] == [r.text for r in alone]
    # Of the longer ones the continuation is known, so that two equal wrong answers do not pass.
    long = [(n, r) for n, r in zip(lengths, split, strict=True) if n >= 100]
    assert all(r.text == needle.echo(n, seed=n).continuation(24) for n, r in long)


def _text(length: int) -> str:
    shortest = 60
    if length < shortest:
        return needle.filler(length, seed=length)
    return needle.echo(length, seed=length).text


async def test_the_decode_engine_computes_at_most_a_block_of_each_prompt(pair: Fleet) -> None:
    before = await by_source(pair, "decode")
    lengths = [300, 1000, 3000]
    questions = [
        Question(needle.filler(n, seed=900 + n), tokens=n, output=8, index=i)
        for i, n in enumerate(lengths)
    ]
    await asked(front(pair), questions)
    after = await by_source(pair, "decode")
    block = side(pair, "decode").block_size
    assert block is not None
    assert after["local_compute"] - before["local_compute"] <= block * len(lengths)
    moved = after["external_kv_transfer"] - before["external_kv_transfer"]
    assert moved >= sum(lengths) - block * len(lengths)
    values = await asyncio.to_thread(metrics.scrape, side(pair, "decode").launch.url)
    assert values.get("vllm:nixl_num_failed_transfers_total", 0.0) == 0.0


async def test_the_ledger_explains_the_first_token(pair: Fleet) -> None:
    length = 3000
    questions = [
        Question(needle.filler(length, seed=7000 + i), tokens=length, output=8, index=i)
        for i in range(5)
    ]
    requests = await asked(front(pair), questions)
    shares = []
    for request in requests:
        assert request.ledger is not None
        assert request.ledger.path == "split"
        assert request.ledger.handoff == "admitted"
        found = parts(request)
        assert found is not None
        assert request.first_ns is not None
        assert sum(found.whole().values()) == request.first_ns - request.send_ns
        shares.append(found.unexplained_share)
    assert sorted(shares)[2] < 0.10
