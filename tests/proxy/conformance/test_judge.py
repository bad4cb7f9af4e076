"""Each complaint can be provoked, and what is right provokes none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twolane.proxy.conformance.caller import Got, split_answers
from twolane.proxy.conformance.judge import Ended, complaints, saw
from twolane.proxy.conformance.stage import MARK, expected
from twolane.proxy.conformance.table import Ends, Row, Sees, rows

CLEAN: dict[str, int] = {
    "held": 0, "working": 0, "late_reads": 0, "crashed": 0, "decode_asked": 0, "decode_peak": 0,
}  # fmt: skip


def ended(**more: Any) -> Ended:
    return Ended(**(CLEAN | more))


def said(body: object, status: int = 200, *, complete: bool = True, **headers: str) -> Got:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Got(status, {"content-type": "application/json"} | named, raw, complete)


def wrong(row: Row, got: list[Got], end: Ended | None = None) -> list[str]:
    return list(complaints(row, got, end or ended(), [MARK]))


RIGHT = said({"choices": [{"index": 0, "text": expected(MARK)}]})
ERROR = {"error": {"message": "no", "type": "x", "param": None, "code": 503}}
ANSWER = Row("r", Sees("answer"))
REFUSED = Row("r", Sees("refusal", (503,), retry_after=True))
BROKEN = Row("r", Sees("broken"), stream=True)
STREAM: dict[str, Any] = {"content_type": "text/event-stream"}


def test_what_is_right_has_no_complaint() -> None:
    assert wrong(ANSWER, [RIGHT]) == []
    assert wrong(REFUSED, [said(ERROR, 503, retry_after="1")]) == []
    assert wrong(BROKEN, [said(b'data: {"error": {}}\n\n', **STREAM)]) == []
    assert wrong(BROKEN, [said(b'data: {"choices": []}\n\n', complete=False, **STREAM)]) == []


@pytest.mark.parametrize(
    ("row", "got", "complaint"),
    [
        (ANSWER, said({"choices": [{"text": "other"}]}), "another text"),
        (ANSWER, said(b"<<>>"), "another text"),
        (ANSWER, said(ERROR, 503), "503 instead of 200"),
        (ANSWER, said(RIGHT.body, complete=False), "broke off"),
        (REFUSED, said(ERROR, 502, retry_after="1"), "502 instead of 503"),
        (REFUSED, RIGHT, "200 instead of 503"),
        (REFUSED, Got(), "a closed connection instead of 503"),
        (REFUSED, said({"detail": "no"}, 503, retry_after="1"), "not OpenAI-shaped"),
        (REFUSED, said(ERROR, 503), "no Retry-After"),
        (BROKEN, said(b"data: [DONE]\n\n", **STREAM), "passes for a complete one"),
        (ANSWER, said(RIGHT.body + b"127.0.0.1"), "told 127.0.0.1"),
    ],
)
def test_what_a_client_must_not_see(row: Row, got: Got, complaint: str) -> None:
    assert any(complaint in one for one in wrong(row, [got])), wrong(row, [got])


@pytest.mark.parametrize(
    ("row", "end", "complaint"),
    [
        (ANSWER, ended(held=1), "1 handoffs stranded"),
        (ANSWER, ended(working=2), "still work on 2"),
        (ANSWER, ended(late_reads=1), "read twice"),
        (ANSWER, ended(crashed=1), "killed a real decode engine"),
        (Row("r", Sees("answer"), Ends(decode_asked=0)), ended(decode_asked=1), "asked 1 times"),
        (Row("r", Sees("answer"), Ends(together=9)), ended(decode_peak=8), "8 of 9"),
        (Row("r", Sees("answer"), act="headers"), ended(), "P did not get authorization"),
        (Row("r", Sees("answer"), act="smuggled"), ended(served=2), "hidden request"),
    ],
)
def test_what_engines_must_not_end_with(row: Row, end: Ended, complaint: str) -> None:
    assert any(complaint in one for one in wrong(row, [RIGHT], end))


def test_one_leased_block_is_allowed_where_the_row_says_so() -> None:
    assert not wrong(Row("r", Sees("answer"), Ends(leased=1)), [RIGHT], ended(held=1))


def test_what_was_seen_is_told_briefly() -> None:
    cut = said(b"", complete=False)
    assert saw([RIGHT, RIGHT, cut]) == "2 x 200, 200, broke off"
    assert saw([Got(left=True)]) == "left unanswered"
    assert saw([]) == "the connection was closed"


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names) > 60


def test_answers_in_a_row_are_parted() -> None:
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"
    two = b"HTTP/1.1 400 X\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nc\r\n0\r\n\r\n"
    first, second = split_answers(one + two)
    assert (first.status, first.body, second.status, second.body) == (200, b"ab", 400, b"c")
    assert [got.complete for got in split_answers(one[:-1])] == [False]
    assert split_answers(one + b"nonsense")[-1].status == 0
