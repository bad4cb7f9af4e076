"""The strips' geometry: area is tokens, and a stall is a hole of the right size."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from tests.report.synthetic import INTERFERENCE, make

from twolane.analysis.results import load
from twolane.report import timeline, waits
from twolane.report.timeline import HEIGHT, WIDTH, Axis, Panel, Step


@pytest.fixture
def panels(tmp_path: Path) -> dict[str, list[Panel]]:
    results = load(make(tmp_path / "r"))
    return {run.arm: timeline.panels(run, INTERFERENCE) for run in results.runs}


def test_the_null_shot_comes_first_and_holds_no_stall(panels: dict[str, list[Panel]]) -> None:
    null, real = panels["copies_2048"]
    assert (null.null, real.null) == (True, False)
    assert null.worst_ms < 20
    assert not any(strip.holes for strip in null.strips)


def test_the_worst_hole_is_the_worst_gap(panels: dict[str, list[Panel]]) -> None:
    hit, spared = panels["copies_2048"][1].strips
    assert [round(hole.length_ms) for hole in hit.holes] == [620, 2206, 524]
    assert hit.worst is not None
    assert round(hit.worst.length_ms) == 2206
    assert spared.holes == ()


def test_time_is_counted_from_the_aggressors_send(panels: dict[str, list[Panel]]) -> None:
    real = panels["split_1p1d"][1]
    assert real.begin_s == pytest.approx(-4, abs=0.1)
    assert real.hit_s == pytest.approx(3.446)
    assert real.end_s == pytest.approx(real.hit_s + 4, abs=0.1)


def area(path: str) -> float:
    """Of a band's outline, in SVG units squared."""
    x, _ = map(float, re.match(r"M([\d.]+) ([\d.]+)", path).groups())  # type: ignore[union-attr]
    total = 0.0
    for height, to in re.findall(r"V([\d.]+)H([\d.]+)", path):
        total += (HEIGHT - float(height)) * (float(to) - x)
        x = float(to)
    return total


def test_equal_areas_are_equal_numbers_of_tokens() -> None:
    axis = Axis(0.0, 10.0)
    fast = [Step(i * 0.02, (i + 1) * 0.02, 1) for i in range(100)]
    slow = [Step(2 + i * 0.08, 2 + (i + 1) * 0.08, 1) for i in range(100)]
    full = 100.0
    one, other = (timeline._band(steps, (), axis, full) for steps in (fast, slow))
    assert area(one) == pytest.approx(area(other), rel=0.05)
    assert area(one) == pytest.approx(100 / full / 10 * WIDTH * HEIGHT, rel=0.05)


def test_steps_too_fine_to_see_are_joined_with_all_their_tokens() -> None:
    steps = [Step(i * 0.001, (i + 1) * 0.001, 2) for i in range(1000)]
    joined = list(timeline._joined(steps, 0.01))
    assert len(joined) <= 100
    assert sum(step.tokens for step in joined) == 2000
    assert (joined[0].start_s, joined[-1].end_s) == (0.0, 1.0)


def test_a_stall_is_never_joined_with_its_neighbours() -> None:
    steps = [Step(0, 0.001, 1), Step(0.001, 0.1, 1), Step(0.1, 0.101, 1), Step(0.101, 0.9, 1)]
    assert list(timeline._joined(steps, 0.5, {0.001})) == [
        steps[0],
        steps[1],
        Step(0.1, 0.9, 2),
    ]


def test_a_lone_token_between_two_stalls_is_drawn(panels: dict[str, list[Panel]]) -> None:
    axis = Axis.over([panels["copies_256"][1]])
    holes = panels["copies_256"][1].strips[0].holes
    assert len(holes) == 16
    assert timeline._lone(holes, axis).count("M") == 15


@pytest.mark.parametrize("span", [0.5, 3, 12, 45, 700, 40_000])
def test_an_axis_has_a_handful_of_round_ticks(span: float) -> None:
    ticks = Axis(-span / 3, span).ticks()
    assert 2 <= len(ticks) <= 9
    assert all(-span / 3 <= tick <= span for tick in ticks)


def test_every_pause_of_the_hit_is_a_tick_and_the_client_is_beside(
    panels: dict[str, list[Panel]],
) -> None:
    rows = waits.rows([p for several in panels.values() for p in several])
    assert [round(row.worst_ms) for row in rows] == [2206, 310, 46]
    assert all(18 < (row.client_ms or 0) < 20 for row in rows)
    assert [len(row.stalled_ms) for row in rows] == [3, 16, 0]
    shown = waits.figure(rows)
    assert shown.count('class="stalled"') == 3
    assert "2.21" in shown


def test_a_log_axis_puts_decades_at_equal_distances() -> None:
    axis = waits.LogAxis(10, 1000)
    assert [axis.share(v) for v in (10, 100, 1000)] == pytest.approx([0, 0.5, 1])
    assert axis.share(1e9) == 1


def test_of_many_readers_the_worst_are_drawn_and_the_rest_counted(tmp_path: Path) -> None:
    run = load(make(tmp_path / "r")).runs[0]
    panel = next(p for p in timeline.panels(run, INTERFERENCE) if not p.null)
    hurt, calm = panel.strips
    many = dataclasses.replace(panel, strips=(*[calm] * 19, hurt))
    drawn = [dataclasses.replace(strip, name=f"reader {i}") for i, strip in enumerate(many.strips)]
    many = dataclasses.replace(many, strips=tuple(drawn))
    chosen = timeline.worst_strips(many)
    assert len(chosen) == timeline.MOST_STRIPS
    assert chosen[-1].name == "reader 19"
    page = timeline.figure([many], timeline.Axis.over([many]), {many.arm: "two copies"})
    assert "and 12 more readers, whose pauses were shorter" in page
