"""The definitions against hand-made streams and, where there is one, an independent oracle."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from twolane.analysis import stats
from twolane.clock import MS, NS
from twolane.records import GridCell, NeedleCell, Request, Role

GRID = GridCell(id="c2 in64 out4 n2", users=2, prompt=64, output=4, requests=2)


def stream(
    gaps_ms: list[float],
    *,
    send_ms: float = 0,
    ttft_ms: float = 10,
    tokens: list[int] | None = None,
    role: Role = "grid",
    error: str | None = None,
) -> Request:
    first = round((send_ms + ttft_ms) * MS)
    gaps = [round(gap * MS) for gap in gaps_ms]
    return Request(
        id="r",
        cell=GRID.id,
        role=role,
        index=0,
        send_ns=round(send_ms * MS),
        due_ns=round(send_ms * MS) - 3 * MS,
        status=200,
        first_ns=first,
        last_ns=first + sum(gaps),
        end_ns=first + sum(gaps),
        output_tokens=sum(tokens) if tokens else len(gaps) + 1,
        tokens=tokens or [],
        gaps_ns=gaps,
        error=error,
    )


def lost(send_ms: float = 0, end_ms: float = 5) -> Request:
    return Request(
        id="lost",
        cell=GRID.id,
        role="grid",
        index=0,
        send_ns=round(send_ms * MS),
        due_ns=round(send_ms * MS),
        end_ns=round(end_ms * MS),
        error="HTTP 500: planted",
    )


# --------------------------------------------------------------------------------- per request


def test_times_of_one_request() -> None:
    request = stream([20, 30], send_ms=100, ttft_ms=50)
    assert stats.ttft_ns(request) == 50 * MS
    assert stats.ttft_from_due_ns(request) == 53 * MS
    assert stats.e2e_ns(request) == 100 * MS
    assert stats.worst_gap_ns(request) == 30 * MS
    assert stats.event_times_ns(request) == [150 * MS, 170 * MS, 200 * MS]


def test_tpot_counts_tokens_and_not_events() -> None:
    assert stats.tpot_ns(stream([20, 40])) == 30 * MS
    assert stats.tpot_ns(stream([20, 40], tokens=[3, 2, 4])) == 10 * MS


def test_tpot_of_a_single_event_is_undefined() -> None:
    assert stats.tpot_ns(stream([])) is None
    assert stats.tpot_ns(stream([], tokens=[5])) is None


def test_a_request_without_tokens_has_no_times() -> None:
    values = [stats.ttft_ns, stats.ttft_from_due_ns, stats.tpot_ns, stats.e2e_ns]
    assert [of(lost()) for of in values] == [None] * 4
    assert stats.worst_gap_ns(lost()) is None
    assert stats.gaps(lost()) == []
    assert stats.token_counts(lost()) == []


def test_a_gap_belongs_to_every_window_it_overlaps() -> None:
    request = stream([10, 100, 10], ttft_ms=0)
    assert [g.length_ns for g in stats.gaps(request, (50 * MS, 60 * MS))] == [100 * MS]
    assert stats.gaps(request, (120 * MS, 130 * MS)) == []


def test_the_stall_threshold_is_three_quiet_gaps_but_at_least_50_ms() -> None:
    assert stats.stall_threshold_ns(stats.gaps(stream([10, 10, 12]))) == 50 * MS
    assert stats.stall_threshold_ns(stats.gaps(stream([30, 40, 1000]))) == 120 * MS
    assert stats.stall_threshold_ns([]) == 50 * MS


def test_stalls_count_gaps_past_the_threshold_only() -> None:
    found = stats.stalls(stats.gaps(stream([10, 50, 51, 89])), 50 * MS)
    assert found.count == 2
    assert found.seconds == pytest.approx(0.140)
    assert found.share == pytest.approx(0.7)
    assert stats.stalls([], 50 * MS) == stats.Stalls(0, 0.0, 0.0)


# --------------------------------------------------------------------------------- many values


@given(st.integers(662, 2000), st.integers(0, 2**32), st.sampled_from([50, 90, 95, 99]))
def test_percentiles_are_nearest_rank(n: int, seed: int, p: int) -> None:
    values = np.random.default_rng(seed).exponential(size=n)
    assert stats.percentile(values, p) == np.percentile(values, p, method="inverted_cdf")


@pytest.mark.parametrize(("p", "floor"), [(50, 1), (90, 64), (95, 130), (99, 662)])
def test_a_percentile_below_its_floor_is_not_given(p: int, floor: int) -> None:
    assert stats.percentile([1.0] * (floor - 1), p) is None
    assert stats.percentile([1.0] * floor, p) == 1.0


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_median_is_numpys(values: list[float]) -> None:
    assert stats.median(values) == pytest.approx(float(np.median(values)))


@given(st.integers(1, 1000), st.data())
def test_wilson_is_scipys(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    expected = oracle.binomtest(successes, n).proportion_ci(method="wilson")
    assert stats.wilson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_nothing_has_no_interval() -> None:
    assert stats.wilson(0, 0) is None
    assert stats.median([]) is None


# ---------------------------------------------------------------------------------- the window


def test_throughput_counts_what_arrived_inside() -> None:
    request = stream([100] * 9, ttft_ms=100, tokens=[2] * 10)  # at 100, 200 ... 1000 ms
    assert stats.throughput_tok_s([request], (200 * MS, 700 * MS)) == pytest.approx(20.0)
    assert stats.throughput_tok_s([request], (NS, NS)) is None


def test_inflight_is_time_weighted() -> None:
    whole, half = stream([990]), stream([490])
    assert stats.inflight([whole, half], (0, NS)) == pytest.approx(1.5)
    assert stats.inflight([whole, half], (NS, NS)) is None


def test_a_failed_request_was_in_flight_until_it_ended() -> None:
    assert stats.inflight([lost(0, 250)], (0, NS)) == pytest.approx(0.25)


def test_littles_law_agrees_with_a_steady_closed_loop() -> None:
    """Four users, each answer 10 tokens in 100 ms, staggered; requests back to back."""
    requests = [
        stream([10] * 9, ttft_ms=10, send_ms=user * 25 + 100 * turn)
        for user in range(4)
        for turn in range(30)
    ]
    window = (500 * MS, 2000 * MS)
    assert stats.inflight(requests, window) == pytest.approx(4, rel=0.01)
    assert stats.little_inflight(requests, window) == pytest.approx(4, rel=0.02)


def test_littles_law_is_blind_to_what_ran_before_the_window() -> None:
    slow = [stream([100] * 9, ttft_ms=10, send_ms=-600)]
    fast = [stream([10] * 9, ttft_ms=10, send_ms=100.0 * turn) for turn in range(20)]
    window = (500 * MS, 1500 * MS)
    assert stats.little_inflight([*slow, *fast], window) == pytest.approx(1, rel=0.02)


def test_littles_law_needs_a_whole_request() -> None:
    assert stats.little_inflight([stream([1000])], (0, NS)) is None


def test_cached_share_is_over_prompt_tokens_of_those_that_say() -> None:
    told = Request(
        id="a",
        cell="",
        role="grid",
        index=0,
        send_ns=0,
        due_ns=0,
        prompt_tokens=300,
        cached_tokens=30,
    )
    assert stats.cached_share([told, stream([1])]) == pytest.approx(0.1)
    assert stats.cached_share([stream([1])]) is None


# --------------------------------------------------------------------------------- summarising


def test_a_grid_cell_is_summarised_without_its_warm_up() -> None:
    requests = [
        stream([10] * 3, ttft_ms=20),
        stream([10] * 3, ttft_ms=40),
        stream([500] * 3, ttft_ms=900, role="warmup"),
    ]
    values = stats.summarise(GRID, requests, (0, 50 * MS))
    assert values["requests"] == 2
    assert values["ttft_p50_ms"] == 20
    assert values["tpot_p50_ms"] == 10
    assert values["ttft_p99_ms"] is None
    assert values["inflight"] == pytest.approx(3.0)
    assert values["throughput_tok_s"] == pytest.approx(6 / 0.05)
    assert values["window_s"] == pytest.approx(0.05)


def test_without_a_window_there_is_no_throughput() -> None:
    values = stats.summarise(GRID, [stream([10])], None)
    assert values["throughput_tok_s"] is None
    assert values["inflight"] is None
    assert values["window_s"] is None


def test_failures_cannot_improve_a_percentile() -> None:
    requests = [stream([10], ttft_ms=20), lost(), lost()]
    values = stats.summarise(GRID, requests, (0, NS))
    assert values["failed"] == 2
    assert values["ttft_p50_ms"] == math.inf


def test_a_needle_cell_has_latencies_and_no_load() -> None:
    cell = NeedleCell(id="needle 500", prompt=500)
    values = stats.summarise(cell, [stream([10], role="needle")], None)
    assert values["ttft_p50_ms"] == 10
    assert "throughput_tok_s" not in values
