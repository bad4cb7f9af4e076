"""Published results say what their pages say: real data of H200s, read anew."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from twolane.analysis.results import load
from twolane.cli import cli
from twolane.report import html
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
        "1 of 2 readers stalled (2 of 2 with split_1p1d); the worse for 5.17 s (the prompt took "
        "7.47 s), 3,875 tokens lost; less time stalled with split_1p1d (1.68 s, by verdict; "
        "copies_2048 0.74 s, cannot tell); fewer tokens lost with split_1p1d (854 tokens, cannot "
        "tell)"
    )
    assert [line.of for line in told.decided.lines] == [
        "Worst pause", "KV transfer", "Still lost", "Gains against split_1p1d"
    ]  # fmt: skip
    found = {one.id: one for one in answers(facts)}
    none = "tokens none: about {} ms however small the budget (extrapolated)"
    assert found["budget"].answer.replace("\N{NARROW NO-BREAK SPACE}", " ") == (
        "Under 100 ms: at 131,072 tokens budget 8,192, the largest measured; at 524,288 "
        f"{none.format(187)}; at 1,000,000 {none.format(381)}. Under 250 ms: at 131,072 and "
        "524,288 tokens budget 8,192, the largest measured; at 1,000,000 "
        f"{none.format(381)}."
    )
    pays = found["pays-prompt-split_1p1d"]
    assert (pays.state, pays.missing) == ("partly answered", "30 more blocks")
    assert pays.answer == (
        "Does not pay at 131,072 tokens and 1,000,000 tokens; cannot tell at 524,288 tokens."
    )


def test_each_pair_rests_on_its_own_blocks_and_what_is_missing_is_named(needle: Path) -> None:
    facts = Facts(load(needle))
    told = verdict(facts)
    assert (
        "(whose pause is 1.06\u00d7, 95 % interval 1.02 to 1.11) over 2 blocks" in told.confidence
    )
    assert "It rests on 2 blocks against copies_2048 and 3 blocks against" in told.confidence
    assert "Beware: GPUs and host differ between blocks; another campaign ran on" in told.confidence
    missing = "copies_2048 in block 3, copies in block 4, split_1p1d in block 4 (8 of 11 runs done)"
    assert f"Missing: {missing}." in told.caveats
    assert "give \N{MINUS SIGN}767 to 714: tokens lost is uncertain by about that" in told.caveats
    first = html(facts.results).partition("</header>")[0]
    assert first.count("<small>, median of 2 to 3 blocks</small>") == 3
    assert first.count("2 of 3 blocks</span>") == 3


def test_the_transfer_behind_the_splits_pause_is_told_with_its_remedy(needle: Path) -> None:
    facts = Facts(load(needle))
    said = verdict(facts).decided.line("KV transfer").replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert said == (
        "one coincides with the 756 ms pause of split_1p1d in block 1. It moved 1.02 GB in "
        "125,000 pieces (descriptors) and took 0.78 s, 0.71 s of it for posting by the decode "
        "engine. TWOLANE_KV_RUNS=1 in both engines\u2019 environment joins the pieces"
    )
    page = html(facts.results).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "<span>prefill 7.16 s</span>" in page
    assert '<p class="moved-words">decode_b: KV of 1 request came: 1.02 GB in 125,000' in page
    assert "<b>756 ms</b>, 2 of 2 stalled" in page


def test_proven_costs_make_an_answer_in_part_and_come_first(needle: Path) -> None:
    (costs,) = [one for one in answers(Facts(load(needle))) if one.id == "costs"]
    assert costs.state == "partly answered"
    assert costs.answer == (
        "At 1,000,000 tokens, against copies (2 devices against 2): the long prompt\u2019s first "
        "token 1.32\u00d7 (1.17 to 1.45), worse; the first token of short prompts of 1,024 tokens, "
        "64 users 4.73\u00d7 (4.39 to 5.01), worse; throughput 0.754\u00d7 (0.446 to 1.22), cannot "
        "tell."
    )


@pytest.fixture(scope="module")
def in_runs(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    place = PUBLISHED.parent / "h200-two-runs"
    return Facts(load(unpacked("split_in_runs", tmp_path_factory.mktemp("published"), place)))


def test_blocks_that_overlap_have_no_winner(in_runs: Facts) -> None:
    told = verdict(in_runs)
    decided = told.decided
    assert decided.headline.replace("\N{NARROW NO-BREAK SPACE}", " ") == (
        "No winner yet: 303 ms with split_in_runs and 353 ms with copies are not told apart"
    )
    assert decided.line("Worst pause").replace("\N{NARROW NO-BREAK SPACE}", " ") == (
        "by block, 351 ms and 255 ms with split_in_runs, 320 ms and 385 ms with copies; the other "
        "way round beside 16 readers (325 ms with split_in_runs, 300 ms with copies)"
    )
    assert decided.line("Still lost").startswith("2 of 2 readers stalled (1 of 2 with copies)")
    assert decided.line("Costs against copies").startswith("short prompts of 1,024 tokens, 256 us")
    assert decided.line("To settle it") == "against copies 20 more blocks would do (a guess from 2)"
    (settling,) = [line.command for line in decided.lines if line.command]
    assert settling == "twolane run split_in_runs.yaml --blocks 22 --resume"
    assert decided.line("KV transfer") == ""
    assert (
        "equal arms (A/A: same_copies against copies, 1 block) were apart by at most 13 % in worst "
        "pause, 2.2 % in time stalled and 64 % in tokens lost"
    ) in told.confidence
    assert "give \N{MINUS SIGN}636 to 567: tokens lost is uncertain by about that" in told.caveats
    assert "Missing: same_copies in block 2 (5 of 6 runs done)." in told.caveats


def test_a_rival_is_no_arm_that_runs_beside_its_twin_for_the_noise(in_runs: Facts) -> None:
    found = {one.id: one for one in answers(in_runs)}
    many = found["pays-prompt-split_in_runs-16"]
    assert (many.state, many.answer) == ("cannot tell", "Cannot tell at 1,000,000 tokens.")
    assert many.rows[0][1:3] == ("copies", "1.08\u00d7 [0.676, 1.74]")
    few = found["pays-prompt-split_in_runs-2"]
    assert few.state == "partly answered"
    assert few.answer.startswith("Does not pay at 131,072 tokens; cannot tell at 524,288 tokens")


def test_too_few_waves_have_one_remedy(in_runs: Facts) -> None:
    said = left_out(in_runs)
    assert "LITTLE: the cell needs more waves, n of at least 4 times its users." in said
    for word in ("--redo", "again may not help", "more reason"):
        assert word not in said


def test_a_pause_as_short_as_a_null_run_is_told_as_the_machines(tmp_path: Path) -> None:
    place = PUBLISHED.parent / "cpu-budget-sweep"
    told = verdict(Facts(load(unpacked("budget_sweep", tmp_path, place))))
    said = str(told).replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert said.startswith(
        "Run split_1p1d. Worst pause: 18 ms, about what the machine adds with no prompt (15 to 19 "
        "ms); 155 ms with copies_256; if 250 ms will do, so will copies_256. Still lost: no reader "
        "stalled, no more tokens lost than its null runs show. Costs against copies_256: short "
        "prompts of 512 tokens, 4 users (64 ms against 52 ms; 39 ms with copies_1024); cannot tell"
    )
    assert "partly measures what the machine adds by itself" in told.confidence


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
