"""Steps take as long as they took before."""

import dataclasses

import pytest

from twolane.clock import NS
from twolane.config import parse_cell
from twolane.pace import CPU, Pace, Span, guess
from twolane.records import Event


def event(at_s: float, step: str, cell: str | None = None) -> Event:
    return Event(t_ns=round(at_s * NS), run="r", step=step, text="", cell=cell)


def test_a_step_is_expected_to_take_what_it_took_before() -> None:
    cell = parse_cell("interference victims=2 prompt=6000")
    pace = Pace((cell,))
    first = [event(0, "launch"), event(30, "ready"), event(40, "cell", cell.id), event(65, "stop"),
             event(67, "done")]  # fmt: skip
    told = [pace.annotate(e).expect_s for e in first]
    assert told == [CPU.launch_s, None, guess(cell).expect, None, None]
    again = [pace.annotate(e).expect_s for e in first]
    assert again == [40.0, None, 25.0, 2.0, None]


def test_first_guesses() -> None:
    """A cell's own seconds are sure; what the engines do meanwhile may be 1.7 times off."""
    slow = dataclasses.replace(CPU, prefill_tok_s=2000.0)
    found = guess(parse_cell("interference victims=2 prompt=6000"), slow)
    assert found.expect == 8 + 8 + 4 + 3
    assert found.low == pytest.approx(20 + 3 / 1.7)
    assert found.high == pytest.approx(20 + 3 * 1.7)
    assert guess(parse_cell("c4 in512 out64 30s")) == Span(30, 30, 30)
    assert guess(parse_cell("needle 8000"), slow).expect == 12
    assert guess(parse_cell("c4 in500 out100 n8"), slow).expect == 2 + 2 * 100 * slow.step_s


def test_a_step_that_was_seen_lies_between_the_shortest_and_the_longest() -> None:
    pace = Pace(())
    for at_s, arm, took in [(0, "a", 30), (100, "a", 40), (200, "a", 34), (300, "b", 50)]:
        for second, step in ((0, "launch"), (took, "cell"), (took + 1, "stop"), (took + 2, "done")):
            pace.annotate(Event(t_ns=(at_s + second) * NS, run="r", step=step, text="", arm=arm))
    assert pace.span_s("a", "launch:") == Span(30, 34, 40)
    alone = pace.span_s("b", "launch:")
    assert alone is not None
    assert (alone.low, alone.expect, alone.high) == pytest.approx((50 / 1.2, 50, 60))
    assert pace.span_s("c", "launch:") == Span(30, 50, 50), "of another arm: of all"
    assert pace.span_s("a", "cell:x") is None


def test_a_rate_that_was_seen_is_that_of_prompts_of_about_that_length() -> None:
    needle, long = parse_cell("needle 1000"), parse_cell("needle 100000")
    speed = CPU.taught([(needle, 1.0), (long, 600.0), (parse_cell("c1 in8 out8 60s"), 60.0)])
    assert speed.seen == ((1000, 3000.0), (100000, 500.0))
    assert speed.prefill_s(6000, prompt=2000) == 2.0
    assert speed.prefill_s(6000, prompt=50_000) == 12.0
    assert CPU.taught([(parse_cell("interference victims=1 prompt=60 quiet=9s"), 33.0)]) == CPU


def test_a_step_that_was_cut_took_no_time() -> None:
    """Whoever goes on begins anew, hours later or on another clock."""
    cell = parse_cell("interference victims=2 prompt=6000")
    pace = Pace((cell,))
    steps = [(0, "launch"), (9000, "begin"), (9001, "launch"), (9002, "cell")]
    for at_s, step in steps:
        pace.annotate(event(at_s, step))
    assert pace.expect_s("", "launch:") == 1.0


def test_a_run_that_was_interrupted_teaches_nothing_of_the_step_it_was_in() -> None:
    """Its engines are stopped in order: the stop is no proof that what came before was whole."""
    cell = parse_cell("interference victims=2 prompt=6000")
    pace = Pace((cell,))
    for at_s, step in [(0, "launch"), (2, "stop"), (3, "failed")]:
        pace.annotate(event(at_s, step))
    assert (pace.expect_s("", "launch:"), pace.expect_s("", "stop:")) == (CPU.launch_s, None)
    for at_s, step in [(10, "launch"), (50, "cell"), (51, "stop"), (53, "failed")]:
        pace.annotate(event(at_s, step, cell.id if step == "cell" else None))
    assert pace.expect_s("", "launch:") == 40.0  # it was whole
    assert pace.expect_s("", f"cell:{cell.id}") == guess(cell).expect
    assert pace.seen == 0
