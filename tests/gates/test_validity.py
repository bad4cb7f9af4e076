"""Every code: planted and seen, not planted and not seen."""

from collections.abc import Mapping

import msgspec
import pytest

from twolane.clock import MS, NS
from twolane.gates.transfers import EngineRole, Values
from twolane.gates.validity import judge, judge_figures
from twolane.records import (
    AnyCell,
    Code,
    EngineTimes,
    GridCell,
    InterferenceCell,
    Ledger,
    MixCell,
    NeedleAnswer,
    NeedleResult,
    RampCell,
    Request,
    Role,
)

GRID = GridCell(id="c4 in100 out10 n120", users=4, prompt=100, output=10, requests=120)
SHOT = InterferenceCell(id="interference v1 n5000", victims=1, prompt=5000)
WINDOW = (500 * MS, 2500 * MS)
SPLIT: Mapping[str, EngineRole] = {"p": "prefill", "d": "decode"}
ONE: Mapping[str, EngineRole] = {"e": "both"}


def request(
    send_ms: float,
    *,
    role: Role = "grid",
    tokens: int = 10,
    gap_ms: float = 10,
    error: str | None = None,
    finish: str = "length",
    cached: int | None = None,
) -> Request:
    first = round((send_ms + gap_ms) * MS)
    gaps = [round(gap_ms * MS)] * (tokens - 1)
    return Request(
        id=f"r{send_ms}",
        cell=GRID.id,
        role=role,
        index=0,
        send_ns=round(send_ms * MS),
        due_ns=round(send_ms * MS),
        prompt_asked=100,
        output_asked=10,
        prompt_tokens=100,
        cached_tokens=cached,
        first_ns=first,
        last_ns=first + sum(gaps),
        end_ns=first + sum(gaps),
        output_tokens=tokens,
        finish_reason=finish,
        gaps_ns=gaps,
        error=error,
    )


def closed_loop(users: int, *, gap_ms: float = 10) -> list[Request]:
    """`users` streams of back-to-back requests of ten tokens, over three seconds."""
    length = 10 * gap_ms
    turns = round(3000 / length)
    return [
        request(user * length / users + length * turn, gap_ms=gap_ms)
        for user in range(users)
        for turn in range(turns)
    ]


def sources(**tokens: float) -> dict[str, float]:
    return {f'vllm:prompt_tokens_by_source_total{{source="{s}"}}': n for s, n in tokens.items()}


def codes(
    requests: list[Request],
    *,
    cell: AnyCell = GRID,
    roles: Mapping[str, EngineRole] = ONE,
    counted: Mapping[str, Values] | None = None,
    needle: NeedleResult | None = None,
    problem: str | None = None,
    lag_p99_ms: float | None = 2.0,
    block: int = 16,
) -> dict[str, Code]:
    """Judge with counters that stood at 1,000 before."""
    after = {engine: {n: v + 1000 for n, v in vs.items()} for engine, vs in (counted or {}).items()}
    before = {engine: dict.fromkeys(values, 1000.0) for engine, values in (counted or {}).items()}
    found = judge(
        cell,
        requests,
        WINDOW,
        before,
        after,
        roles,
        needle=needle,
        block_size=block,
        problem=problem,
        lag_p99_ms=lag_p99_ms,
    )
    return {code.code: code for code in found}


CLEAN = closed_loop(4)
GOOD_SPLIT = {
    "p": sources(local_compute=12_000, local_cache_hit=0),
    "d": sources(local_compute=120, local_cache_hit=0, external_kv_transfer=11_880)
    | {"vllm:nixl_num_failed_transfers_total": 0.0},
}


def test_a_clean_cell_has_no_codes() -> None:
    assert codes(CLEAN, counted={"e": sources(local_compute=12_000, local_cache_hit=0)}) == {}


def test_a_clean_split_has_no_codes() -> None:
    assert codes(CLEAN, roles=SPLIT, counted=GOOD_SPLIT) == {}


def test_a_cell_without_metrics_is_judged_by_what_there_is() -> None:
    assert codes(CLEAN, roles=SPLIT) == {}


# ---------------------------------------------------------------------------------------- gate


def answer(ok: bool) -> NeedleAnswer:
    return NeedleAnswer(
        request="n",
        length=500,
        depth=0.5,
        expected="1",
        got="1" if ok else "2",
        ok=ok,
        reason="" if ok else "wrong value",
    )


def test_needle() -> None:
    assert "NEEDLE" not in codes(CLEAN, needle=NeedleResult(answers=[answer(True)]))
    missed = codes(CLEAN, needle=NeedleResult(answers=[answer(True), answer(False)]))
    assert missed["NEEDLE"].why == (
        "1 of 2 needles missed, first at 500 tokens, depth 0.5: wrong value"
    )


def test_a_gate_without_answers_did_not_pass() -> None:
    assert "NEEDLE" in codes(CLEAN, needle=NeedleResult())


# ------------------------------------------------------------------------------------- failure


def test_failed_counts_and_tells_the_first_error() -> None:
    bad = codes([*CLEAN, request(0, error="HTTP 500: planted")])
    assert bad["FAILED"].value == 1
    assert bad["FAILED"].why == "1 of 121 requests failed, first: HTTP 500: planted"


def test_failed_also_when_the_driver_gave_up() -> None:
    assert codes(CLEAN, problem="load worker 0 died")["FAILED"].why == "load worker 0 died"


# --------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize(("hit", "seen"), [(110, False), (130, True)])
def test_cache_by_the_engines_counters(hit: float, seen: bool) -> None:
    counted = {"e": sources(local_compute=12_000 - hit, local_cache_hit=hit)}
    assert ("CACHE" in codes(CLEAN, counted=counted)) is seen


def test_cache_of_the_decode_engine_counts_too() -> None:
    counted = GOOD_SPLIT | {"d": sources(local_cache_hit=6000, external_kv_transfer=6000)}
    assert "decode engines" in codes(CLEAN, roles=SPLIT, counted=counted)["CACHE"].why


def test_cache_by_usage_where_there_are_no_counters() -> None:
    warm = [request(r.send_ns / MS, cached=50) for r in CLEAN]
    cold = [request(r.send_ns / MS, cached=0) for r in CLEAN]
    assert codes(warm)["CACHE"].value == 0.5
    assert "CACHE" not in codes(cold)


def test_usage_does_not_outvote_the_counters() -> None:
    """A decode engine reports the tokens it received as cached."""
    moved = [request(r.send_ns / MS, cached=99) for r in CLEAN]
    assert "CACHE" not in codes(moved, roles=SPLIT, counted=GOOD_SPLIT)


# --------------------------------------------------------------------------------------- split


def test_a_decode_engine_that_prefills_itself_is_degenerate() -> None:
    counted = {"d": sources(local_compute=12_000, external_kv_transfer=0)}
    assert "computed 12000" in codes(CLEAN, roles=SPLIT, counted=counted)["DEGENERATE"].why


def test_a_block_a_request_is_not() -> None:
    counted = {"d": sources(local_compute=16 * 120, external_kv_transfer=12_000 - 16 * 120)}
    assert "DEGENERATE" not in codes(CLEAN, roles=SPLIT, counted=counted)


def test_kv_that_did_not_arrive_is_degenerate() -> None:
    counted = {"d": sources(local_compute=0, external_kv_transfer=6000)}
    assert "KV of 6000" in codes(CLEAN, roles=SPLIT, counted=counted)["DEGENERATE"].why


@pytest.mark.parametrize(
    "name",
    [
        "vllm:nixl_num_failed_transfers_total",
        "vllm:nixl_num_failed_notifications_total",
        "vllm:nixl_num_kv_expired_reqs_total",
        "vllm:nixl_num_notifications_after_expiry_total",
    ],
)
def test_transfer_faults_are_degenerate(name: str) -> None:
    counted = {"p": {name: 1.0}, "d": {**GOOD_SPLIT["d"]}}
    assert "DEGENERATE" in codes(CLEAN, roles=SPLIT, counted=counted)


def test_an_aggregated_engine_may_compute() -> None:
    assert "DEGENERATE" not in codes(CLEAN, counted={"e": sources(local_compute=12_000)})


# -------------------------------------------------------------------------------------- length


def test_length_of_an_answer_that_ended_early() -> None:
    short = codes([*CLEAN[1:], request(0, tokens=7, finish="stop")])["LENGTH"]
    assert (short.value, short.limit) == (7, 10)


def test_length_of_a_victim_that_ended_by_itself() -> None:
    early = request(0, role="victim", tokens=3000)
    stopped = request(0, role="victim", tokens=3000, finish="stopped_by_client")
    assert "LENGTH" in codes([early], cell=SHOT)
    assert "LENGTH" not in codes([stopped], cell=SHOT)


def test_a_failed_request_has_no_length() -> None:
    assert "LENGTH" not in codes([request(0, tokens=3, error="cut")])


# --------------------------------------------------------------------------- engine and client


def test_preempt() -> None:
    assert "PREEMPT" in codes(CLEAN, counted={"e": {"vllm:num_preemptions_total": 2.0}})
    assert "PREEMPT" not in codes(CLEAN, counted={"e": {"vllm:num_preemptions_total": 0.0}})


def test_client() -> None:
    assert codes(CLEAN, lag_p99_ms=80)["CLIENT"].limit == 50
    assert "CLIENT" not in codes(CLEAN, lag_p99_ms=None)


# ---------------------------------------------------------------------------------- the window


def test_inflight_below_the_target() -> None:
    """The source's proxy held 100 of 256: here three of four."""
    assert codes(closed_loop(3))["INFLIGHT"].value == pytest.approx(3, rel=0.01)


def test_inflight_is_not_judged_in_other_cells() -> None:
    victim = request(0, role="victim", finish="stopped_by_client")
    assert codes([victim], cell=SHOT) == {}


def test_little_when_requests_wait_where_no_one_looks() -> None:
    """Every request ends long after its last token could have come: time without throughput."""
    late = [
        Request(
            id=r.id,
            cell=r.cell,
            role=r.role,
            index=0,
            send_ns=r.send_ns - NS,
            due_ns=r.due_ns,
            output_asked=10,
            first_ns=r.first_ns,
            last_ns=r.last_ns,
            end_ns=r.end_ns,
            output_tokens=10 if number % 2 else 1,
            finish_reason=r.finish_reason,
            gaps_ns=r.gaps_ns,
        )
        for number, r in enumerate(CLEAN)
    ]
    assert "LITTLE" in codes(late)


def test_unsteady() -> None:
    window = (0, 20 * NS)
    steady = [request(100.0 * i) for i in range(200)]
    slower = [request(100.0 * i) for i in range(100)]
    slower += [request(10_000 + 200.0 * i, gap_ms=20) for i in range(50)]
    cell = GridCell(id="c1", users=1, prompt=100, output=10, seconds=20)

    def seen(requests: list[Request]) -> bool:
        found = judge(cell, requests, window, {}, {}, ONE)
        return "UNSTEADY" in [code.code for code in found]

    assert not seen(steady)
    assert seen(slower)


@pytest.mark.parametrize(
    ("held", "coded"),
    [
        ([4.0] * 20, False),
        ([3.0, 4.0] * 20, True),  # 3.5 +- 0.24 of 4
        ([2.0, 4.0, 4.0, 4.0, 4.0] * 3, False),  # 3.6 +- 0.6: too few to tell
        ([1.0] * 9, False),
        ([1.0] * 10, True),
    ],
)
def test_a_router_that_holds_requests_back_is_seen_at_the_engines(
    held: list[float], coded: bool
) -> None:
    found = judge(GRID, CLEAN, WINDOW, {}, {}, {}, engines_held=held)
    assert [code.code for code in found] == (["INFLIGHT"] if coded else [])


MIX = MixCell(id="mix", prompt=100, share=0, rate=50, short=100, output=10, seconds=2)


@pytest.mark.parametrize(
    ("early", "late", "coded"), [(8, 4, False), (400, 360, False), (400, 200, True)]
)
def test_an_open_loop_is_unsteady_only_beyond_chance(early: int, late: int, coded: bool) -> None:
    """`early` requests in the window's first half, `late` in its second."""
    sent = [500 + 900 * i / early for i in range(early)]
    sent += [1500 + 900 * i / late for i in range(late)]
    arrived = [request(send_ms, role="short", gap_ms=1) for send_ms in sent]
    assert ("UNSTEADY" in codes(arrived, cell=MIX)) == coded


# ---------------------------------------------------------------------------------- conversation

RAMP = RampCell(id="ramp 800", prompt=800, users=1, turns=2, output=10)


def turn(cached: int, *, p_cached: int | None = None) -> Request:
    """The second turn of 800 tokens, after one of 400 that was answered with 10; blocks of 16."""
    ledger = None
    if p_cached is not None:
        times = EngineTimes(cached_tokens=p_cached)
        ledger = Ledger(path="split", boot="b", received_ns=0, p_times=times)
    return msgspec.structs.replace(
        request(600, role="turn", cached=cached),
        index=1,
        prompt_tokens=800,
        history_prompt=400,
        history=410,
        ledger=ledger,
    )


@pytest.mark.parametrize(
    ("cached", "clean"), [(400, True), (407, True), (416, False), (0, False), (384, False)]
)
def test_a_turn_must_find_its_history_and_no_more(cached: int, clean: bool) -> None:
    assert ("CACHE" not in codes([turn(cached)], cell=RAMP, block=16)) == clean


def test_in_a_split_the_prefill_engine_counts() -> None:
    assert codes([turn(790, p_cached=400)], cell=RAMP, block=16) == {}
    code = codes([turn(400, p_cached=0)], cell=RAMP, block=16)["CACHE"]
    assert "0.0% of the prompt of user 0, turn 2 were cached, expected 50.0%" in code.why


def test_history_on_the_decode_engine_need_not_come_again() -> None:
    counted = {"d": sources(local_cache_hit=400, external_kv_transfer=399, local_compute=1)}
    asked = [turn(400, p_cached=400)]
    assert codes(asked, cell=RAMP, roles=SPLIT, counted=counted, block=16) == {}
    short = {"d": sources(local_cache_hit=400, external_kv_transfer=300, local_compute=10)}
    assert "DEGENERATE" in codes(asked, cell=RAMP, roles=SPLIT, counted=short, block=16)


@pytest.mark.parametrize(("resolution_ms", "coded"), [(None, False), (12.0, False), (80.0, True)])
def test_a_client_that_stalls_by_itself_claims_nothing_smaller(
    resolution_ms: float | None, coded: bool
) -> None:
    found = judge(GRID, CLEAN, WINDOW, {}, {}, {}, resolution_ms=resolution_ms)
    assert [(code.code, code.value) for code in found] == ([("CLIENT", 80)] if coded else [])


def test_busy_tells_what_it_cost() -> None:
    (code,) = judge(GRID, CLEAN, WINDOW, {}, {}, {}, foreign_share=0.25, lost_share=0.021)
    assert code.why.endswith("during the cell; it cost an engine at most 2% of its cores")
    assert judge(GRID, CLEAN, WINDOW, {}, {}, {}, foreign_share=0.05, lost_share=0.9) == []


@pytest.mark.parametrize(("share", "coded"), [(None, False), (0.03, False), (0.25, True)])
def test_busy(share: float | None, coded: bool) -> None:
    found = judge(GRID, CLEAN, WINDOW, {}, {}, {}, foreign_share=share)
    assert [(code.code, code.value) for code in found] == ([("BUSY", 0.25)] if coded else [])


# ----------------------------------------------------------------------------- published figures


@pytest.mark.parametrize(
    ("ttft_ms", "tpot_ms", "throughput", "inflight"),
    [
        pytest.param(1131, 10.0, 4195, 46.5, id="27B split, 64 users"),
        pytest.param(100, 10.7, 5117, 55.2, id="27B TP4 x DP2, 64 users"),
        pytest.param(9400, 13.1, 2374, 52.9, id="MoE split, 64 users"),
    ],
)
def test_a_published_table_is_asked_what_it_means(
    ttft_ms: float, tpot_ms: float, throughput: float, inflight: float
) -> None:
    """Eight GPUs, 1K-token prompts and answers, as a campaign printed them for 64 users."""
    code = judge_figures(64, 1024, throughput_tok_s=throughput, ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    assert code is not None
    assert code.code == "LITTLE"
    assert code.value == pytest.approx(inflight, abs=0.1)


@pytest.mark.parametrize("users", [1, 64])
def test_figures_that_fit_together_have_no_code(users: int) -> None:
    e2e_s = 0.1 + 1023 * 0.0107
    held = {"throughput_tok_s": users * 1024 / e2e_s, "ttft_ms": 100.0, "tpot_ms": 10.7}
    assert judge_figures(users, 1024, **held) is None
