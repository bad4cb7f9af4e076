"""Published results say what their pages say: real data of H200s, read anew."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from twolane.analysis.results import load
from twolane.cli import cli
from twolane.report.answers import answers
from twolane.report.facts import Facts
from twolane.report.left_out import left_out
from twolane.report.text import verdict

PUBLISHED = Path(__file__).parents[2] / "docs" / "results" / "h200-two"


def unpacked(name: str, into: Path, place: Path = PUBLISHED) -> Path:
    with tarfile.open(place / f"{name}.tar.xz") as packed:
        packed.extractall(into, filter="data")
    return into / name


@pytest.fixture(scope="module")
def needle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("split_vs_copies", tmp_path_factory.mktemp("published"))


def test_three_blocks_do_not_settle_it_and_the_answers_say_what_is_missing(needle: Path) -> None:
    facts = Facts(load(needle))
    told = verdict(facts)
    assert told.decision.startswith(
        "The measures disagree: by the worst pause copies leads, by time stalled split_1p1d. "
    )
    still = told.decided.line("Still lost").replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert still == (
        "stalled for 5.17 s in all during a prefill of 7.47 s, 3,875 tokens lost; less time "
        "stalled with split_1p1d (1.68 s, by verdict; copies_2048 0.74 s, not told apart); fewer "
        "tokens lost with split_1p1d (854 tokens, not told apart)"
    )
    assert [line.of for line in told.decided.lines] == [
        "Worst pause", "Still lost", "Costs against copies_2048"
    ]  # fmt: skip
    found = {one.id: one for one in answers(facts)}
    assert found["budget"].answer == (
        "Under 100 ms: at 131,072 tokens budget 8,192, the largest measured; at 524,288 and "
        "1,000,000 tokens no static budget at all. Under 250 ms: at 131,072 and 524,288 tokens "
        "budget 8,192, the largest measured; at 1,000,000 tokens no static budget at all."
    )
    pays = found["pays-prompt-split_1p1d"]
    assert (pays.state, pays.missing) == ("answered", "30 more blocks")
    assert pays.answer.startswith("At none that was measured (131,072 tokens to 1,000,000 tokens)")


def test_a_million_tokens_stall_is_told_with_its_transfer(needle: Path) -> None:
    outcome = CliRunner().invoke(cli, ["explain", f"{needle}/182244", "prompt=1000000"])
    assert outcome.exit_code == 0, outcome.output
    assert "in 125,000 descriptors, 0.78" in outcome.output
    assert "KV transfers by pull over 18 NVLinks, 450 GB/s one way" in outcome.output
    assert "KV transfer and first step of 1,000,000 tokens (aggressor)" in outcome.output


def test_two_runs_of_one_arm_differ_in_what_the_campaign_swapped(needle: Path) -> None:
    words = ["explain", f"{needle}/182244", "--against", f"{needle}/183113"]
    outcome = CliRunner().invoke(cli, words)
    assert outcome.exit_code == 0, outcome.output
    assert "prefill_a: devices: 0 -> 1" in outcome.output
    assert "SM clock, lowest MHz: 1,860 -> 1,845" in outcome.output


def test_dummy_weights_are_recommended_by_nobody(tmp_path: Path) -> None:
    folder = unpacked("split_vs_copies_8b", tmp_path)
    facts = Facts(load(folder))
    said = verdict(facts).decision.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert said == (
        "Figures, not a verdict: the weights are made up. Worst pause: 1.19 s with copies, 4.10 s "
        "with split_1p1d. What to do: real weights are needed for a verdict."
    )
    assert "--redo" not in left_out(facts)
    assert {one.state for one in answers(facts)} == {"cannot tell"}
    outcome = CliRunner().invoke(cli, ["explain", f"{folder}/182844", "131072"])
    assert "19.3 GB in 270,288 descriptors, 3.78" in outcome.output
    assert "NEEDLE: the gate has no answers" in outcome.output


ONE = PUBLISHED.parent / "h200-one"


def test_budgets_by_prefix_are_those_of_the_page_about_one_gpu(tmp_path: Path) -> None:
    facts = Facts(load(unpacked("budget_sweep_8b", tmp_path, ONE)))
    held = {
        (one.victims, cell.prefix, cell.limit_ms): (cell.held, round(cell.gap_ms or 0))
        for one in facts.prefixes
        for cell in one.grid
    }
    assert held[1, 8192, 250] == (8192, 204)
    assert held[8, 32_768, 250] == (2048, 151)
    assert [held[n, 131_072, 100] for n in (1, 8)] == [(None, 197), (None, 210)]
    assert [held[n, 131_072, 250] for n in (1, 8)] == [(1024, 197), (1024, 210)]
    assert not any(one.verdict for one in facts.prefixes)
    entries = [edges.entry_ms or 0 for one in facts.prefixes for edges in one.edges]
    assert max(entries) < 80
    assert {edges.chunks for one in facts.prefixes for edges in one.edges} == {
        33, 129, 130, 17, 65, 5, 2
    }  # fmt: skip


def test_a_ramp_to_a_million_tokens_says_that_every_needle_was_found(tmp_path: Path) -> None:
    told = verdict(Facts(load(unpacked("ramp_1m", tmp_path, ONE))))
    said = str(told).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert said.startswith(
        "Two conversations growing to 1,000,000 tokens in 10 turns: all 40 needles found, one a "
        "turn. Cached: as expected in every turn (81.8 % of all prompt tokens). First token of the "
        "longest turn: 2.98 s, of the median turn 1.95 s."
    )
