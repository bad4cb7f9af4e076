"""Charts of points: every point in its place, named, linked; names that meet nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.synthetic import INTERFERENCE, make

from twolane.analysis.results import load
from twolane.records import Code
from twolane.report import frontier, html
from twolane.report.facts import Facts, point_id
from twolane.report.plot import Box, Scale, Spot

POSITIVE = st.floats(1e-3, 1e9)


@given(st.lists(POSITIVE, min_size=1))
def test_a_scale_holds_all_values_in_order_with_round_ticks(values: list[float]) -> None:
    for log in (True, False):
        scale = Scale.over(values, log=log)
        shares = [scale.share(value) for value in sorted(values)]
        assert shares == sorted(shares)
        assert all(0 <= share <= 1 for share in shares)
        ticks = scale.ticks()
        assert 2 <= len(ticks) <= 24
        assert all(scale.low <= tick <= scale.high * (1 + 1e-9) for tick in ticks)


def drawn(*spots: tuple[float, float, str]) -> str:
    made = [Spot(x, y, label, f"tip of {label}", f"#{label}") for x, y, label in spots]
    scale = Scale(1, 100)
    return Box(scale, scale, "x", "y", str, str, "said", made).drawn()


def test_a_point_is_a_link_with_a_name_and_a_tip() -> None:
    page = drawn((10, 10, "one"))
    assert 'href="#one"' in page
    assert 'style="left:50.00%;bottom:50.00%"' in page
    assert 'aria-label="tip of one"' in page
    assert page.count("tip of one") == 2


def test_names_of_near_points_stand_on_different_sides() -> None:
    sides = re.findall(
        r'class="spot  (\w+)', drawn((10, 10, "copies_one"), (10.5, 10, "copies_two"))
    )
    assert len(set(sides)) == 2


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    return Facts(load(make(tmp_path / "r", blocks=2, codes={"copies_256": busy})))


def test_the_frontier_has_every_arm_and_the_coded_one_hollow(facts: Facts) -> None:
    page = frontier.section(facts)
    assert page is not None
    kinds = re.findall(r'class="spot (budget|split)( hollow)?', page)
    assert kinds == [("budget", " hollow"), ("budget", ""), ("split", "")] * 2
    assert 'class="line"' not in page  # one clean budget is no series
    assert "excluded: BUSY" in page
    assert page.count('class="whisker"') == 6


def test_a_point_leads_to_its_figure(facts: Facts) -> None:
    page = html(facts.results)
    target = point_id(facts, INTERFERENCE, "worst_gap_ms", "split_1p1d")
    assert f'href="#{target}"' in page
    assert f'<td id="{target}"' in page


def test_one_arm_alone_has_no_frontier(tmp_path: Path) -> None:
    from tests.report.synthetic import ARMS

    assert frontier.section(Facts(load(make(tmp_path / "r", arms=ARMS[:1])))) is None
