"""Chunks past the parser: only whole ones, every byte once, and the parser none the wiser."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.fake_transport import FakeTransport, NoteSink

from twolane.proxy.splice import SplicedConnection, chunk_size, whole_chunks, without_framing
from twolane.wire.http1 import request_head

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Parsed:
    """What httptools makes of chunks: their payload, and whether the last one ended with them."""

    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.between = False
        parser = httptools.HttpResponseParser(self)
        parser.feed_data(HEAD)
        parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_chunk_header(self) -> None:
        self.between = False

    def on_chunk_complete(self) -> None:
        self.between = True


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4), st.data())
def test_whole_chunks_are_those_that_the_parser_takes_for_whole(
    payloads: list[bytes], data: st.DataObject
) -> None:
    raw = b"".join(map(chunk, payloads))
    assert whole_chunks(raw)
    assert without_framing(raw) == b"".join(payloads) == Parsed(raw).body
    assert Parsed(raw).between
    cut = data.draw(st.integers(1, len(raw) - 1))
    edges = {sum(len(chunk(p)) for p in payloads[:i]) for i in range(len(payloads))}
    assert whole_chunks(raw[:cut]) == (cut in edges)
    assert not whole_chunks(raw + LAST)


@given(st.binary(max_size=40))
def test_what_is_taken_for_whole_chunks_is_that(raw: bytes) -> None:
    if whole_chunks(raw):
        parsed = Parsed(raw)
        assert (parsed.body, parsed.between) == (without_framing(raw), True)


@pytest.mark.parametrize("head", [b"", b"0x5", b"+5", b"5;a=b", b" 5", b"5_0", b"-5", b"g"])
def test_a_length_is_plain_hexadecimal(head: bytes) -> None:
    assert chunk_size(head) == 0


class Engine:
    """A spliced connection that has sent a request and had its head and first chunk."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.connection = SplicedConnection()
        self.connection.connection_made(self.transport)
        self.sink = NoteSink()
        self.out: list[bytes] = []
        self.told: list[bytes] = []
        self.connection.send(request_head("POST", "/", "h", (), 0), b"", self.sink)
        self.reads = 0
        self.connection.follow(self)
        self.connection.splice(self.out.append)
        self.connection.data_received(HEAD + chunk(b"first"))

    def on_chunks(self, data: bytes) -> None:
        self.told.append(data)

    def on_read(self) -> None:
        self.reads += 1


def test_whole_chunks_pass_and_the_end_is_parsed() -> None:
    one = Engine()
    pieces = [chunk(b"second"), chunk(b"third") + chunk(b"fourth")]
    for piece in pieces:
        one.connection.data_received(piece)
    assert one.out == pieces
    assert one.connection.passed_ns > 0
    one.connection.data_received(chunk(b"fifth") + LAST)
    assert one.sink.body == b"firstfifth"
    assert one.reads == 2  # the first and the last: what passes is not parsed
    assert (one.sink.ends, one.told) == (["end"], [b"".join(pieces)])
    assert one.connection.reusable


def test_half_a_chunk_goes_to_the_parser_until_it_is_whole() -> None:
    one = Engine()
    whole = chunk(b"second")
    for cut in range(1, len(whole)):
        one.connection.data_received(whole[:cut])
        one.connection.data_received(whole[cut:])
    assert one.out == []
    assert one.sink.body == b"first" + b"second" * (len(whole) - 1)
    one.connection.data_received(whole)
    assert one.out == [whole]


def test_nothing_passes_to_a_client_that_the_answer_is_not_for() -> None:
    one = Engine()
    one.connection.data_received(LAST)
    one.connection.data_received(chunk(b"stray"))
    assert one.out == []
    assert one.transport.aborted

    other = Engine()
    other.connection.part()
    other.connection.data_received(chunk(b"second"))
    assert (other.out, other.sink.body) == ([], b"firstsecond")


def test_the_next_request_is_not_spliced_by_the_last_one() -> None:
    one = Engine()
    one.connection.data_received(LAST)
    sink = NoteSink()
    one.connection.send(request_head("POST", "/", "h", (), 0), b"", sink)
    one.connection.data_received(HEAD + chunk(b"a"))
    one.connection.data_received(chunk(b"b"))
    assert (one.out, sink.body) == ([], b"ab")
