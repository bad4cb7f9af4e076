from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane import clock
from twolane.proxy.handoff import (
    Handoff,
    HandoffBook,
    MalformedHandoffError,
    StaleHandoffError,
    read_params,
)

# As vLLM 0.32.0 sent it.
REAL: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "ebf8f41d-3353-48ae-9aa4-814259e5ae99",
    "remote_request_id": "cmpl-874a10ff3d7b8471-0-b2e3e958",
    "remote_host": "127.0.0.1",
    "remote_port": 15601,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 200,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
RAW = json.dumps(REAL).encode()


class Clock:
    ns = 0

    def __call__(self) -> int:
        return self.ns


def test_real_parameters_are_valid() -> None:
    assert read_params(RAW).remote_num_tokens == 200


def test_flat_block_ids_are_valid() -> None:
    assert read_params(json.dumps(REAL | {"remote_block_ids": [4, 5]}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"do_remote_prefill": False},
        {"do_remote_prefill": None},
        {"do_remote_decode": True},
        {"remote_block_ids": []},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": None},
        {"remote_block_ids": [["x"]]},
        {"remote_engine_id": ""},
        {"remote_engine_id": None},
        {"remote_request_id": ""},
        {"remote_host": None},
        {"remote_port": None},
        {"remote_port": 0},
        {"remote_port": 65536},
        {"remote_port": "15601"},
    ],
)
def test_parameters_that_would_harm_a_decode_engine(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedHandoffError):
        read_params(json.dumps(REAL | change).encode())


@pytest.mark.parametrize("key", ["remote_block_ids", "remote_request_id", "remote_host"])
def test_parameters_with_something_missing(key: str) -> None:
    with pytest.raises(MalformedHandoffError, match=key):
        read_params(json.dumps({k: v for k, v in REAL.items() if k != key}).encode())


@pytest.mark.parametrize("raw", [None, b"null", b"{}", b"[]", b"1", b'"x"', b"{", b""])
def test_what_is_no_handoff_at_all(raw: bytes | None) -> None:
    book = HandoffBook()
    handoff = book.ask()
    with pytest.raises(MalformedHandoffError):
        handoff.hold(raw)
    assert (book.issued, book.malformed, handoff.state) == (0, 1, "asked")
    assert book.balanced


def held(book: HandoffBook) -> Handoff:
    handoff = book.ask()
    handoff.hold(RAW)
    return handoff


def test_parameters_reach_decode_verbatim() -> None:
    handoff = held(HandoffBook())
    assert handoff.use(25) == RAW
    assert handoff.tokens == 200


def test_a_handoff_ends_once() -> None:
    book = HandoffBook()
    handoff = held(book)
    assert book.held == 1
    handoff.end("admitted")
    assert book.balanced
    with pytest.raises(AssertionError, match="admitted cannot end as released"):
        handoff.end("released")
    with pytest.raises(AssertionError, match="cannot be used"):
        handoff.use(25)
    with pytest.raises(AssertionError, match="cannot be held"):
        handoff.hold(RAW)
    handoff.abandon()
    assert book.balanced


def test_what_was_never_held_cannot_end() -> None:
    with pytest.raises(AssertionError, match="asked cannot end"):
        HandoffBook().ask().end("released")


def test_an_old_handoff_is_refused() -> None:
    now = Clock()
    handoff = held(HandoffBook(now))
    now.ns = 25 * clock.NS
    assert handoff.use(25)
    now.ns += 1
    with pytest.raises(StaleHandoffError):
        handoff.use(25)
    assert handoff.state == "held"


def test_an_abandoned_handoff_is_stranded_and_upsets_the_balance() -> None:
    book = HandoffBook()
    held(book).abandon()
    assert (book.stranded, book.held, book.balanced) == (1, 0, False)


@given(st.lists(st.sampled_from(["admitted", "released", "expired", "held", "malformed"])))
def test_the_books_always_add_up(fates: list[Any]) -> None:
    book = HandoffBook()
    for fate in fates:
        if fate == "malformed":
            with pytest.raises(MalformedHandoffError):
                book.ask().hold(b"null")
            continue
        handoff = held(book)
        if fate != "held":
            handoff.end(fate)
    ended = sum(book.ends[state] for state in ("admitted", "released", "expired"))
    assert book.issued == ended + book.held
    assert book.held == fates.count("held")
    assert book.malformed == fates.count("malformed")


def test_the_lease_runs_from_the_beginning_of_an_answer_that_comes_slowly() -> None:
    time = Clock()
    handoff = HandoffBook(time).ask()
    time.ns = 26 * clock.NS
    handoff.hold(RAW, since_ns=0)
    with pytest.raises(StaleHandoffError, match="26"):
        handoff.use(25.0)
    handoff.end("expired")
