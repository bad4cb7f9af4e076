"""Whole campaigns on golden engines, from the load client to the verdict, in worlds of known truth.

A few of each, with differences too large to be missed: how often verdicts are right where it is
close is told by `scripts/bench/verdicts` (docs/results/verdicts.md).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from tests.golden_engine import GoldenEngine, Pace
from tests.golden_verdicts import ARMS, WORLDS, Drawn, Judged, Played, World, play, summarise

from twolane.analysis.results import load

MEASURES: Final = ("ttft_p50_ms", "tpot_p50_ms", "throughput_tok_s")
AGAIN: Final = 5
"""How often runs are done again that a busy machine has spoilt."""


def short(world: World, blocks: int, factor: float) -> World:
    """The same world with fewer, shorter runs and a larger difference."""
    return replace(
        world,
        blocks=blocks,
        second=factor if world.second != 1 else 1.0,
        group_b=factor if world.group_b != 1 else 1.0,
        cell="c2 in64 out6 n8",
    )


def played(world: World, folder: Path) -> Played:
    return asyncio.run(play(world, 1, 0, folder, again=AGAIN))


def test_a_planted_difference_is_found_through_the_whole_chain(tmp_path: Path) -> None:
    world = short(WORLDS["planted"], blocks=3, factor=2.0)
    one = played(world, tmp_path)
    assert (one.points, one.codes, tuple(one.judged)) == (6, {}, MEASURES)
    assert {measure: judged.better for measure, judged in one.judged.items()} == dict.fromkeys(
        MEASURES, ARMS[0]
    )
    assert summarise(world, [one]).faults == []
    for run in load(tmp_path / "verdicts").runs:  # as any campaign leaves it
        assert run.finished
        assert run.checked.sealed
        assert [request.role for request in run.requests()].count("grid") == 8


def test_a_groups_difference_is_nobodys_where_groups_are_swapped(tmp_path: Path) -> None:
    one = played(short(WORLDS["swapped"], blocks=2, factor=2.0), tmp_path)
    assert {judged.outcome for judged in one.judged.values()} == {"cannot tell"}
    assert {judged.confounded for judged in one.judged.values()} == {()}
    assert [judged.logs[0] * judged.logs[1] < 0 for judged in one.judged.values()] == [True] * 3


def test_a_groups_difference_is_confounded_where_they_are_not(tmp_path: Path) -> None:
    world = short(WORLDS["not-swapped"], blocks=2, factor=2.0)
    one = played(world, tmp_path)
    assert {judged.outcome for judged in one.judged.values()} == {"cannot tell"}
    assert {judged.confounded for judged in one.judged.values()} == {("devices",)}
    assert summarise(world, [one]).faults == []


# ---------------------------------------------------------------------------------- the worlds


def test_what_is_drawn_depends_on_the_world_the_seed_and_the_number_alone() -> None:
    world = WORLDS["planted"]
    first = Drawn(world, 1, 7).pace("first", 0, "GROUP_A")
    assert Drawn(world, 1, 7).pace("first", 0, "GROUP_A") == first
    others = [Drawn(world, 1, 8), Drawn(world, 2, 7), Drawn(WORLDS["aa5"], 1, 7)]
    assert first not in [other.pace("first", 0, "GROUP_A") for other in others]
    second = Drawn(world, 1, 7).pace("second", 0, "GROUP_A")
    assert second.ttft_s != first.ttft_s


def test_without_noise_a_pace_is_the_planted_one() -> None:
    silent = replace(WORLDS["planted"], of_block=0.0, of_run=0.0, of_answer=0.0, group_b=1.5)
    drawn = Drawn(silent, 1, 0)
    base, slow = (drawn.pace(arm, 0, "GROUP_A").ttft_s for arm in ARMS)
    assert slow / base == pytest.approx(1.1)
    assert drawn.pace("first", 0, "GROUP_B").gap_s / silent.gap_s == pytest.approx(1.5)


def test_answers_of_a_jittering_engine_have_paces_of_their_own() -> None:
    engine, again = (GoldenEngine(Pace(jitter=0.05, seed=3)) for _ in range(2))
    drawn = [engine.own_pace() for _ in range(200)]
    assert drawn == [again.own_pace() for _ in range(200)]
    assert 0.98 < sorted(drawn)[100] < 1.02
    assert GoldenEngine(Pace()).own_pace() == 1.0


# --------------------------------------------------------------------------------- the summary


def judged(better: str | None, *, ratio: float = 1.0, confounded: bool = False) -> Judged:
    outcome = "cannot tell" if better is None else "A better"
    devices = ("devices",) if confounded else ()
    return Judged(outcome=outcome, better=better, ratio=ratio, confounded=devices, logs=[0.0, 0.1])


def campaigns(world: str, *verdicts: Judged) -> list[Played]:
    return [
        Played(world=world, seed=1, number=i, seconds=1.0, points=10, codes={}, judged={"m": one})
        for i, one in enumerate(verdicts)
    ]


def test_a_summary_counts_what_is_called_better_wrongly_and_rightly() -> None:
    found = [judged("first")] * 18 + [judged("second"), judged(None)]
    (one,) = summarise(WORLDS["planted"], campaigns("planted", *found)).measures
    assert (one.false.count, one.found.count, one.found.n) == (1, 18, 20)
    assert one.spread == pytest.approx(0.05)  # of two runs that differ by 0.1: sqrt(0.005 / 2)
    equal = summarise(WORLDS["aa5"], campaigns("aa5", *found))
    assert (equal.measures[0].false.count, equal.any_false.count) == (19, 19)
    assert len(equal.faults) == 1


def test_a_summary_wants_nine_of_ten_found_and_all_confounded() -> None:
    some = campaigns("planted", *[judged("first")] * 17, *[judged(None)] * 3)
    assert "m found in 85.0%" in summarise(WORLDS["planted"], some).faults[0]
    named = [judged(None, confounded=True)] * 9
    assert summarise(WORLDS["not-swapped"], campaigns("not-swapped", *named)).faults == []
    silent = campaigns("not-swapped", *named, judged(None))
    assert "confounded in 90.0%" in summarise(WORLDS["not-swapped"], silent).faults[0]
