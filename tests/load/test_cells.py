"""Fresh, ramp and mix cells driven against the golden engine."""

import dataclasses
import itertools

import msgspec
import pytest
from tests.golden_engine import GoldenEngine, Pace, serve

from twolane.analysis import stats
from twolane.clock import MS, NS
from twolane.gates import conversation
from twolane.gates.validity import judge
from twolane.load.driver import CellRun, Progress, Target, drive, form_of
from twolane.load.mix import schedule
from twolane.records import AnyCell, Code, FreshCell, MixCell, RampCell, Request

BLOCK = 16
FAST = Pace(ttft_s=0.002, gap_s=0.002, cache_block=BLOCK, knows=True)
RAMP = RampCell(id="ramp 1200", prompt=1200, users=2, turns=4, after=600, output=16)
MIX = MixCell(
    id="mix", prompt=900, share=0.2, rate=40, short=64, output=4, seconds=1.0
)  # fmt: skip


class Driven:
    def __init__(self, engine: GoldenEngine, port: int) -> None:
        self.engine = engine
        self.target = Target("127.0.0.1", port, "golden", patience_s=1.0)
        self.requests: list[Request] = []
        self.told: list[Progress] = []

    async def drive(self, cell: AnyCell) -> CellRun:
        return await drive(
            cell, self.target, seed=1, record=self.requests.append, progress=self.told.append
        )

    def roles(self, role: str) -> list[Request]:
        return [r for r in self.requests if r.role == role]

    def judged(self, cell: AnyCell, run: CellRun) -> list[Code]:
        return judge(
            cell, self.requests, run.window_ns, {}, {}, {}, block_size=BLOCK, problem=run.problem
        )


async def driven(cell: AnyCell, pace: Pace) -> tuple[Driven, CellRun]:
    async with serve(pace) as (engine, port):
        one = Driven(engine, port)
        return one, await one.drive(cell)


# ---------------------------------------------------------------------------------------- fresh


async def test_fresh_prompts_come_one_at_a_time_and_are_new() -> None:
    cell = FreshCell(id="fresh 1500", prompt=1500, requests=3, output=8)
    one, run = await driven(cell, FAST)
    assert one.engine.most_running == 1
    assert [(r.role, r.prompt_tokens, r.cached_tokens) for r in one.requests] == [
        ("fresh", 1500, 0)
    ] * 3
    assert one.judged(cell, run) == []
    values = stats.summarise(cell, one.requests, run.window_ns)
    assert values["decode_tok_s"] == pytest.approx(500, rel=0.3)
    assert values["ttft_ms"] == pytest.approx(2, abs=10)


async def test_a_fresh_prompt_that_fails_is_told_and_the_next_one_sent() -> None:
    cell = FreshCell(id="fresh 1500", prompt=1500, requests=2)
    one, run = await driven(cell, Pace(longest_prompt=1000))
    assert [r.error for r in one.requests] == ["HTTP 400: planted refusal"] * 2
    assert [code.code for code in one.judged(cell, run)] == ["FAILED"]
    assert stats.summarise(cell, one.requests, run.window_ns)["ttft_ms"] == float("inf")


@pytest.mark.parametrize(("bytewise", "form"), [(True, "text"), (False, "ids")])
async def test_lengths_are_exact_whatever_a_token_is(bytewise: bool, form: str) -> None:
    async with serve(dataclasses.replace(FAST, bytewise=bytewise)) as (engine, port):
        one = Driven(engine, port)
        one.target = dataclasses.replace(one.target, form=await form_of(one.target))
        assert one.target.form == form
        await one.drive(FreshCell(id="fresh 700", prompt=700, output=4))
    assert [r.prompt_tokens for r in one.requests] == [700]


# ----------------------------------------------------------------------------------------- ramp


async def test_a_ramp_keeps_its_history_and_knows_what_is_cached() -> None:
    one, run = await driven(RAMP, FAST)
    assert run.problem is None
    turns = sorted(one.requests, key=lambda r: (r.user, r.index))
    assert [(r.user, r.index) for r in turns] == list(itertools.product(range(2), range(4)))
    assert [r.prompt_tokens for r in turns] == [300, 600, 900, 1200] * 2
    assert [r.history for r in turns] == [0, 316, 616, 916] * 2
    assert [r.cached_tokens for r in turns] == [0, 304, 608, 912] * 2
    assert {r.needle for r in turns} == {"ok"}
    assert one.judged(RAMP, run) == []
    assert {r.worker for r in turns if r.user == 1} == {1}


async def test_the_second_user_starts_when_the_first_has_come_far_enough() -> None:
    one, _ = await driven(RAMP, FAST)
    reached = next(r for r in one.requests if r.user == 0 and r.prompt_asked == 600)
    started = next(r for r in one.requests if r.user == 1 and r.index == 0)
    before = next(r for r in one.requests if r.user == 0 and r.index == 3)
    assert (reached.end_ns or 0) <= started.send_ns < (before.end_ns or 0)


@pytest.mark.parametrize(
    ("pace", "why"),
    [
        (Pace(knows=True, longest_prompt=700), "turn 3 of 4 (900 tokens): HTTP 400"),
        (Pace(knows=True, cut_after=1), "a first token came, then connection lost after 1"),
        (Pace(knows=True, hang_after=1), "a first token came, then silent for 1 s"),
    ],
)
async def test_a_turn_that_fails_ends_its_conversation_with_the_reason(
    pace: Pace, why: str
) -> None:
    one, run = await driven(RAMP, pace)
    assert run.problem is not None
    assert "user 0: turn" in run.problem
    assert why in run.problem
    failed = [r for r in one.requests if r.user == 0]
    assert failed[-1].error is not None
    codes = {code.code: code for code in one.judged(RAMP, run)}
    assert why in codes["FAILED"].why
    assert ("user 1: its turn to begin never came" in run.problem) == (len(failed) == 1)


async def test_a_ramp_on_an_engine_that_forgets_is_coded() -> None:
    one, run = await driven(RAMP, Pace(ttft_s=0.002, gap_s=0.002, knows=True))
    (code,) = one.judged(RAMP, run)
    assert (code.code, code.value) == ("CACHE", 0)
    assert "turn 2 were cached, expected 50.7%" in code.why


async def test_a_missed_needle_is_coded_and_the_conversation_goes_on() -> None:
    one, run = await driven(RAMP, Pace(ttft_s=0.002, gap_s=0.002, cache_block=BLOCK))
    assert run.problem is None
    (code,) = one.judged(RAMP, run)
    assert (code.code, code.value) == ("NEEDLE", 8)
    assert stats.summarise(RAMP, one.requests, run.window_ns)["needles_missed"] == 8


def test_turn_values_are_named_by_user_and_turn() -> None:
    turn = Request(
        id="a", cell="c", role="turn", index=2, user=1, send_ns=0, due_ns=0, first_ns=5 * MS,
        last_ns=15 * MS, gaps_ns=[10 * MS], output_tokens=2, prompt_tokens=100, cached_tokens=50,
        needle="ok",
    )  # fmt: skip
    values = stats.summarise(RAMP, [turn], None)
    assert values["u1_t03_ttft_ms"] == values["last_ttft_ms"] == 5
    assert values["u1_t03_decode_tok_s"] == pytest.approx(100)
    assert values["u1_t03_cached_share"] == 0.5
    assert values["u1_t03_needle_missed"] == 0


# ------------------------------------------------------------------------------------------ mix


async def test_a_mix_sends_what_was_drawn_when_it_falls_due() -> None:
    one, run = await driven(MIX, FAST)
    planned = schedule(MIX, "", 1)
    assert len(one.requests) == len(planned)
    by_key = sorted(one.requests, key=lambda r: r.index)
    assert [r.prompt_tokens for r in by_key] == [due.ask.prompt for due in planned]
    assert {r.role for r in by_key} == {"warmup", "short", "long"}
    for (a, at), (b, bt) in itertools.pairwise(
        (r.due_ns, due.at_ns) for r, due in zip(by_key, planned, strict=True)
    ):
        assert b - a == bt - at
    assert max(r.send_ns - r.due_ns for r in by_key) < 100 * MS
    assert min(r.send_ns - r.due_ns for r in by_key) >= 0
    assert {r.worker for r in by_key if r.prompt_asked == 900} == {0}
    assert run.window_ns is not None
    assert stats.seconds_of(run.window_ns) == pytest.approx(1)
    counted = [r for r in by_key if r.role != "warmup"]
    assert all(run.window_ns[0] <= r.due_ns < run.window_ns[1] for r in counted)


async def test_long_prompts_in_the_way_of_short_ones_are_seen() -> None:
    cell = msgspec.structs.replace(MIX, output=32)
    slow = Pace(ttft_s=0.002, gap_s=0.002, prefill_s_per_token=1e-4)
    in_the_way, run = await driven(cell, slow)
    values = stats.summarise(cell, in_the_way.requests, run.window_ns)
    assert (values["long_ttft_p50_ms"] or 0) > 90
    assert (values["worst_gap_ms"] or 0) > 50
    written = [in_the_way.engine.by_id(r.id).written_ns for r in in_the_way.roles("short")]
    truth = max(b - a for w in written for a, b in itertools.pairwise(w)) / MS
    assert values["worst_gap_ms"] == pytest.approx(truth, abs=50)


def test_a_client_that_cannot_keep_up_is_coded() -> None:
    late = [
        Request(id=str(i), cell="mix", role="short", index=i, due_ns=i * NS, send_ns=i * NS + NS)
        for i in range(3)
    ]
    codes = judge(MIX, late, (0, 3 * NS), {}, {}, {})
    assert [code.why for code in codes if code.code == "CLIENT"] == [
        "requests left 1000 ms after they fell due (median)"
    ]


def test_without_a_share_a_mix_is_an_open_loop_of_short_requests() -> None:
    cell = MixCell(id="mix", prompt=64, share=0, rate=100, short=64, seconds=10)
    planned = schedule(cell, "", 3)
    assert len(planned) == pytest.approx(1200, rel=0.1)
    assert {due.ask.role for due in planned} == {"warmup", "short"}


def test_a_ramp_ends_at_its_length() -> None:
    assert conversation.lengths(1000, 3) == [333, 666, 1000]
