"""The sentence says what the figures say, how sure it is, and nothing it does not know."""

from __future__ import annotations

import dataclasses
import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.synthetic import ARMS, GRID, INTERFERENCE, make

from twolane.analysis.compare import Point
from twolane.analysis.results import load
from twolane.records import Code
from twolane.report import decision, table, verdict_sentence
from twolane.report.facts import Facts
from twolane.report.metrics import INTERFERENCE as METRICS
from twolane.report.metrics import change, number, ratio, spoken
from twolane.report.text import verdict


def said(folder: Path) -> str:
    """The sentence with a typewriter's spaces and apostrophes."""
    plain = str.maketrans("\N{NARROW NO-BREAK SPACE}\N{NO-BREAK SPACE}\u2019", "  '")
    return verdict_sentence(load(folder)).translate(plain)


def test_one_block_answers_with_its_numbers_and_is_indicative(tmp_path: Path) -> None:
    sentence = said(make(tmp_path / "r"))
    assert "".join(sentence.partition("While")[1:]).startswith(
        "While a 6,000-token prompt was prefilled, the readers' worst pause"
    )
    assert "2.21 s with two copies at budget 2,048" in sentence
    assert "0.31 s with two copies at budget 256" in sentence
    assert "0.046 s with the split (null run: 0.019 s)" in sentence
    assert "first token of the long prompt (3.45 s against 3.96 s" in sentence
    assert "Indicative: one block" in sentence
    assert "better" not in sentence


def test_three_blocks_give_a_verdict(tmp_path: Path) -> None:
    sentence = said(make(tmp_path / "r", blocks=3))
    assert (
        "Over 3 blocks the split is by the worst pause better than two copies at budget 2,048 (4"
        in sentence
    )
    assert sentence.startswith("Run split_1p1d. Worst pause: 0.046 s, the shortest; 0.31 s with")
    assert "Indicative" not in sentence


def test_a_ratio_is_never_the_reference_arms_over_anothers(tmp_path: Path) -> None:
    sentence = said(make(tmp_path / "r", blocks=3, arms=ARMS[::-1]))
    assert "better than two copies at budget 2,048 (whose pause is 4" in sentence
    assert "times shorter" not in sentence


def test_each_arm_is_held_against_its_own_null_run(tmp_path: Path) -> None:
    calm = dataclasses.replace(ARMS[2], pauses_ms=(27.0,))
    slow = dataclasses.replace(ARMS[1], beat=1.8)
    sentence = said(make(tmp_path / "r", arms=(ARMS[0], slow, calm)))
    assert "with two copies at budget 256 (null run: 0.03" in sentence
    told = "0.027 s with the split (its own null run: 0.019 s, so cannot tell it from what"
    assert told in sentence
    assert sentence.count("so cannot tell it") == 1
    machine = "Worst pause: 0.027 s, about what the machine adds with no prompt (19 to 3"
    assert machine in sentence
    assert "the shortest" not in sentence


def test_an_excluded_figure_is_named_and_wins_nothing(tmp_path: Path) -> None:
    codes = {"split_1p1d": {INTERFERENCE.id: [Code(code="DEGENERATE", why="prefilled itself")]}}
    sentence = said(make(tmp_path / "r", codes=codes))
    assert "0.046 s with the split, excluded" in sentence
    assert sentence.startswith("Indicative, from one block: run copies_256")


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
    assert "first token of the long prompt (" in sentence


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
    assert "Not finished: 1 of 3 runs (copies_256 failed)." in said(folder)


def test_readers_of_unequal_speed_are_a_warning(tmp_path: Path) -> None:
    slow = dataclasses.replace(ARMS[2], beat=2.5)
    sentence = said(make(tmp_path / "r", arms=(*ARMS[:2], slow)))
    assert "Beware: before the prompt came, the readers got" in sentence
    assert "22.2 (split_1p1d) tokens/s" in sentence
    assert "Beware" not in said(make(tmp_path / "equal"))


def test_null_runs_that_lose_tokens_are_a_warning(tmp_path: Path) -> None:
    facts = Facts(load(make(tmp_path / "r")))
    lost = facts.figure(INTERFERENCE, "tokens_lost", "copies_256").value or 0.0
    key = INTERFERENCE.id, "null_tokens_lost"
    points = facts.points(INTERFERENCE, "null_tokens_lost")
    least = facts.figure(INTERFERENCE, "tokens_lost", "split_1p1d").value or 0.0
    for share, warned in ((0.05 * least / lost, False), (0.2, True), (-0.2, True)):
        facts._points[key] = [
            dataclasses.replace(p, value=share * lost if p.arm == "copies_256" else 0.0)
            for p in points
        ]
        ends = sorted((0.0, share * lost))
        said = " to ".join(number(value, decimals=0) for value in ends)
        told = f"Null runs, scaled to the prefill\u2019s length, give {said}: tokens lost is"
        assert (told in verdict(facts).caveats) is warned


def test_the_first_sentence_says_what_to_run_and_what_that_costs(tmp_path: Path) -> None:
    sentence = said(make(tmp_path / "r"))
    start = "Indicative, from one block: run split_1p1d. Worst pause: 0.046 s, the shortest; 0.31 s"
    assert sentence.startswith(start)
    assert "Costs against copies_256: short prompts of 512 tokens, 4 users (" in sentence
    assert "; gains first token of the long prompt (3.45 s against 3.96 s" in sentence


def test_a_terminal_gets_a_line_for_each_part_and_the_same_words(tmp_path: Path) -> None:
    told = verdict(Facts(load(make(tmp_path / "r", blocks=3))))
    lines = told.lines
    assert lines[0] == "Run split_1p1d."
    assert lines[1].startswith("  Worst pause: 0.046")
    assert " ".join(line.strip() for line in lines if line) == str(told)


def test_what_the_blocks_do_not_settle_is_no_recommendation(tmp_path: Path) -> None:
    """Two blocks and two arms that differ by less than their spread."""
    one = dataclasses.replace(ARMS[1], name="one")
    pauses = tuple(ms * 317 / 310 for ms in ARMS[1].pauses_ms)
    alike = dataclasses.replace(ARMS[1], name="alike", pauses_ms=pauses)
    sentence = said(make(tmp_path / "r", blocks=2, arms=(one, alike)))
    assert sentence.startswith("Cannot tell yet. So far one leads. Worst pause: ")
    assert ". To settle it: against alike " in sentence
    assert "Run " not in sentence.partition("While")[0]


def test_of_equal_arms_the_first_is_recommended(tmp_path: Path) -> None:
    twin = dataclasses.replace(ARMS[2], name="twin", pauses_ms=(10.0,))
    sentence = said(make(tmp_path / "r", blocks=3, arms=(ARMS[1], ARMS[2], twin)))
    assert sentence.startswith(f"Run {ARMS[2].name}. ")
    assert "twin" not in sentence.partition("While")[0]


def test_who_leads_by_throughput_too_is_not_said_to_lead_by_the_pause_alone(
    tmp_path: Path,
) -> None:
    close = dataclasses.replace(ARMS[1], pauses_ms=(52.0,), tpot_ms=20.0, ttft_ms=100.0)
    facts = Facts(load(make(tmp_path / "r", blocks=2, arms=(ARMS[0], close, ARMS[2]))))
    cell = facts.interference
    assert cell is not None
    short, chosen = (facts.figure(cell, decision.WORST.key, n) for n in ("split_1p1d", close.name))
    _, headline, _ = decision._pauses(facts, cell, chosen, [short])
    assert headline in (f"Run {close.name}", (
        f"Cannot tell yet. So far {close.name} leads, as good as the shortest worst pause and "
        "with the better throughput"
    ))  # fmt: skip


def test_an_arm_as_good_with_more_throughput_is_preferred(tmp_path: Path) -> None:
    close = dataclasses.replace(ARMS[1], pauses_ms=(52.0,), tpot_ms=20.0, ttft_ms=100.0)
    sentence = said(make(tmp_path / "r", arms=(ARMS[0], close, ARMS[2])))
    assert sentence.startswith("Indicative, from one block: run copies_256. Worst pause: 0.052 s,")
    assert "the shortest (0.046 s with split_1p1d), and the better throughput" in sentence


def test_an_arm_as_good_with_less_throughput_is_not(tmp_path: Path) -> None:
    close = dataclasses.replace(ARMS[1], pauses_ms=(52.0,), tpot_ms=60.0)
    sentence = said(make(tmp_path / "r", arms=(ARMS[0], close, ARMS[2])))
    assert sentence.startswith("Indicative, from one block: run split_1p1d ")


def test_a_run_whose_arms_are_all_spoiled_cannot_answer(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    folder = make(tmp_path / "r", codes={arm.name: busy for arm in ARMS})
    told = verdict(Facts(load(folder)))
    assert told.decision.startswith("This run cannot answer: other programs used")
    assert not [piece for piece in told.finding if piece.kind == "best"]


def test_two_arms_of_which_one_is_spoiled_cannot_be_compared(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    folder = make(tmp_path / "r", arms=ARMS[1:], codes={"copies_256": busy})
    told = verdict(Facts(load(folder)))
    assert told.decision.startswith("This run cannot answer: other programs used")
    assert not [piece for piece in told.finding if piece.kind == "best"]


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
    assert worst.split()[-4:] == ["2.21", "0.31", "0.046", "s"]
    assert text.count("INFLIGHT") == 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0.0, "0"),
        (2206.4, "2,206"),
        (46.04, "46.0"),
        (1.307, "1.31"),
        (-0.0001, "0.000"),
        (-12.0, "\N{MINUS SIGN}12.0"),
        (float("inf"), "never"),
    ],
)
def test_numbers_are_written_with_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(46.04, "46 ms"), (2206, "2.21 s"), (999, "999 ms"), (551_000, "551 s"), (3.42, "3.42 ms")],
)
def test_spoken_numbers_carry_a_fitting_unit(value: float, text: str) -> None:
    assert spoken(value, "ms").replace("\N{NARROW NO-BREAK SPACE}", " ") == text


def test_small_ratios_are_told_the_other_way_round() -> None:
    assert change(0.004) == "250 times shorter"
    assert change(0.25, "lower") == "4.00 times lower"
    lost = next(metric for metric in METRICS if metric.key == "tokens_lost")
    assert change(0.25, lost.less) == "4.00 times fewer"
    assert change(0.85)[:-1] == "0.850"


def test_ratios_keep_their_digits() -> None:
    assert [ratio(value)[:-1] for value in (0.0209, 0.85, 1.083, 12.34)] == [
        "0.021",
        "0.850",
        "1.08",
        "12.3",
    ]


def test_a_cost_that_the_blocks_do_not_tell_is_named_as_such(tmp_path: Path) -> None:
    """Throughput whose ratio swings from block to block is neither a cost nor a gain."""
    folder = make(tmp_path / "r", blocks=2)
    told = said(folder)
    assert "cannot tell" not in told
    facts = Facts(load(folder))
    assert facts.grid is not None
    swung = [
        Point(p.arm, p.block, p.run, p.cell, p.metric, (p.value or 0) * (1 + p.block), p.codes)
        if (p.arm, p.metric) == ("split_1p1d", "throughput_tok_s")
        else p
        for p in facts.points(facts.grid, "throughput_tok_s")
    ]
    facts._points[facts.grid.id, "throughput_tok_s"] = swung
    decision = verdict(facts)
    assert "; cannot tell throughput (" in decision.decision
