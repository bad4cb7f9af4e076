from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.fake_transport import FakeTransport, NoteSink

from twolane.wire.http1 import (
    MAX_HEADER_BYTES,
    SLICE,
    ClientConnection,
    WireError,
    payload_size,
    request_head,
)

HEAD = request_head("POST", "/v1/completions", "h", [("X-Request-Id", "1")], 2)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\n\r\nhello"


def asked(head: bytes = HEAD) -> tuple[ClientConnection, FakeTransport, NoteSink]:
    connection, transport, sink = ClientConnection(), FakeTransport(), NoteSink()
    connection.connection_made(transport)
    connection.send(head, b"{}", sink)
    return connection, transport, sink


def test_request_head_is_exact() -> None:
    assert HEAD == (
        b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Request-Id: 1\r\nContent-Length: 2\r\n\r\n"
    )
    assert request_head("GET", "/", "h", [], 0) == b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    assert b"Content-Length: 0\r\n" in request_head("POST", "/", "h", [], 0)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
def test_request_head_refuses_line_breaks(value: str) -> None:
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        request_head("GET", "/", "h", [("X-Request-Id", value)], 0)


def test_send_writes_head_and_body_at_once() -> None:
    _, transport, _ = asked()
    assert transport.written == HEAD + b"{}"


@given(st.sampled_from([CHUNKED, SIZED]), st.lists(st.integers(0, 200), max_size=12))
def test_an_answer_does_not_depend_on_where_it_is_split(answer: bytes, at: list[int]) -> None:
    connection, transport, sink = asked()
    edges = [0, *sorted(min(n, len(answer)) for n in at), len(answer)]
    for a, b in itertools.pairwise(edges):
        if b > a:
            connection.data_received(answer[a:b])
    expected = (200, b"hello world") if answer is CHUNKED else (404, b"abc")
    assert (sink.status, sink.body, sink.ends) == (*expected, ["end"])
    assert connection.reusable
    assert not transport.is_closing()
    assert sink.stamps == sorted(sink.stamps)


@given(
    st.lists(st.binary(min_size=1, max_size=20) | st.just(b"x\r\n5\r\nhello\r\n"), max_size=6),
    st.lists(st.integers(0, 150), max_size=6),
)
def test_chunks_that_come_one_a_read_are_those_that_come_otherwise(
    bodies: list[bytes], at: list[int]
) -> None:
    chunks = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies]
    answer = b"".join(chunks)
    edges = [0, *sorted(min(n, len(answer)) for n in at), len(answer)]
    pieces = [answer[a:b] for a, b in itertools.pairwise(edges) if b > a]
    for reads in (chunks, pieces):
        connection, _, sink = asked()
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for read in (*reads, b"0\r\n\r\n"):
            connection.data_received(read)
        assert (sink.body, sink.ends, connection.reusable) == (b"".join(bodies), ["end"], True)


def test_a_read_is_stamped_by_who_read_it() -> None:
    connection, _, sink = asked()
    connection.received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 5)
    for stamp_ns in (10, 20):
        connection.received(b"1\r\na\r\n", stamp_ns)
    assert sink.stamps == [10, 20]


def test_header_names_are_lower_case_and_one_read_has_one_stamp() -> None:
    connection, _, sink = asked()
    connection.data_received(CHUNKED)
    assert sink.headers == [(b"server", b"uvicorn"), (b"transfer-encoding", b"chunked")]
    assert len(set(sink.stamps)) == 1


def test_a_connection_serves_one_answer_after_another() -> None:
    connection, _, _ = asked()
    connection.data_received(CHUNKED)
    second = NoteSink()
    connection.send(HEAD, b"{}", second)
    connection.data_received(SIZED)
    assert (second.status, second.body, second.ends) == (404, b"abc", ["end"])


def test_the_sink_may_send_again_from_on_end() -> None:
    connection, _, _ = asked()
    second = NoteSink()

    class Again(NoteSink):
        def on_end(self, stamp_ns: int) -> None:
            connection.send(HEAD, b"{}", second)

    connection.data_received(CHUNKED)
    connection.send(HEAD, b"{}", Again())
    connection.data_received(SIZED)
    connection.data_received(CHUNKED)
    assert second.body == b"hello world"


@pytest.mark.parametrize("surplus", [b"x", SIZED, SIZED + SIZED, b"\r\nx"])
def test_surplus_bytes_end_the_connection_but_not_the_answer(surplus: bytes) -> None:
    connection, transport, sink = asked()
    connection.data_received(CHUNKED + surplus)
    assert (sink.status, sink.body, sink.ends) == (200, b"hello world", ["end"])
    assert not connection.reusable
    assert transport.aborted


def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    connection, transport, sink = asked()
    connection.data_received(CHUNKED)
    connection.data_received(SIZED)
    assert transport.aborted
    assert not connection.reusable
    assert sink.ends == ["end"]


def test_busy_or_unconnected_connections_refuse_a_request() -> None:
    connection, _, _ = asked()
    with pytest.raises(WireError, match="not free"):
        connection.send(HEAD, b"", NoteSink())
    with pytest.raises(WireError, match="not free"):
        ClientConnection().send(HEAD, b"", NoteSink())


def test_a_body_until_close_ends_with_the_connection() -> None:
    connection, _, sink = asked()
    connection.data_received(UNTIL_CLOSE)
    assert sink.ends == []
    connection.connection_lost(None)
    assert (sink.body, sink.ends, connection.reusable) == (b"hello", ["end"], False)


def test_a_body_until_close_that_is_reset_is_lost() -> None:
    connection, _, sink = asked()
    connection.data_received(UNTIL_CLOSE)
    reset = ConnectionResetError()
    connection.connection_lost(reset)
    assert (sink.ends, sink.error) == (["lost"], reset)


@pytest.mark.parametrize("cut", [0, 10, 60, 75])
def test_a_truncated_answer_is_lost(cut: int) -> None:
    connection, _, sink = asked()
    if cut:
        connection.data_received(CHUNKED[:cut])
    assert connection.answer_started == (cut > 0)
    connection.connection_lost(None)
    assert sink.ends == ["lost"]


@pytest.mark.parametrize(
    "bad",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEADER_BYTES + b"\r\n",
    ],
)
def test_what_is_not_http_is_lost_and_closed(bad: bytes) -> None:
    connection, transport, sink = asked()
    connection.data_received(bad)
    assert sink.ends == ["lost"]
    assert isinstance(sink.error, WireError)
    assert transport.aborted
    assert not connection.reusable


def test_interim_answers_are_skipped() -> None:
    connection, _, sink = asked()
    connection.data_received(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + SIZED)
    assert (sink.status, sink.headers, sink.ends) == (404, [(b"content-length", b"3")], ["end"])
    assert connection.reusable


def test_connection_close_is_not_reused() -> None:
    connection, transport, sink = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert sink.ends == ["end"]
    assert not connection.reusable
    assert transport.aborted


def test_an_answer_to_head_has_no_body() -> None:
    connection, _, sink = asked(request_head("HEAD", "/", "h", [], 0))
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n")
    assert (sink.status, sink.ends, connection.reusable) == (200, ["end"], False)


def test_after_abort_the_sink_hears_nothing() -> None:
    connection, transport, sink = asked()
    connection.data_received(CHUNKED[:70])
    connection.abort()
    connection.abort()
    connection.data_received(CHUNKED[70:])
    connection.connection_lost(None)
    assert transport.aborted
    assert sink.ends == []


@pytest.mark.parametrize("unsent", [0, 5])
def test_an_aborted_request_knows_whether_it_had_left(unsent: int) -> None:
    connection, transport, _ = asked()
    transport.unsent = unsent
    connection.abort()
    connection.abort()
    assert connection.cut_off == bool(unsent)


def test_an_error_in_the_sink_loses_the_answer_and_is_not_swallowed() -> None:
    class Broken(NoteSink):
        def on_body(self, data: bytes, stamp_ns: int) -> None:
            raise RuntimeError("mine")

    connection, transport, _ = asked()
    connection.data_received(CHUNKED)
    broken = Broken()
    connection.send(HEAD, b"", broken)
    connection.data_received(CHUNKED)
    assert broken.ends == ["lost"]
    assert str(broken.error) == "mine"
    assert transport.aborted


def test_reading_can_be_paused() -> None:
    connection, transport, _ = asked()
    connection.pause_reading()
    assert not transport.is_reading()
    connection.resume_reading()
    assert transport.is_reading()
    connection.abort()
    connection.pause_reading()
    assert transport.is_reading()


def test_asked_to_stop_a_server_is_still_heard() -> None:
    connection, transport, sink = asked()
    assert connection.ask_to_stop()
    assert transport.eof
    connection.data_received(SIZED)
    assert sink.ends == ["end"]


def test_a_request_that_has_not_left_cannot_be_asked_to_stop() -> None:
    connection, transport, _ = asked()
    transport.unsent = 1
    assert not connection.ask_to_stop()
    connection.abort()
    assert not connection.ask_to_stop()
    assert not ClientConnection().ask_to_stop()


async def test_a_large_body_leaves_a_slice_a_turn_and_only_where_there_is_room() -> None:
    connection, transport = ClientConnection(), FakeTransport()
    connection.connection_made(transport)
    body = [b"{", bytes(range(256)) * 5000, b"}"]
    connection.send(b"HEAD", body, NoteSink())
    assert len(transport.written) == 4 + SLICE
    connection.pause_writing()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(transport.written) == 4 + SLICE
    assert not connection.ask_to_stop()
    connection.resume_writing()
    assert len(transport.written) == 4 + 2 * SLICE
    for _ in range(10):
        await asyncio.sleep(0)
    assert transport.written == b"HEAD" + b"".join(body)


async def test_an_answer_before_the_whole_request_ends_the_connection() -> None:
    connection, transport, sink = ClientConnection(), FakeTransport(), NoteSink()
    connection.connection_made(transport)
    connection.send(HEAD, bytes(5 * SLICE), sink)
    connection.data_received(SIZED)
    assert (sink.status, sink.ends) == (404, ["end"])
    assert not connection.reusable
    assert transport.aborted
    await asyncio.sleep(0)
    assert len(transport.written) == len(HEAD) + SLICE


def test_an_aborted_body_was_cut_off() -> None:
    connection, transport = ClientConnection(), FakeTransport()
    connection.connection_made(transport)
    connection.pause_writing()
    connection.send(HEAD, bytes(5 * SLICE), NoteSink())
    connection.abort()
    assert connection.cut_off
    connection.resume_writing()
    assert transport.written == HEAD


def test_payload_size() -> None:
    assert payload_size(b"ab") == payload_size(memoryview(b"ab")) == payload_size([b"a", b"b"]) == 2


@given(st.data())
def test_mutated_answers_end_once_and_never_crash(data: st.DataObject) -> None:
    stream = bytearray(data.draw(st.sampled_from([CHUNKED, SIZED, UNTIL_CLOSE])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at] = data.draw(st.integers(0, 255))
    connection, _, sink = asked()
    cut = data.draw(st.integers(0, len(stream)))
    for piece in (bytes(stream[:cut]), bytes(stream[cut:])):
        if piece:
            connection.data_received(piece)
    connection.connection_lost(None)
    assert len(sink.ends) == 1
    assert not connection.reusable
