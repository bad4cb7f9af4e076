"""The most users under a service level, where the truth is made."""

from __future__ import annotations

import pytest
from tests.analysis.made import arm

from twolane.analysis.capacity import SLOS, Level, Slo, capacity, levels, readers, slos
from twolane.clock import MS
from twolane.records import Request

CHAT = Slo("chat", ttft_ms=300, tpot_ms=50)
ARM = arm("copies", 2048, devices=2)


def request(ttft_ms: float, beat_ms: float = 20, error: str | None = None) -> Request:
    gaps = [round(beat_ms * MS)] * 9
    first = round(ttft_ms * MS)
    return Request(
        id="r", cell="c", role="grid", index=0, send_ns=0, due_ns=0, error=error,
        first_ns=first, last_ns=first + sum(gaps), output_tokens=10, gaps_ns=gaps,
    )  # fmt: skip


def test_a_request_must_meet_every_limit() -> None:
    assert CHAT.met(request(300, 50))
    assert not CHAT.met(request(301, 50))
    assert not CHAT.met(request(300, 51))
    assert not CHAT.met(request(1, error="reset"))
    assert not Slo("steady", gap_ms=10).met(request(1, beat_ms=11))


def test_attainment_is_over_requests_sent() -> None:
    slow = Slo("slow", ttft_ms=99)
    sent = [request(100)] * 90 + [request(1, error="reset")] * 10
    chat, none = levels(8, iter(sent), [CHAT, slow])
    assert (chat.met, chat.sent) == (90, 100)
    assert (none.met, none.sent) == (0, 100)


def holds(users: int, share: float, sent: int = 1000) -> Level:
    return Level(users, round(share * sent), sent)


def test_the_largest_level_that_holds_with_all_below_it() -> None:
    runs = [holds(1, 1), holds(64, 0.99), holds(128, 0.5), holds(256, 0.99)]
    found = capacity(CHAT, ARM, "in", runs)
    assert (found.users, found.beyond, found.per_device) == (64, 128, 32)
    assert found.missing == ""


def test_above_what_was_measured_is_unknown() -> None:
    found = capacity(CHAT, ARM, "in", [holds(64, 1)])
    assert (found.users, found.beyond, found.missing) == (
        64,
        None,
        "a cell with more than 64 users",
    )


def test_the_smallest_level_may_fail_already() -> None:
    found = capacity(CHAT, ARM, "in", [holds(64, 0.2)])
    assert (found.users, found.per_device) == (0, 0)
    assert found.missing == "a cell with fewer than 64 users"


@pytest.mark.parametrize(
    ("met", "sent", "missing"),
    [
        (24, 24, "35 requests with 4 users instead of 24"),
        (19, 20, "127 requests with 4 users instead of 20"),
        (900, 1000, "runs with 4 users that agree: about 90% meet it"),
    ],
)
def test_what_lies_within_the_interval_cannot_be_told(met: int, sent: int, missing: str) -> None:
    found = capacity(CHAT, ARM, "in", [Level(4, met, sent)])
    assert (found.users, found.missing) == (None, missing)


def test_every_block_must_hold() -> None:
    found = capacity(CHAT, ARM, "in", [holds(64, 1), holds(64, 0.5)])
    assert (found.users, found.runs) == (0, 2)


def test_a_coded_level_decides_nothing() -> None:
    spoilt = Level(64, 0, 1000, ("INFLIGHT",))
    found = capacity(CHAT, ARM, "in", [holds(1, 1), spoilt])
    assert (found.users, found.beyond) == (1, None)
    assert found.missing == "a clean run with 64 users (INFLIGHT)"


def test_readers_hold_if_none_of_them_pauses_longer() -> None:
    steady = Slo("no pause over 100 ms", gap_ms=100, share=1.0)
    runs = [readers(1, 40, steady), readers(8, 99, steady), readers(16, 101, steady)]
    found = capacity(steady, ARM, "readers", runs)
    assert (found.users, found.beyond) == (8, 16)


def test_a_campaign_may_name_its_own() -> None:
    own = {"slos": {"fast": {"ttft_ms": 100, "share": 0.99}}}
    assert slos(own) == (Slo("fast", ttft_ms=100, share=0.99),)
    assert slos({}) == SLOS
