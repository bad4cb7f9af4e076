from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.wire.requests import BadRequestError, Limits, Request, RequestParser

POST = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nX-A: b\r\n\r\nbody"
CHUNKED = (
    b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nbo\r\n2\r\ndy\r\n0\r\nTrailer: t\r\n\r\n"
)
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def refused(data: bytes, limits: Limits | None = None) -> int:
    with pytest.raises(BadRequestError) as caught:
        RequestParser(limits).feed(data)
    return caught.value.status


@given(st.sampled_from([POST, CHUNKED]), st.lists(st.integers(0, 300), max_size=12))
def test_requests_do_not_depend_on_where_the_bytes_are_split(one: bytes, at: list[int]) -> None:
    stream = one + GET + one
    edges = [0, *sorted(min(n, len(stream)) for n in at), len(stream)]
    parser = RequestParser()
    found = [r for a, b in itertools.pairwise(edges) for r in parser.feed(stream[a:b])]
    assert [(r.method, r.target, r.body) for r in found] == [
        ("POST", "/v1/completions?x=1", b"body"),
        ("GET", "/", b""),
        ("POST", "/v1/completions?x=1", b"body"),
    ]
    assert parser.idle


def test_a_request_knows_its_parts() -> None:
    (request,) = RequestParser().feed(POST)
    assert (request.path, request.keep_alive, request.http10) == ("/v1/completions", True, False)
    assert request.header(b"x-a") == "b"
    assert request.header(b"x-b") is None


def test_trailers_are_dropped() -> None:
    (request,) = RequestParser().feed(CHUNKED)
    assert [name for name, _ in request.headers] == [b"host", b"transfer-encoding"]


def one(data: bytes) -> Request:
    (request,) = RequestParser().feed(data)
    return request


def test_keep_alive_follows_version_and_header() -> None:
    assert not one(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").keep_alive
    assert not one(b"GET / HTTP/1.0\r\n\r\n").keep_alive
    assert one(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keep_alive
    assert one(b"GET / HTTP/1.0\r\n\r\n").http10


def test_continue_is_asked_for_once_and_only_while_the_body_is_missing() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
    parser = RequestParser()
    assert parser.feed(head) == []
    assert parser.take_continue()
    assert not parser.take_continue()
    whole = RequestParser()
    assert len(whole.feed(head + b"x")) == 1
    assert not whole.take_continue()


def fed(parser: RequestParser, stream: bytes, edges: list[int]) -> list[Request]:
    return [r for a, b in itertools.pairwise(edges) for r in parser.feed(stream[a:b])]


HUGE = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("came", [b"", b"abc"])
@pytest.mark.parametrize(
    "size", [b"ffffffffffffffff", b"FFFFFFFFFFFFFFFF;x=1", b"5000000", b"2\r\nab\r\n3ffffff"]
)
@given(at=st.lists(st.integers(0, 120), max_size=5))
def test_a_chunk_that_is_too_large_is_not_waited_for(
    size: bytes, came: bytes, at: list[int]
) -> None:
    """Wherever the bytes are split, and without the chunk's first byte."""
    stream = HUGE + size + b"\r\n" + came
    edges = [0, *sorted(min(n, len(stream)) for n in at), len(stream)]
    with pytest.raises(BadRequestError, match="request body exceeds") as caught:
        fed(RequestParser(), stream, edges)
    assert caught.value.status == 413


@given(st.lists(st.integers(0, 400), max_size=8), st.binary(min_size=1, max_size=90))
def test_chunks_that_fit_are_taken_whatever_stands_in_them(at: list[int], body: bytes) -> None:
    extension = b";ext=" + b"f" * 90
    one = HUGE + b"%x%b\r\n%b\r\n0\r\n\r\n" % (len(body), extension, body)
    stream = one + one
    edges = [0, *sorted(min(n, len(stream)) for n in at), len(stream)]
    found = fed(RequestParser(Limits(body=90)), stream, edges)
    assert [bytes(r.body) for r in found] == [body, body]


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Content-Length: 3\r\nContent-Length: 3",
        b"Content-Length: 3, 3",
        b"Content-Length: +3",
        b"Content-Length: -1",
        b"Content-Length: 0x3",
        b"Content-Length: 99999999999999999999999",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: identity, chunked, chunked",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding:\x0bchunked",
        b"X: a\r\n folded",
        b"X: a\rY: b",
        b"X: a\nContent-Length: 3",
        b"X: \x00",
        b"Host: again",
        b"Connection: upgrade\r\nUpgrade: h2c",
    ],
)
def test_what_two_parsers_could_frame_differently_is_refused(head: bytes) -> None:
    body = b"\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
    assert refused(b"POST / HTTP/1.1\r\nHost: h\r\n" + head + body) in (400, 413)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (b"GET / HTTP/9.9\r\nHost: h\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x\nabc\r\n", 400),
    ],
)
def test_what_is_not_http_is_refused(data: bytes, status: int) -> None:
    assert refused(data) == status


SMALL = Limits(target=100, head=400, body=50)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 200 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (b"GET /" + b"a" * 200, 414),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 500 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 500, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: a\r\n" * 300 + b"\r\n", 431),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 51\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"30\r\n" + b"a" * 48 + b"\r\n3\r\nabc\r\n",
            413,
        ),
    ],
)
def test_limits(data: bytes, status: int) -> None:
    assert refused(data, SMALL) == status


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nT: ",
    ],
    ids=["header", "trailer"],
)
def test_headers_that_never_end_are_refused_while_they_trickle(start: bytes) -> None:
    parser = RequestParser(SMALL)
    parser.feed(start)
    assert next(i for i in range(500) if trickle(parser) == 431) <= 400


def trickle(parser: RequestParser) -> int:
    try:
        parser.feed(b"a")
    except BadRequestError as error:
        return error.status
    return 0


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_garbage_is_refused_or_held_but_never_crashes(pieces: list[bytes]) -> None:
    parser = RequestParser(SMALL)
    try:
        for piece in pieces:
            parser.feed(piece)
    except BadRequestError as error:
        assert error.status in (400, 413, 414, 431, 505)


@given(st.data())
def test_mutated_requests_never_crash(data: st.DataObject) -> None:
    stream = bytearray(POST + CHUNKED + GET)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at] = data.draw(st.integers(0, 255))
    try:
        requests = RequestParser(SMALL).feed(bytes(stream))
    except BadRequestError:
        return
    assert len(requests) <= 3
