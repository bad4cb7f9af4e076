"""Steps take as long as they took before."""

from twolane.clock import NS
from twolane.config import parse_cell
from twolane.pace import LAUNCH_S, Pace, estimate_s
from twolane.records import Event


def event(at_s: float, step: str, cell: str | None = None) -> Event:
    return Event(t_ns=round(at_s * NS), run="r", step=step, text="", cell=cell)


def test_a_step_is_expected_to_take_what_it_took_before() -> None:
    cell = parse_cell("interference victims=2 prompt=6000")
    pace = Pace((cell,))
    first = [event(0, "launch"), event(30, "ready"), event(40, "cell", cell.id), event(65, "stop"),
             event(67, "done")]  # fmt: skip
    told = [pace.annotate(e).expect_s for e in first]
    assert told == [LAUNCH_S, None, estimate_s(cell), None, None]
    again = [pace.annotate(e).expect_s for e in first]
    assert again == [40.0, None, 25.0, 2.0, None]


def test_first_guesses() -> None:
    assert estimate_s(parse_cell("interference victims=2 prompt=6000")) == 8 + 8 + 4 + 3
    assert estimate_s(parse_cell("c4 in512 out64 30s")) == 30
    assert estimate_s(parse_cell("needle 8000")) == 12


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
    assert (pace.expect_s("", "launch:"), pace.expect_s("", "stop:")) == (LAUNCH_S, None)
    for at_s, step in [(10, "launch"), (50, "cell"), (51, "stop"), (53, "failed")]:
        pace.annotate(event(at_s, step, cell.id if step == "cell" else None))
    assert pace.expect_s("", "launch:") == 40.0  # it was whole
    assert pace.expect_s("", f"cell:{cell.id}") == estimate_s(cell)
    assert pace.seen == 0
