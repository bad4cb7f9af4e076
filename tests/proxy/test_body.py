from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.proxy.body import Body, without_transfer
from twolane.proxy.refusal import RefusalError
from twolane.wire.http1 import Payload

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=20), values, max_size=8)
PARAMS = b'{"remote_port": 7}'


def load(body: Payload) -> Any:
    whole = isinstance(body, bytes | bytearray | memoryview)
    return json.loads(bytes(body) if whole else b"".join(body))  # type: ignore[arg-type]


def encode(value: object, ascii_only: bool = True) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


@given(objects, st.booleans())
def test_decode_gets_the_body_and_the_parameters(body: dict[str, Any], ascii_only: bool) -> None:
    raw = encode(body, ascii_only)
    kept = {k: v for k, v in body.items() if k != "ec_transfer_params"}
    expected = kept | {"kv_transfer_params": {"remote_port": 7}}
    assert load(Body.parse(raw).for_decode(PARAMS)) == expected


@given(objects)
def test_prefill_gets_one_token_and_everything_else(body: dict[str, Any]) -> None:
    got = load(Body.parse(encode(body)).for_prefill())
    assert (got["max_tokens"], got["stream"]) == (1, False)
    assert got["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    ours = {"max_tokens", "stream", "stream_options", "kv_transfer_params", "ec_transfer_params"}
    ours |= {"max_completion_tokens", "min_tokens", "n"}
    assert {k: v for k, v in got.items() if k not in ours} == {
        k: v for k, v in body.items() if k not in ours
    }


@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    try:
        body = Body.parse(raw)
    except RefusalError as refusal:
        assert refusal.status == 400
    else:
        assert isinstance(load(body.plain()), dict)


@given(objects)
def test_the_last_of_duplicate_keys_wins_as_in_the_engine(body: dict[str, Any]) -> None:
    raw = b'{"stream": 1, "kv_transfer_params": {"a": 1}, ' + encode(body | {"stream": True})[1:]
    assert Body.parse(raw).streams
    assert load(Body.parse(raw).plain())["stream"] is True
    assert "kv_transfer_params" not in load(Body.parse(raw).plain())


@pytest.mark.parametrize(
    ("given_tokens", "asked"), [(0, 0), (1, 1), (8, 1), (None, None), ("x", "x"), (-1, -1)]
)
def test_min_tokens_never_exceeds_max_tokens(given_tokens: object, asked: object) -> None:
    body = Body.parse(encode({"min_tokens": given_tokens}))
    assert load(body.for_prefill())["min_tokens"] == asked


def test_values_keep_their_bytes() -> None:
    raw = b'{"a": 1.10, "b": [ 1,  2 ], "c": "\\u0041", "d": 12345678901234567890123}'
    put = bytes(Body.parse(raw).for_decode(PARAMS))  # type: ignore[arg-type]
    for value in (b"1.10", b"[ 1,  2 ]", b'"\\u0041"', b"12345678901234567890123"):
        assert value in put


def test_a_clean_body_is_not_put_together_again() -> None:
    raw = b'{ "model" : "m" }'
    assert Body.parse(raw).plain_or(raw) is raw
    for dirty in (
        b'{"kv_transfer_params":{}}',
        b'{"ec_transfer_params":{}}',
        b'{"vllm_xargs":{"kv_transfer_params":[1]}}',
    ):
        assert "transfer" not in json.dumps(load(Body.parse(dirty).plain_or(dirty)))


def test_a_release_asks_for_a_model_that_nobody_has() -> None:
    completion = load(Body.parse(b'{"model":"m","prompt":"x"}').for_release(PARAMS))
    chat = load(Body.parse(b'{"model":"m","messages":[]}').for_release(PARAMS))
    assert completion["model"] == chat["model"] == "twolane-releases-a-handoff"
    assert completion["prompt"]
    assert chat["messages"]
    assert completion["kv_transfer_params"] == {"remote_port": 7}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, None),
        ({"n": 1, "best_of": None, "echo": None, "use_beam_search": False}, None),
        ({"prompt": "a"}, None),
        ({"prompt": [1, 2]}, None),
        ({"prompt": []}, None),
        ({"prompt": ["a"]}, "prompt_list"),
        ({"prompt": [[1]]}, "prompt_list"),
        ({"n": 2}, "n"),
        ({"n": "2"}, "n"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
    ],
)
def test_what_one_handoff_cannot_serve(more: dict[str, Any], why: str | None) -> None:
    assert Body.parse(encode(more)).alone_because() == why


def test_answers_lose_their_transfer_keys_and_nothing_else() -> None:
    answer = b'{"id":"a","usage":{"x":1.50},"kv_transfer_params":{"remote_host":"h"},"m":null}'
    assert without_transfer(answer) == b'{"id":"a","usage":{"x":1.50},"m":null}'
    for same in (b'{"id": 1}', b"[1]", b"{", b'{"text":"\\"kv_transfer_params\\": 1"}'):
        assert without_transfer(same) is same
    assert without_transfer(b'["kv_transfer_params"]') == b'["kv_transfer_params"]'
