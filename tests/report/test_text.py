"""The sentence says what the figures say, how sure it is, and nothing it does not know."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.synthetic import ARMS, GRID, INTERFERENCE, make

from twolane.analysis.results import load
from twolane.records import Code
from twolane.report import table, verdict_sentence
from twolane.report.metrics import number, ratio, spoken


def said(folder: Path) -> str:
    """The sentence with a typewriter's spaces and apostrophes."""
    plain = str.maketrans("\N{NARROW NO-BREAK SPACE}\N{NO-BREAK SPACE}\u2019", "  '")
    return verdict_sentence(load(folder)).translate(plain)


def test_one_block_answers_with_its_numbers_and_is_indicative(tmp_path: Path) -> None:
    sentence = said(make(tmp_path / "r"))
    assert sentence.startswith("While a 6,000-token prompt was prefilled, the readers' worst pause")
    assert "2,206 ms with two copies at budget 2,048" in sentence
    assert "310 ms with two copies at budget 256" in sentence
    assert "46 ms with the split (null run: 19 ms)" in sentence
    assert "the split changed the long prompt's first token from 3,350 ms to 3,446 ms" in sentence
    assert "Indicative: one block" in sentence
    assert "better" not in sentence


def test_three_blocks_give_a_verdict(tmp_path: Path) -> None:
    sentence = said(make(tmp_path / "r", blocks=3))
    assert "Over 3 blocks the split is better than two copies at budget 2,048 (0.02" in sentence
    assert "Indicative" not in sentence


def test_each_arm_is_held_against_its_own_null_run(tmp_path: Path) -> None:
    calm = dataclasses.replace(ARMS[2], pauses_ms=(27.0,))
    slow = dataclasses.replace(ARMS[1], beat=1.8)
    sentence = said(make(tmp_path / "r", arms=(ARMS[0], slow, calm)))
    assert "with two copies at budget 256 (null run: 3" in sentence
    told = "27 ms with the split (its own null run: 19 ms, so no pause can be told from what"
    assert told in sentence
    assert sentence.count("so no pause can be told") == 1


def test_an_excluded_figure_is_named_and_wins_nothing(tmp_path: Path) -> None:
    codes = {"split_1p1d": {INTERFERENCE.id: [Code(code="DEGENERATE", why="prefilled itself")]}}
    sentence = said(make(tmp_path / "r", codes=codes))
    assert "46 ms with the split, excluded" in sentence
    assert "two copies at budget 256 changed the long prompt's first token" in sentence


def test_with_every_arm_excluded_there_is_no_verdict(tmp_path: Path) -> None:
    code = [Code(code="FAILED", why="1 of 3 requests failed")]
    arms = ("copies_2048", "copies_256", "split_1p1d")
    folder = make(tmp_path / "r", codes={arm: {INTERFERENCE.id: code} for arm in arms})
    assert "Every arm's figure is excluded by a reason code" in said(folder)


def test_a_cost_whose_figure_is_excluded_is_not_told(tmp_path: Path) -> None:
    codes = {"split_1p1d": {GRID.id: [Code(code="INFLIGHT", why="3.1 of 4")]}}
    sentence = said(make(tmp_path / "r", codes=codes))
    assert "throughput" not in sentence
    assert "Excluded: 1 of 6 measured cells (INFLIGHT)." in sentence
    assert "the long prompt's first token" in sentence


def test_an_arm_that_died_is_left_out_of_the_list(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    (load(folder).of_arm("copies_256")[0].folder / "cells.jsonl").unlink()
    assert "budget 256" not in said(folder)


def test_a_run_that_did_not_end_well_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    run = load(folder).of_arm("copies_256")[0].folder
    (run / "cells.jsonl").unlink()
    text = (run / "run.json").read_text().replace('"status": "done"', '"status": "failed"')
    (run / "run.json").write_text(text)
    assert said(folder).endswith("Not finished: 1 of 3 runs (copies_256 failed).")


def test_readers_of_unequal_speed_are_a_warning(tmp_path: Path) -> None:
    slow = dataclasses.replace(ARMS[2], beat=2.5)
    sentence = said(make(tmp_path / "r", arms=(*ARMS[:2], slow)))
    assert "Beware: before the prompt came, the readers got" in sentence
    assert "22.2 (split_1p1d) tokens/s" in sentence
    assert "Beware" not in said(make(tmp_path / "equal"))


def test_a_folder_without_a_readable_run_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert said(tmp_path) == "No run can be read here, so there is no answer."


def test_runs_without_a_finished_cell_say_so(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    for run in load(folder).runs:
        (run.folder / "cells.jsonl").write_text("")
    assert "no answer yet" in said(folder)


def test_one_arm_alone_compares_with_nothing(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    for run in load(folder).runs[1:]:
        shutil.rmtree(run.folder)
    assert "Only one arm has this figure" in said(folder)


def test_the_terminal_table_fits_and_marks_what_is_excluded(tmp_path: Path) -> None:
    codes = {"copies_256": {GRID.id: [Code(code="INFLIGHT", why="3.1 of 4")]}}
    out = io.StringIO()
    Console(file=out, width=80).print(table(load(make(tmp_path / "r", codes=codes))))
    text = out.getvalue()
    (worst,) = [line for line in text.splitlines() if "Worst pause" in line]
    assert worst.split()[-4:] == ["2,206", "310", "46.0", "ms"]
    assert text.count("INFLIGHT") == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0.0, "0"),
        (2206.4, "2,206"),
        (46.04, "46.0"),
        (1.307, "1.31"),
        (-0.001, "0.00"),
        (-12.0, "\N{MINUS SIGN}12.0"),
        (float("inf"), "never"),
    ],
)
def test_numbers_are_written_with_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(46.04, "46 ms"), (2206, "2,206 ms"), (551_000, "551 s"), (3.42, "3.42 ms")]
)
def test_spoken_numbers_carry_a_fitting_unit(value: float, text: str) -> None:
    assert spoken(value, "ms").replace("\N{NARROW NO-BREAK SPACE}", " ") == text


def test_ratios_keep_their_digits() -> None:
    assert [ratio(value)[:-1] for value in (0.0209, 0.85, 1.083, 12.34)] == [
        "0.021",
        "0.850",
        "1.08",
        "12.3",
    ]
