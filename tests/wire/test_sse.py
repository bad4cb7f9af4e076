from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.wire.sse import SseParser

STREAM = (
    b'\xef\xbb\xbfdata: {"a": 1}\n\n: a comment\n\nevent: x\nid: 7\ndata: two\ndata:lines\n\n'
    b"data\ndata:  kept space\r\n\r\n:tight\rdata: cr\r\rdata: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b"two\nlines", b"\n kept space", b"cr", b"[DONE]"]
COMMENTS = [b"a comment", b"tight"]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(n % (len(data) + 1) for n in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=40))
def test_events_do_not_depend_on_where_the_bytes_are_split(at: list[int]) -> None:
    comments: list[bytes] = []
    parser = SseParser(comments.append)
    events = [event for piece in cut(STREAM, at) for event in parser.feed(piece)]
    assert (events, comments, parser.pending()) == (EVENTS, COMMENTS, 0)


@given(st.lists(st.binary().filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=8))
def test_any_payload_without_line_breaks_comes_back(payloads: list[bytes]) -> None:
    stream = b"".join(b"data: " + p + b"\n\n" for p in payloads)
    assert SseParser().feed(stream) == payloads


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_garbage_never_raises(pieces: list[bytes]) -> None:
    parser = SseParser()
    for piece in pieces:
        parser.feed(piece)
    assert parser.pending() <= sum(map(len, pieces))


def test_pending_counts_what_is_held_back() -> None:
    parser = SseParser()
    assert parser.feed(b"data: ab") == []
    assert parser.pending() == 8
    assert parser.feed(b"c\ndata: d") == []
    assert parser.pending() == 3 + 7
    assert parser.feed(b"\n\n") == [b"abc\nd"]
    assert parser.pending() == 0


def test_crlf_split_between_reads_is_one_line_end() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r") == []
    assert parser.feed(b"\ndata: y\r\n\r") == [b"x\ny"]
    assert parser.feed(b"\n") == []


@pytest.mark.parametrize("blank", [b"\n", b"\n\n\n", b": only a comment\n\n", b"event: ping\n\n"])
def test_an_event_without_data_is_none(blank: bytes) -> None:
    assert SseParser().feed(blank) == []


def test_a_comment_without_a_listener_is_dropped() -> None:
    assert SseParser().feed(b": x\ndata: y\n\n") == [b"y"]


ONE = st.binary(max_size=12).map(lambda payload: b"data: " + payload + b"\n\n")
OTHER = st.sampled_from([b"data: half", b": c\n", b"\n", b"\r", b"data:x\n\n", b"id: 1\n\n"])


@given(st.lists(ONE | OTHER, max_size=8))
def test_a_read_of_one_whole_event_is_framed_as_any_other(reads: list[bytes]) -> None:
    whole, bytewise = SseParser(), SseParser()
    together = [event for read in reads for event in whole.feed(read)]
    single = [event for byte in b"".join(reads) for event in bytewise.feed(bytes([byte]))]
    assert together == single
    assert whole.pending() == bytewise.pending()
