from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.test_body import encode, load, objects

from twolane.proxy import scan
from twolane.proxy.body import Body
from twolane.proxy.refusal import RefusalError


def finish(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def found(raw: bytes) -> dict[str, bytes]:
    spans, _ = finish(scan.members(raw))
    return {key: raw[start:end] for key, (start, end) in spans.items()}


@given(objects, st.booleans(), st.sampled_from([None, 1]))
def test_the_scan_finds_what_a_decoder_finds(
    value: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    decoded = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    assert found(raw) == {key: bytes(part) for key, part in decoded.items()}


@given(objects, st.integers(2, 9))
def test_where_slices_end_does_not_matter(value: dict[str, Any], size: int) -> None:
    raw = encode(value)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLICE", "_PROBE", "_NEAR", "_STEPS"):
            patch.setattr(scan, name, size)
        small = found(raw)
    assert small == found(raw)


@given(st.lists(st.sampled_from(list(b'{}[]:," \\\n1eau')), max_size=30).map(bytes))
def test_whatever_it_accepts_from_a_jumble_frames_as_a_decoder_would(raw: bytes) -> None:
    try:
        accepted = found(raw)
    except scan.NotAnObjectError:
        accepted = None
    try:
        decoded = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # the engine refuses it as well
    assert accepted == {key: bytes(part) for key, part in decoded.items()}


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"[]", b"{", b"{} x", b'{"a"}', b'{"a":}', b'{"a":1,}', b'{"a":"x}', b'{"a":[1}',
     b'{"a":01}', b'{"a":tru}', b'{a:1}', b'{"a":1 "b":2}', b'{"a":"\\"}', b'{"\\x":1}'],
)  # fmt: skip
def test_what_is_no_object(raw: bytes) -> None:
    with pytest.raises(RefusalError, match="not a JSON object") as caught:
        finish(Body.parse_in_steps(raw))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "prompt",
    [
        "x" * 3_000_000,
        '\\"' * 700_000,
        "\\" * 1_500_000,
        list(range(400_000)),
        [["a"]] * 200_000,
    ],
    ids=["text", "quotes", "backslashes", "ids", "nested"],
)
def test_a_large_body_is_scanned_in_many_steps(prompt: object) -> None:
    raw = encode({"prompt": prompt, "stream": True})
    body, steps = finish(Body.parse_in_steps(raw))
    assert steps >= len(raw) / scan.SLICE - 1
    assert body.streams
    assert bytes(body.members["prompt"]) == encode(prompt)
    assert load(body.for_decode(b"{}"))["prompt"] == prompt
