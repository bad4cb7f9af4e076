"""Lines about speculative decoding: read back what vLLM's own formula wrote, told apart by cell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.analysis.speculation import DRAFTED, Line, Logged, read, values

PREFIX = b"(APIServer pid=7) INFO 11-30 02:14:15 [metrics.py:120] "

Drafts = list[tuple[int, int]]
"""Of each draft: tokens proposed, tokens of them accepted."""


def written(drafts: Drafts, positions: int) -> bytes:
    """The line that vLLM 0.26 and 0.32 write of these drafts (v1/spec_decode/metrics.py)."""
    accepted, drafted = sum(a for _, a in drafts), sum(d for d, _ in drafts)
    rates = (sum(a > n for _, a in drafts) / len(drafts) for n in range(positions))
    share = accepted / drafted * 100 if drafted else float("nan")
    return (
        PREFIX
        + (
            f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / len(drafts):.2f}, "
            f"Accepted throughput: {accepted / 10:.2f} tokens/s, "
            f"Drafted throughput: {drafted / 10:.2f} tokens/s, "
            f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
            f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}, "
            f"Avg Draft acceptance rate: {share:.1f}%\n"
        ).encode()
    )


@st.composite
def drafts_of(draw: st.DrawFn, most: int = 60) -> tuple[Drafts, int]:
    positions = draw(st.integers(1, 8))
    proposed = st.integers(1, positions)
    one = proposed.flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size)))
    return draw(st.lists(one, min_size=1, max_size=most)), positions


@given(drafts_of())
def test_a_line_is_read_back_as_what_it_was_made_of(made: tuple[Drafts, int]) -> None:
    drafts, positions = made
    (line,) = read(b"something else\n" + written(drafts, positions) + b"and more\n")
    assert line.accepted == sum(accepted for _, accepted in drafts)
    assert line.drafted == sum(proposed for proposed, _ in drafts)
    assert len(line.rates) == positions
    tokens_a_step = 1 + line.accepted / len(drafts)
    assert line.tokens_a_step == pytest.approx(tokens_a_step, abs=0.0051)
    if line.accepted:  # else the drafts' number stands nowhere, and nothing depends on it
        together = line.accepted / len(drafts)
        assert line.drafts == pytest.approx(len(drafts), rel=0.00051 * positions / together)
    assert 1 + line.accepted / line.drafts == pytest.approx(tokens_a_step, abs=0.0005 * positions)


@given(drafts_of(), st.data())
def test_a_line_that_was_cut_or_damaged_is_no_line(
    made: tuple[Drafts, int], data: st.DataObject
) -> None:
    whole = written(*made).rstrip()
    assert read(whole[: data.draw(st.integers(0, len(whole) - 1))]) == []
    start = len(PREFIX)
    at = data.draw(st.integers(start, len(whole) - 1))
    for line in read(whole[:at] + b"\x00" + whole[at + 1 :]):
        pytest.fail(f"read from a damaged line: {line}")


@given(st.binary(max_size=300))
def test_no_bytes_raise(noise: bytes) -> None:
    read(noise + b"SpecDecoding metrics: " + noise)


def test_other_engines_lines_are_none_of_it() -> None:
    assert read(b"DiffusionDecoding metrics: Committed token throughput: 3.00 tokens/s\n") == []
    assert read(b"Engine 000: Avg prompt throughput: 0.0 tokens/s\n") == []


# ------------------------------------------------------------------------------- of which cell


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.data())
def test_lines_count_for_a_cell_if_all_of_them_was_drafted_in_it(
    steps: list[int], data: st.DataObject
) -> None:
    """Each step proposes some tokens; some steps end with a line about all since the last one."""
    begin = data.draw(st.integers(0, len(steps)), "first step of the cell")
    told_after = data.draw(st.sets(st.integers(0, len(steps) - 1)), "steps that end with a line")
    lines: list[tuple[Line, bool]] = []  # and whether the cell alone is in it
    since, earlier = 0, 0
    for step in sorted(told_after):
        drafted = sum(steps[since : step + 1])
        line = Line(1.0, 0, drafted, (0.0,))
        if step < begin:
            earlier += drafted
        elif drafted:
            lines.append((line, sum(steps[since:begin]) == 0 if since < begin else True))
        since = step + 1
    logged = Logged(earlier, tuple(line for line, _ in lines))
    inside = logged.inside(float(sum(steps[:begin])))
    assert inside == tuple(line for line, alone in lines if alone)


def test_values_are_weighted_by_drafts_and_say_what_they_cover() -> None:
    """100 drafts of three tokens, then 300: the line before the cell is none of it."""
    first = [(3, 3)] * 50 + [(3, 0)] * 50
    second = [(3, 1)] * 300
    lines = read(written(first, 3) + written(second, 3))
    logged = {"d": Logged(600, tuple(lines)), "p": Logged(0, ())}
    before = {"d": {DRAFTED: 600.0}, "p": {}}
    after = {"d": {DRAFTED: 600.0 + 1500}, "p": {}}
    assert values(logged, before, after) == pytest.approx(
        {
            "mtp_log_tokens_a_step": 1 + 450 / 400,
            "mtp_log_tokens_a_step_least": 2.0,
            "mtp_log_tokens_a_step_most": 2.5,
            "mtp_log_accepted_share": 450 / 1200,
            "mtp_log_accepted_share_pos0": 350 / 400,
            "mtp_log_accepted_share_pos1": 50 / 400,
            "mtp_log_accepted_share_pos2": 50 / 400,
            "mtp_log_lines": 2,
            "mtp_log_covers_share": 0.8,
        }
    )
    late = {"d": {DRAFTED: 601.0}, "p": {}}  # one token more had been drafted than lines had told
    assert values(logged, late, after)["mtp_log_tokens_a_step"] == 2.0


def test_without_counters_every_line_of_the_cells_time_counts() -> None:
    logged = {"d": Logged(0, tuple(read(written([(2, 1)], 2))))}
    told = values(logged, {}, {})
    assert told["mtp_log_tokens_a_step"] == 2.0
    assert "mtp_log_covers_share" not in told


def test_no_lines_no_values() -> None:
    assert values({}, {}, {}) == {}
    assert values({"d": Logged(0, ())}, {"d": {DRAFTED: 0.0}}, {"d": {DRAFTED: 90.0}}) == {}
