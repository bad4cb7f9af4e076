"""Time stalled and tokens lost stand beside the worst pause, also where they tell another story."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.report.synthetic import ARMS, INTERFERENCE, Arm, make

from twolane.analysis.results import load
from twolane.records import Code
from twolane.report import html, losses
from twolane.report.facts import Facts, vanish
from twolane.report.losses import LOST, STALLED
from twolane.report.text import verdict

LONG = dataclasses.replace(ARMS[1], name="one_long", pauses_ms=(400.0,))
"""One pause, longer than any of the other's sixteen: less stalled and less lost in all."""
CHOPPED = dataclasses.replace(ARMS[1], name="chopped")
NARROW = "\N{NARROW NO-BREAK SPACE}"


def facts(folder: Path, arms: tuple[Arm, ...], **made: object) -> Facts:
    return Facts(load(make(folder, arms=arms, **made)))  # type: ignore[arg-type]


def test_three_blocks_in_which_the_measures_disagree_have_no_leader(tmp_path: Path) -> None:
    told = verdict(facts(tmp_path / "r", (CHOPPED, LONG), blocks=3)).decided
    assert told.strength == "open"
    assert told.headline == (
        "The measures disagree: by the worst pause chopped leads, by time stalled one_long and by "
        "tokens lost one_long"
    )
    still = told.line("Still lost")
    assert re.match(
        r"1 of 2 readers stalled; the worse for \d\S+ s \(the prompt took \d",
        still.replace(NARROW, " "),
    )
    assert "less time stalled with one_long (" in still
    assert still.count("by verdict") == 2


def test_an_arm_that_leads_in_everything_is_simply_recommended(tmp_path: Path) -> None:
    told = verdict(facts(tmp_path / "r", ARMS, blocks=3)).decided
    assert told.headline == "Run split_1p1d"
    assert told.line("Still lost").startswith("no reader stalled, ")


def test_one_block_says_that_only_the_worst_pause_speaks_for_it(tmp_path: Path) -> None:
    told = verdict(facts(tmp_path / "r", (CHOPPED, LONG))).decided
    assert told.headline == (
        "Indicative, from one block: run chopped if only the worst pause counts"
    )
    assert "one_long" in told.line("Still lost")
    assert "one block)" in told.line("Still lost")


def test_an_excluded_arm_is_ahead_in_nothing(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="others used 31 % of CPU time")]}
    found = facts(tmp_path / "r", (CHOPPED, LONG, ARMS[2]), codes={"one_long": busy}, blocks=2)
    cell = found.interference
    assert cell is not None
    assert "one_long" not in {one.arm for one in losses.ahead(found, cell, "chopped")}
    assert losses.sentence(found, cell, "one_long") == ""


@pytest.mark.parametrize(
    ("other", "mine", "less"),
    [
        (1.0, 1.02, False),
        (1.0, 1.04, True),
        (0.0, 0.1, True),
        (-5.0, 1.0, True),
        (-5.0, 0.0, False),
    ],
)
def test_less_is_less_by_more_than_the_margin(other: float, mine: float, less: bool) -> None:
    assert losses._less(other, mine, 0.03) is less


def test_figures_of_zero_or_less_have_no_ratio_and_no_block_is_chosen(tmp_path: Path) -> None:
    """The split never stalls in two of three blocks: the third alone must not be its ratio."""
    found = facts(tmp_path / "r", ARMS, blocks=3)
    points = found.points(INTERFERENCE, STALLED.key)
    assert vanish(points, "split_1p1d", "copies_256")
    assert not vanish(points, "copies_2048", "copies_256")
    changed = [
        dataclasses.replace(p, value=0.1) if (p.arm, p.block) == ("split_1p1d", 2) else p
        for p in points
    ]
    found._points[INTERFERENCE.id, STALLED.key] = changed
    none = found.versus(INTERFERENCE, STALLED, "split_1p1d", "copies_256")
    assert (none.ratio, none.outcome) == (None, "cannot tell")
    some = found.versus(INTERFERENCE, STALLED, "copies_2048", "copies_256")
    assert some.ratio is not None


def test_the_bars_of_both_stand_on_the_first_screen_with_ratio_and_verdict(tmp_path: Path) -> None:
    page = html(load(make(tmp_path / "r", arms=(CHOPPED, LONG), blocks=3)))
    opening = page.partition("</header>")[0]
    assert opening.count('class="group"') == 3
    for title in ("worst pause", "time stalled", "tokens lost"):
        assert f"The readers\u2019 {title}" in opening
    assert opening.count("median of 3 blocks</small>") == 3
    assert len(re.findall(r"\[[\d.]+, [\d.]+\]</span> <b class=\"(better|worse)\"", opening)) == 3


def test_bars_of_one_block_say_so_and_carry_no_interval(tmp_path: Path) -> None:
    opening = html(load(make(tmp_path / "r"))).partition("</header>")[0]
    assert opening.count(", one block</small>") == 3
    assert "median of" not in opening
    assert "[" not in opening.partition("<figure")[2]


def test_a_loss_no_larger_than_the_null_runs_is_told_as_such(tmp_path: Path) -> None:
    found = facts(tmp_path / "r", ARMS)
    cell = found.interference
    assert cell is not None
    within = losses.within_null(found, cell, LOST, found.figure(cell, LOST.key, "split_1p1d"))
    said = losses.sentence(found, cell, "split_1p1d")
    assert ("no more tokens lost than in its null run" in said) is within
    much = found.figure(cell, LOST.key, "copies_256")
    assert not losses.within_null(found, cell, LOST, much)
    assert "no more tokens" not in losses.sentence(found, cell, "copies_256")


def test_a_still_lower_figure_that_is_not_told_apart_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = facts(tmp_path / "r", (CHOPPED, LONG, ARMS[2]), blocks=3)
    monkeypatch.setattr(
        Facts, "versus", lambda _self, _cell, _metric, _a, b: SimpleNamespace(
            outcome="B better" if b == "one_long" else "cannot tell"
        )
    )  # fmt: skip
    monkeypatch.setattr(losses, "distinct", lambda _facts, names: names)
    cell = found.interference
    assert cell is not None
    stalled = losses.ahead(found, cell, "chopped")[0]
    assert (stalled.arm, stalled.told, stalled.lower) == ("one_long", True, ("split_1p1d", 0.0))
    said = losses.sentence(found, cell, "chopped")
    assert re.search(r"with one_long \(.*?, by verdict; split_1p1d .*?, cannot tell\)", said)


def test_what_null_runs_show_too_decides_nothing(tmp_path: Path) -> None:
    """Tokens lost that the blocks tell apart, by less than the null runs are off: also below 0."""
    found = facts(tmp_path / "r", (CHOPPED, LONG), blocks=3)
    cell = found.interference
    assert cell is not None
    assert [(one.metric, one.told) for one in losses.ahead(found, cell, "chopped")] == [
        (STALLED, True), (LOST, True)
    ]  # fmt: skip
    nulls = found.points(cell, LOST.floor)
    found._points[cell.id, LOST.floor] = [
        dataclasses.replace(p, value=-160.0 if (p.arm, p.block) == ("one_long", 1) else 0.0)
        for p in nulls
    ]
    assert found.unsure(cell, LOST.floor, "one_long") == 160.0
    told = losses.ahead(found, cell, "chopped")
    assert [(one.metric, one.told) for one in told] == [(STALLED, True), (LOST, False)]
    assert losses.within_null(found, cell, LOST, found.figure(cell, LOST.key, "one_long"))


@pytest.mark.parametrize(
    ("worst", "after", "told"),
    [
        (54.0, 125.0, ["and a pause of 125 ms after its first token, longer than any before"]),
        (125.0, 54.0, []),
        (100.0, 102.0, []),
        (14.0, 19.0, []),
        (54.0, None, []),
        (None, 125.0, []),
    ],
)
def test_a_longer_pause_afterwards_is_told(
    worst: float | None, after: float | None, told: list[str]
) -> None:
    values = {"worst_gap_ms": worst, "after_worst_gap_ms": after}
    facts = SimpleNamespace(
        margin=0.03, figure=lambda _cell, key, _arm: SimpleNamespace(value=values[key])
    )
    said = losses._afterwards(facts, INTERFERENCE, "a")  # type: ignore[arg-type]
    assert [line.replace(NARROW, " ") for line in said] == told
