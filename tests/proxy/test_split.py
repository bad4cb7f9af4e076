"""The split on the happy path and at its edges, over real loopback sockets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.rig import completion, expected, rig

from twolane.proxy.body import LARGE
from twolane.proxy.conformance.caller import Got
from twolane.proxy.fault_engine import MODEL
from twolane.proxy.ledger import LedgerLine
from twolane.records import BadLine, Ledger, read_jsonl

CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4,
    "max_completion_tokens": 4,
}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_is_that_of_the_prompt_whose_blocks_p_held(stream: bool) -> None:
    async with rig() as r:
        got = await r.ask(completion(stream=stream))
        assert (got.status, got.text, got.complete) == (200, expected(), True)
        assert r.proxy.book.ends == {"admitted": 2}  # one warmed the pair


@pytest.mark.parametrize("stream", [False, True])
async def test_chat(stream: bool) -> None:
    async with rig() as r:
        got = await r.ask(CHAT | {"stream": stream}, "/v1/chat/completions")
        assert got.text == expected(json.dumps(CHAT["messages"]))
        (p,) = r.p.asked
        assert (p.body["max_tokens"], p.body["max_completion_tokens"]) == (1, 1)
        assert p.target == "/v1/chat/completions"


async def test_what_p_and_d_are_asked() -> None:
    asked = completion(
        tokens=8, stream=True, min_tokens=8, stream_options={"include_usage": True}, temperature=0
    )
    async with rig() as r:
        await r.ask(asked, "/v1/completions?x=1", x_request_id="id-7", authorization="Bearer k")
        (p,), (d,) = r.p.asked, r.d.asked
    kept = {"model": MODEL, "prompt": "hello", "temperature": 0, "max_tokens": 1}
    ask = {"do_remote_decode": True, "do_remote_prefill": False}
    assert p.body == kept | {"min_tokens": 1, "stream": False, "kv_transfer_params": ask}
    params = d.body.pop("kv_transfer_params")
    assert d.body == asked
    assert params["remote_prefill_cached_tokens"] == 0  # verbatim, what we do not read as well
    for seen in (p, d):
        assert seen.target == "/v1/completions?x=1"
        assert (seen.headers["x-request-id"], seen.headers["authorization"]) == ("id-7", "Bearer k")


async def test_a_stream_is_relayed_byte_for_byte() -> None:
    async with rig(aggregated=1) as r:
        through = await r.ask(completion(stream=True, stream_options={"include_usage": True}))
        call = await r.call(completion(stream=True, stream_options={"include_usage": True}))
        call.leave()
        alone = await r.ask(completion(stream=True, stream_options={"include_usage": True}, n=1))
        assert through.body == alone.body
        assert through.body.endswith(b"data: [DONE]\n\n")


async def test_transfer_parameters_pass_in_neither_direction() -> None:
    evil = {"do_remote_prefill": True}
    async with rig(aggregated=1) as r:
        body = completion(kv_transfer_params=evil, vllm_xargs={"kv_transfer_params": "x", "a": 1})
        got = await r.ask(body)
        assert b"kv_transfer_params" not in got.body
        assert b"remote_host" not in got.body
        (d,) = r.d.asked
        assert d.body["kv_transfer_params"]["remote_block_ids"]
        assert d.body["vllm_xargs"] == {"a": 1}
        await r.ask(body | {"n": 2})
        (alone,) = r.aggregated[0].asked
        assert "kv_transfer_params" not in alone.body
        assert alone.body["vllm_xargs"] == {"a": 1}


async def test_duplicate_and_escaped_keys_cannot_bring_parameters_in() -> None:
    raw = (
        b'{"model":"fake","prompt":"hello","max_tokens":9,"max_tokens":4,'
        b'"kv_transfer\\u005fparams":{"do_remote_prefill":true},"kv_transfer_params":{}}'
    )
    async with rig() as r:
        got = await r.ask(raw)
        assert got.text == expected()
        (d,) = r.d.asked
        assert d.body["kv_transfer_params"]["remote_block_ids"]
        await r.ask(raw[:-1] + b',"n":2}')
        assert "kv_transfer_params" not in r.d.asked[1].body


ALONE: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 2}),
    ("best_of", {"best_of": 3}),
    ("echo", {"echo": True}),
    ("prompt_logprobs", {"prompt_logprobs": 0}),
    ("prompt_list", {"prompt": ["a", "b"]}),
    ("prompt_list", {"prompt": [[1, 2], [3]]}),
    ("use_beam_search", {"use_beam_search": True}),
]


@pytest.mark.parametrize(("why", "more"), ALONE)
async def test_what_one_handoff_cannot_serve_goes_to_one_engine(
    why: str, more: dict[str, Any]
) -> None:
    async with rig() as r:
        got = await r.ask(completion() | more)
        assert got.status == 200
        assert (len(r.p.asked), len(r.d.asked)) == (0, 1)
        metrics = (await r.get("/metrics")).body.decode()
        assert f'twolane_not_split_total{{why="{why}"}} 1.0' in metrics


@pytest.mark.parametrize("prompt", ["x", [1, 2, 3]])
async def test_one_prompt_in_either_form_is_split(prompt: object) -> None:
    async with rig() as r:
        await r.ask(completion() | {"prompt": prompt, "n": 1, "echo": False})
        assert (len(r.p.asked), len(r.d.asked)) == (1, 1)


async def test_the_ledger_comes_with_the_stream_on_request_and_always_to_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ledger.jsonl"
    body = completion(stream=True, stream_options={"include_usage": True})
    async with rig(ledger=file) as r:
        got = await r.ask(body, x_twolane_ledger="1", x_request_id="a")
        plain = await r.ask(body, x_request_id="b")
        await r.ask(completion(), x_request_id="c")
        assert "x-twolane-ledger" not in r.p.asked[0].headers
    assert got.events[-1] == b"[DONE]"
    (comment,) = [c for c in got.comments if c.startswith(b"twolane-ledger ")]
    assert plain.events == got.events
    assert plain.comments == []
    bad: list[BadLine] = []
    lines = {line.id: line for line in read_jsonl(file, LedgerLine, bad)}
    assert bad == []
    assert set(lines) == {"a", "b", "c"}
    for line in lines.values():
        check_stamps(line.ledger)
        assert (line.status, line.outcome) == (200, "done")
    sent = json.loads(comment.removeprefix(b"twolane-ledger "))
    written = json.loads(file.read_bytes().splitlines()[0])["ledger"]
    assert sent | {"end_ns": 0} == written | {"end_ns": 0}


def check_stamps(ledger: Ledger) -> None:
    stamps = [
        ledger.received_ns,
        ledger.p_dispatch_ns,
        ledger.p_response_ns,
        ledger.d_dispatch_ns,
        ledger.d_first_ns,
        ledger.end_ns,
    ]
    known = [stamp for stamp in stamps if stamp is not None]
    assert len(known) == 6
    assert known == sorted(known)
    assert (ledger.p_engine, ledger.d_engine) == ("prefill-0", "decode-0")
    assert ledger.p_times is not None
    assert ledger.d_times is not None
    assert (ledger.p_times.queue_ms, ledger.d_times.first_token_ms) == (0.5, 1.5)
    assert (ledger.path, ledger.handoff, ledger.remote_tokens) == ("split", "admitted", 5)


async def test_copies_share_the_load_and_keep_a_ledger(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    async with rig(prefill=0, decode=0, aggregated=2, ledger=file) as r:
        gate = asyncio.Event()
        for engine in r.aggregated:
            engine.behaviour.first_byte = gate
        calls = [await r.call(completion(str(i))) for i in range(6)]
        for engine in r.aggregated:
            await engine.began.wait()
        gate.set()
        answers = [await call.answer() for call in calls]
        assert [a.text for a in answers] == [expected(str(i)) for i in range(6)]
        assert [len(engine.asked) for engine in r.aggregated] == [3, 3]
    ledgers = [line.ledger for line in read_jsonl(file, LedgerLine, [])]
    assert {ledger.path for ledger in ledgers} == {"direct"}
    assert {ledger.d_engine for ledger in ledgers} == {"aggregated-0", "aggregated-1"}


async def test_a_long_prompt_sends_the_short_ones_elsewhere() -> None:
    async with rig(prefill=0, decode=0, aggregated=2) as r:
        gate = asyncio.Event()
        for engine in r.aggregated:
            engine.behaviour.first_byte = gate
        calls = [await r.call(completion("long " * 10_000))]
        async with asyncio.timeout(10):
            await asyncio.wait(
                [asyncio.ensure_future(e.began.wait()) for e in r.aggregated],
                return_when=asyncio.FIRST_COMPLETED,
            )
        calls += [await r.call(completion("short")) for _ in range(5)]
        gate.set()
        for call in calls:
            await call.answer()
        assert sorted(len(engine.asked) for engine in r.aggregated) == [1, 5]


async def test_other_paths() -> None:
    async with rig() as r:
        assert (await r.get("/health")).status == 200
        assert (await r.get("/v1/models")).json["data"][0]["id"] == MODEL
        got = await r.ask({"input": "x", "kv_transfer_params": {}}, "/v1/embeddings")
        assert got.json == {"path": "/v1/embeddings", "size": len(b'{"input":"x"}')}
        for way in ("..", ".", "%2e%2e", ".%2E", "..%2f..", "x%5C..", "a%2f%2e"):
            for under in ("/v1/models/", "/v1/responses/"):
                assert (await r.get(f"{under}{way}/sleep")).status == 400
        assert (await r.get("/v1/models/org/a..b.c")).status == 200
        for path in ("/sleep", "/inference/v1/generate", "/v1/../metrics", "/", "//v1/models"):
            missing = await r.get(path)
            assert (missing.status, missing.json["error"]["type"]) == (404, "NotFoundError")


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"n":01}', b'"x"', b"\xff", b"{} {}"])
async def test_what_is_not_a_json_object_is_refused(raw: bytes) -> None:
    async with rig() as r:
        got = await r.ask(raw)
        assert (got.status, got.json["error"]["code"]) == (400, 400)
        assert not r.p.asked


NEST = b"[" * 100_000 + b"]" * 100_000
DEEP = {
    "whole": NEST,
    "unread": b'{"prompt":"x","any":%b}' % NEST,
    "in steps": b'{"any":"%b","n":%b}' % (b"x" * LARGE, NEST),
}


@pytest.mark.parametrize("raw", DEEP.values(), ids=DEEP)
async def test_what_is_nested_without_end_is_refused(raw: bytes) -> None:
    async with rig() as r:
        got = await r.ask(raw)
        assert (got.status, got.json["error"]["code"]) == (400, 400)
        assert not r.p.asked


async def test_what_only_an_engine_reads_of_a_large_body_an_engine_refuses() -> None:
    async with rig() as r:
        assert (await r.ask(b'{"any":"%b","deep":%b}' % (b"x" * LARGE, NEST))).status == 400


async def test_metrics_tell_the_handoffs_and_the_parts() -> None:
    async with rig() as r:
        await r.ask(completion(stream=True, stream_options={"include_usage": True}))
        text = (await r.get("/metrics")).body.decode()
    assert 'twolane_handoffs_total{state="issued"} 2.0' in text
    assert 'twolane_handoffs_total{state="admitted"} 2.0' in text
    assert 'twolane_handoffs_total{state="stranded"} 0.0' in text
    assert 'twolane_first_token_seconds_count{part="handoff"} 1.0' in text
    assert 'twolane_requests_total{path="/v1/completions",status="200"} 1.0' in text


async def test_one_connection_serves_many_requests_and_pipelined_ones_in_order() -> None:
    def one(prompt: str, close: bool = False) -> bytes:
        body = json.dumps(completion(prompt)).encode()
        end = b"Connection: close\r\n" if close else b""
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
        return head + end + b"\r\n" + body

    async with rig() as r:
        back = await r.raw(one("a") + one("b") + one("c", close=True))
    texts = [Got(200, {"content-type": "j"}, part).text for part in bodies(back)]
    assert texts == [expected("a"), expected("b"), expected("c")]


def bodies(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        head, _, rest = stream.partition(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        found.append(rest[:size])
        stream = rest[size:]
    return found


async def test_a_smuggled_request_reaches_nobody() -> None:
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    data = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
    )
    async with rig() as r:
        back = await r.raw(data)
        assert back.startswith(b"HTTP/1.1 400 ")
        assert back.count(b"content-length") == 1
        assert not r.p.asked
        assert not r.d.asked


async def test_tokenised_once_a_completion_gets_ps_ids() -> None:
    async with rig(tokenise_once=True) as r:
        assert (await r.ask(completion())).text == expected()
        (p,), (d,) = r.p.asked, r.d.asked
        assert p.body["return_token_ids"] is True
        assert d.body["prompt"] == [ord(letter) for letter in "hello"]
        assert "return_token_ids" not in d.body


async def test_tokenised_once_a_chat_gets_ps_ids_beside_its_messages() -> None:
    async with rig(tokenise_once=True) as r:
        got = await r.ask(CHAT, "/v1/chat/completions")
        assert got.status == 200
        assert b"prompt_token_ids" not in got.body or got.json["prompt_token_ids"] is None
        (d,) = r.d.asked
        assert d.body["messages"] == CHAT["messages"]
        ids = d.body["kv_transfer_params"]["prompt_token_ids"]
        assert "".join(map(chr, ids)) == json.dumps(CHAT["messages"])


async def test_ids_are_not_asked_for_a_prompt_of_ids() -> None:
    async with rig(tokenise_once=True) as r:
        await r.ask(completion() | {"prompt": [1, 2]})
        (p,), (d,) = r.p.asked, r.d.asked
        assert "return_token_ids" not in p.body
        assert d.body["prompt"] == [1, 2]
