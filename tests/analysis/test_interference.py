"""What a shot did to its victims, on streams whose loss is known by construction."""

import itertools

import pytest

from twolane.analysis import stats
from twolane.clock import MS, NS
from twolane.records import InterferenceCell, Request, Role

CELL = InterferenceCell(id="interference v1 n5000", victims=1, prompt=5000)
GAP = 20 * MS


def victim(
    times_ms: list[float], *, shot: int = 1, end_ms: float | None = None, index: int = 0
) -> Request:
    times = [round(t * MS) for t in times_ms]
    return Request(
        id=f"v{index}.{shot}",
        cell=CELL.id,
        role="victim",
        index=index,
        shot=shot,
        send_ns=0,
        due_ns=0,
        first_ns=times[0],
        last_ns=times[-1],
        end_ns=times[-1] if end_ms is None else round(end_ms * MS),
        output_tokens=len(times),
        finish_reason="stopped_by_client",
        gaps_ns=[b - a for a, b in itertools.pairwise(times)],
    )


def fired(send_ms: float, first_ms: float | None, *, shot: int = 1) -> Request:
    role: Role = "null" if shot == 0 else "aggressor"
    first = None if first_ms is None else round(first_ms * MS)
    return Request(
        id=f"a.{shot}",
        cell=CELL.id,
        role=role,
        index=0,
        shot=shot,
        send_ns=round(send_ms * MS),
        due_ns=round(send_ms * MS),
        first_ns=first,
        last_ns=first,
        end_ns=first or round((send_ms + 700) * MS),
        error=None if first_ms is not None else "HTTP 500: planted",
    )


def every_20_ms(begin_ms: float, end_ms: float) -> list[float]:
    return [begin_ms + 20.0 * i for i in range(round((end_ms - begin_ms) / 20) + 1)]


STEADY = every_20_ms(0, 6000)
STALLED = every_20_ms(0, 2000) + every_20_ms(2500, 6000)


def test_a_stall_is_measured_as_it_was_planted() -> None:
    (one,) = stats.victims([victim(STALLED), fired(2005, 2490)])
    assert one.worst_gap_ms == 500
    assert one.stalls.count == 1
    assert one.stalls.seconds == pytest.approx(0.5)
    assert one.quiet_gap_ms == 20
    assert one.quiet_rate_tok_s == pytest.approx(50, rel=0.01)
    assert one.tokens_lost == pytest.approx(50 * 0.485, abs=0.5)
    assert one.recovery_s == 0.0


def test_a_steady_stream_lost_nothing() -> None:
    (one,) = stats.victims([victim(STEADY), fired(2005, 2505)])
    assert one.worst_gap_ms == 20
    assert one.stalls.count == 0
    assert abs(one.tokens_lost) < 1
    assert one.recovery_s == 0.0


def test_a_gap_that_ends_after_the_first_token_counts() -> None:
    (one,) = stats.victims([victim(STALLED), fired(2005, 2100)])
    assert one.worst_gap_ms == 500


def test_a_pause_after_the_first_token_is_told_apart_from_one_before_it() -> None:
    late = every_20_ms(0, 3000) + every_20_ms(3130, 6000)
    (one,) = stats.victims([victim(late), fired(2005, 2505)])
    assert (one.worst_gap_ms, one.after_worst_gap_ms) == (20, 130)
    (one,) = stats.victims([victim(late), fired(2005, 3001)])
    assert (one.worst_gap_ms, one.after_worst_gap_ms) == (130, 20), "it began before it"
    (one,) = stats.victims([victim(STALLED), fired(3000, 3500)])
    assert (one.worst_gap_ms, one.after_worst_gap_ms) == (20, 20), "it was over before"


def test_a_gap_of_the_quiet_phase_does_not_count() -> None:
    (one,) = stats.victims([victim(STALLED), fired(3000, 3500)])
    assert one.worst_gap_ms == 20


def test_a_stream_that_never_came_back_has_its_open_gap() -> None:
    (one,) = stats.victims([victim(every_20_ms(0, 2000), end_ms=5000), fired(2005, 2500)])
    assert one.worst_gap_ms == 3000
    assert one.recovery_s is None


def test_recovery_is_when_the_rate_is_back() -> None:
    """After the hit, one token each 100 ms for a second, then one each 20 ms."""
    slow = [2500 + 100.0 * i for i in range(11)]
    times = every_20_ms(0, 2000) + slow + every_20_ms(3520, 8000)
    (one,) = stats.victims([victim(times), fired(2005, 2490)])
    # From 3.4 s on, one second holds 90 % of the quiet tokens: 3.5 s, then 46 more by 4.4 s.
    assert one.recovery_s == pytest.approx(0.91, abs=0.02)


def test_a_failed_aggressor_hits_until_its_end() -> None:
    (one,) = stats.victims([victim(STEADY), fired(2000, None)])
    assert stats.seconds_of(one.phases.hit) == pytest.approx(0.7)


def test_the_quiet_phase_begins_when_all_stream() -> None:
    late = [1000.0, *every_20_ms(1020, 6000)]
    both = stats.victims([victim(STEADY), victim(late, index=1), fired(2000, 2500)])
    assert [v.phases.quiet_ns for v in both] == [NS, NS]


def test_a_shot_whose_victim_never_streamed_is_left_out() -> None:
    silent = Request(
        id="v", cell=CELL.id, role="victim", index=1, shot=1, send_ns=0, due_ns=0, error="x"
    )
    assert stats.victims([victim(STEADY), silent, fired(2000, 2500)]) == []
    assert stats.victims([victim(STEADY)]) == []


def test_a_cell_tells_the_worst_of_the_real_shots_and_of_the_null_shot_apart() -> None:
    requests = [
        victim(STEADY, shot=0),
        fired(2005, 4005, shot=0),
        victim(STEADY, shot=1),
        fired(2005, 2490, shot=1),
        victim(STALLED, shot=2),
        fired(2005, 2490, shot=2),
    ]
    values = stats.summarise(CELL, requests, (0, NS))
    assert values["worst_gap_ms"] == 500
    assert values["null_worst_gap_ms"] == 20
    assert values["stalled_s"] == pytest.approx(0.5)
    assert values["null_stalled_s"] == 0
    assert values["stalls"] == 1
    assert values["recovery_s"] == 0
    assert values["aggressor_ttft_ms"] == 485
    assert values["quiet_gap_ms"] == 20
    assert values["quiet_rate_tok_s"] == pytest.approx(50, rel=0.01)
    assert values["victims"] == 2


def test_quiet_speed_is_that_of_the_real_shots_and_the_null_runs_stands_apart() -> None:
    slow = victim([40.0 * i for i in range(151)], shot=0)
    requests = [slow, fired(2005, 4005, shot=0), victim(STEADY), fired(2005, 2490)]
    values = stats.summarise(CELL, requests, (0, NS))
    assert (values["quiet_gap_ms"], values["null_quiet_gap_ms"]) == (20, 40)
    assert values["quiet_rate_tok_s"] == pytest.approx(50, rel=0.01)
    assert values["null_quiet_rate_tok_s"] == pytest.approx(25, rel=0.01)


def test_one_stream_that_did_not_recover_decides() -> None:
    lost = victim(every_20_ms(0, 2000), end_ms=6000, index=1)
    values = stats.summarise(CELL, [victim(STEADY), lost, fired(2005, 2490)], (0, NS))
    assert values["recovery_s"] is None


def test_without_shots_nothing_is_claimed() -> None:
    values = stats.summarise(CELL, [], None)
    assert values["worst_gap_ms"] is None
    assert values["stalls"] is None


def test_the_null_runs_loss_is_that_of_a_time_as_long_as_the_hit() -> None:
    """Both streams stall for the same 0.5 s; the sleep was four times as long as the hit."""
    null = [victim(STALLED, shot=0, end_ms=6000), fired(1900, 5900, shot=0)]
    hit = [victim(STALLED, end_ms=6000), fired(1900, 2900)]
    alone, with_it = stats.victims([*null, *hit])
    assert (alone.null, with_it.null) == (True, False)
    assert with_it.tokens_lost == pytest.approx(24, abs=1.5)
    assert alone.tokens_lost == pytest.approx(with_it.tokens_lost / 4, abs=1)
    (lone,) = stats.victims(null)
    assert lone.tokens_lost == pytest.approx(with_it.tokens_lost, abs=1.5)
