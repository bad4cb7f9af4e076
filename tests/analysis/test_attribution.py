"""The first token's ledger: parts sum to the TTFT, and what is not known is not invented."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.analysis.attribution import Attribution, Part, parts, population
from twolane.clock import MS
from twolane.records import EngineTimes, Ledger, Request

SEND = 1_000 * MS


def request(ledger: Ledger | None, ttft_ms: float = 300, **more: Any) -> Request:
    return Request(
        id="r", cell="c", role="grid", index=0, send_ns=SEND, due_ns=SEND,
        first_ns=SEND + round(ttft_ms * MS), ledger=ledger, **more,
    )  # fmt: skip


def at(ms: float) -> int:
    return SEND + round(ms * MS)


SPLIT = Ledger(
    path="split",
    boot="b",
    received_ns=at(1),
    p_dispatch_ns=at(3),
    p_response_ns=at(203),
    p_times=EngineTimes(queue_ms=10, first_token_ms=180),
    d_dispatch_ns=at(204),
    d_first_ns=at(294),
    d_times=EngineTimes(queue_ms=60, first_token_ms=25),
)
DIRECT = Ledger(
    path="direct",
    boot="b",
    received_ns=at(1),
    d_dispatch_ns=at(3),
    d_first_ns=at(298),
    d_times=EngineTimes(queue_ms=100, first_token_ms=190),
)


def ms(found: Attribution | None) -> dict[str, float]:
    assert found is not None
    return {str(part): ns / MS for part, ns in found.whole().items()}


def test_a_split_request_has_every_part_of_the_table() -> None:
    assert ms(parts(request(SPLIT), boot="b")) == {
        "client to proxy": 1,
        "proxy wait": 2,
        "P queue": 10,
        "P compute": 180,
        "P rest": 10,
        "handoff": 1,
        "D queue + KV transfer": 60,
        "D first step": 25,
        "D rest": 5,
        "unexplained": 6,
    }


def test_a_direct_request_has_one_leg() -> None:
    assert ms(parts(request(DIRECT), boot="b")) == {
        "client to proxy": 1,
        "proxy wait": 2,
        "engine queue": 100,
        "engine compute": 190,
        "engine rest": 5,
        "unexplained": 2,
    }


def test_stamps_of_another_boot_are_not_subtracted() -> None:
    found = parts(request(SPLIT), boot="another")
    assert found is not None
    assert Part.CLIENT_TO_PROXY not in found.parts
    assert found.unexplained_ns == 7 * MS


def test_the_answering_engines_times_may_come_with_the_answer() -> None:
    bare = msgspec.structs.replace(DIRECT, d_times=None)
    told = EngineTimes(queue_ms=100, first_token_ms=190)
    assert ms(parts(request(bare, engine_times=told))) == ms(parts(request(DIRECT)))


def test_a_leg_whose_engine_says_nothing_stays_unexplained() -> None:
    found = parts(request(msgspec.structs.replace(SPLIT, p_times=None)), boot="b")
    assert found is not None
    assert {Part.P_QUEUE, Part.P_COMPUTE, Part.P_REST}.isdisjoint(found.parts)
    assert found.unexplained_ns == (6 + 200) * MS


def test_half_an_account_gives_half_a_leg_and_no_rest() -> None:
    times = EngineTimes(first_token_ms=180)
    found = parts(request(msgspec.structs.replace(SPLIT, p_times=times)), boot="b")
    assert found is not None
    assert found.parts[Part.P_COMPUTE] == 180 * MS
    assert Part.P_REST not in found.parts
    assert found.unexplained_ns == (6 + 20) * MS


def test_a_handoff_that_never_happened_leaves_its_time_unexplained() -> None:
    broken = msgspec.structs.replace(SPLIT, d_dispatch_ns=None, d_first_ns=None)
    found = parts(request(broken), boot="b")
    assert found is not None
    assert list(found.parts) == [
        Part.CLIENT_TO_PROXY,
        Part.PROXY_WAIT,
        Part.P_QUEUE,
        Part.P_COMPUTE,
        Part.P_REST,
    ]
    assert found.unexplained_ns == 97 * MS


def test_an_account_longer_than_its_leg_is_reported_as_negative() -> None:
    times = EngineTimes(queue_ms=50, first_token_ms=180)
    found = parts(request(msgspec.structs.replace(SPLIT, p_times=times)), boot="b")
    assert found is not None
    assert found.parts[Part.P_REST] == -30 * MS
    assert found.negative == (Part.P_REST,)
    assert sum(found.whole().values()) == found.ttft_ns


def test_an_engine_asked_without_a_proxy_still_tells_its_own_parts() -> None:
    found = parts(request(None, engine_times=EngineTimes(queue_ms=20, first_token_ms=250)))
    assert ms(found) == {"engine queue": 20, "engine compute": 250, "unexplained": 30}


def test_without_a_first_token_there_is_no_ledger() -> None:
    assert parts(msgspec.structs.replace(request(SPLIT), first_ns=None)) is None


stamps = st.none() | st.integers(SEND, SEND + 400 * MS)
times = st.none() | st.builds(
    EngineTimes,
    queue_ms=st.none() | st.floats(0, 400),
    first_token_ms=st.none() | st.floats(0, 400),
)
ledgers = st.none() | st.builds(
    Ledger,
    path=st.sampled_from(["split", "direct"]),
    boot=st.sampled_from(["b", "other"]),
    received_ns=st.integers(SEND, SEND + 400 * MS),
    p_dispatch_ns=stamps,
    p_response_ns=stamps,
    p_times=times,
    d_dispatch_ns=stamps,
    d_first_ns=stamps,
    d_times=times,
)


@given(ledgers, st.floats(0, 400), times)
def test_parts_and_unexplained_always_sum_to_the_ttft(
    ledger: Ledger | None, ttft_ms: float, engine: EngineTimes | None
) -> None:
    found = parts(request(ledger, ttft_ms, engine_times=engine), boot="b")
    assert found is not None
    assert sum(found.whole().values()) == found.ttft_ns == round(ttft_ms * MS)
    assert set(found.negative) == {part for part, ns in found.whole().items() if ns < 0}


def test_a_population_shows_a_real_request_and_medians() -> None:
    several = [parts(request(SPLIT, ttft)) for ttft in (310, 300, 900)]
    summed = population(one for one in several if one)
    assert summed is not None
    assert (summed.count, summed.ttft_ns) == (3, 310 * MS)
    assert sum(summed.typical.whole().values()) == 310 * MS
    assert summed.medians_ns[Part.D_QUEUE] == 60 * MS
    assert summed.unexplained_share == pytest.approx(16 / 310)
    assert summed.finding


def test_an_empty_population_is_none() -> None:
    assert population([]) is None
