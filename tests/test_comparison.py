"""`twolane compare`: verdicts, floors, other folders; the same bytes every time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.report.synthetic import ARMS, GRID, INTERFERENCE, make

from twolane.analysis.results import load
from twolane.cli import cli
from twolane.comparison import as_json, compare_folders
from twolane.errors import QuestionError
from twolane.records import Code, RunMeta, read_json, write_json
from twolane.report.facts import Facts
from twolane.report.text import verdict

CODE = Code(code="INFLIGHT", why="3.1 of 4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "demo", blocks=3, codes={"copies_256": {GRID.id: [CODE]}})


def told(*words: str | Path) -> dict[str, Any]:
    outcome = CliRunner().invoke(cli, ["compare", *map(str, words), "--json"])
    assert outcome.exit_code in (0, 1), outcome.output
    found: dict[str, Any] = msgspec.json.decode(outcome.output)
    return found


def row(found: dict[str, Any], measure: str, cell: str = INTERFERENCE.id) -> dict[str, Any]:
    rows = [*found["measures"], *found["service_levels"]]
    (one,) = [r for r in rows if (r["measure"], r["cell"]) == (measure, cell)]
    mine: dict[str, Any] = one
    return mine


def test_every_arm_is_held_against_the_first(folder: Path) -> None:
    worst = row(told(folder), "worst_gap_ms")
    assert [(one["a"], one["b"]) for one in worst["comparisons"]] == [
        ("copies_256", "copies_2048"),
        ("split_1p1d", "copies_2048"),
    ]
    split = worst["comparisons"][1]
    assert split["verdict"] == "A better"
    assert split["low"] < split["ratio"] < split["high"] < 0.05
    assert (split["blocks"], split["left_out"], split["more_blocks"]) == (3, 0, 0)


def test_another_reference_can_be_named(folder: Path) -> None:
    worst = row(told(folder, "--against", "split_1p1d"), "worst_gap_ms")
    assert {one["b"] for one in worst["comparisons"]} == {"split_1p1d"}
    assert {one["verdict"] for one in worst["comparisons"]} == {"B better"}
    asked = CliRunner().invoke(cli, ["compare", str(folder), "--against", "nobody"])
    assert asked.exit_code == 2
    assert "one of copies_2048, copies_256, split_1p1d" in asked.output


def test_excluded_points_are_listed_and_enter_no_verdict(folder: Path) -> None:
    found = told(folder)
    ttft = row(found, "ttft_p50_ms", GRID.id)
    (spoilt,) = [one for one in ttft["comparisons"] if one["a"] == "copies_256"]
    assert spoilt["verdict"] == "cannot tell, no block has a valid point of both arms"
    assert (spoilt["ratio"], spoilt["left_out"]) == (None, 3)
    figure = ttft["figures"][1]
    assert (figure["arm"], figure["excluded"], figure["codes"]) == (
        "copies_256",
        True,
        ["INFLIGHT"],
    )
    assert [(one["arm"], one["block"]) for one in found["excluded"]] == [
        ("copies_256", block) for block in range(3)
    ]
    assert found["excluded"][0]["codes"][0]["why"] == "3.1 of 4"


def test_service_levels_are_compared_as_shares_of_requests(folder: Path) -> None:
    found = told(folder)
    patient = row(found, "met_patient_share", GRID.id)
    assert [one["value"] for one in patient["figures"]] == [1.0, 1.0, 1.0]
    verdicts = {one["a"]: one["verdict"] for one in patient["comparisons"]}
    assert verdicts["split_1p1d"] == "equal within 3 %"
    assert {one["service_level"]["name"] for one in found["most_users"]} >= {"fluent", "patient"}


def test_throughput_is_told_per_device(folder: Path) -> None:
    one = row(told(folder), "throughput_tok_s", GRID.id)["figures"][0]
    assert one["per_device"] == one["value"] / 2


def test_the_confound_ledger_stands_in_it(folder: Path) -> None:
    found = {one["what"]: one for one in told(folder)["confounds"]}
    assert found["flag --max-num-batched-tokens"]["severity"] == "knob"


# ------------------------------------------------------------------------------ the same bytes


def test_the_same_results_give_the_same_bytes(folder: Path) -> None:
    """In other processes, with other hash seeds, and after a run that computed it all anew."""
    script = "from twolane.cli import main; main()"
    answers = {
        subprocess.run(
            [sys.executable, "-c", script, "compare", str(folder), "--json"],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    anew = CliRunner().invoke(cli, ["compare", str(folder), "--json", "--recompute"])
    assert {anew.stdout_bytes} == answers


# ------------------------------------------------------------------------------ the noise floor


def alike(folder: Path, *, blocks: int = 3, spoilt: bool = False) -> Path:
    """A campaign whose second arm is told to run as its first does, and is a little slower.

    Where it is `spoilt`, each of its points has a code.
    """
    busy = [Code(code="BUSY", why="others had the cores")]
    codes = {"copies_256": {GRID.id: busy, INTERFERENCE.id: busy}} if spoilt else None
    make(folder, blocks=blocks, codes=codes)
    for run in load(folder).of_arm("copies_256"):
        path = run.folder / "run.json"
        text = path.read_text().replace('"256"', '"2048"')
        path.write_text(text)
    return folder


def test_two_arms_told_to_run_alike_are_the_noise_floor(tmp_path: Path) -> None:
    """Here they are far apart (the made-up arms are), so nothing smaller is a difference."""
    found = row(told(alike(tmp_path / "aa")), "aggressor_ttft_ms")
    assert 1.15 < found["aa_floor"] < 1.25
    split = found["comparisons"][1]
    assert split["a"] == "split_1p1d"
    assert split["outcome"] == "cannot tell"
    own = found["comparisons"][0]
    assert (own["a"], own["verdict"]) == ("copies_256", "B better")


def test_the_floor_can_come_from_another_campaign(tmp_path: Path, folder: Path) -> None:
    tpot = row(told(folder), "tpot_p50_ms", GRID.id)
    assert tpot["aa_floor"] is None
    assert tpot["comparisons"][1]["verdict"] == "A better"
    floored = row(told(folder, "--aa", alike(tmp_path / "aa")), "worst_gap_ms")
    assert floored["aa_floor"] > 6
    named = CliRunner().invoke(cli, ["compare", str(folder), "--aa", str(tmp_path / "aa")])
    assert "%, by measure" in named.output


def test_a_difference_within_the_floor_says_so(tmp_path: Path, folder: Path) -> None:
    found = told(folder, "--aa", alike(tmp_path / "aa"))
    (one,) = [c for c in row(found, "worst_gap_ms")["comparisons"] if c["a"] == "copies_256"]
    assert one["outcome"] == "cannot tell"
    assert "within noise: equal arms were" in one["verdict"]


def test_where_no_floor_is_known_the_reason_is_the_true_one(tmp_path: Path, folder: Path) -> None:
    """With equal arms of which no point is valid it is another than without equal arms."""
    spoilt = alike(tmp_path / "spoilt", spoilt=True)
    none = "no arm was run beside itself (A/A)"
    coded = (
        "no block has a valid point of both arms that are told to run alike (A/A), copies_2048 and "
        "copies_256"
    )
    for arguments, reason in (
        ([folder], none),
        ([spoilt], coded),
        ([folder, "--aa", folder], f"{none}, in {folder}"),
        ([folder, "--aa", spoilt], f"{coded}, in {spoilt}"),
    ):
        assert told(*arguments)["no_aa_floor"] == reason
        said = CliRunner().invoke(cli, ["compare", *map(str, arguments)])
        assert f"noise floor not known: {reason} (" in said.output
    assert told(alike(tmp_path / "aa"))["no_aa_floor"] is None
    assert f"no noise floor, since {coded};" in verdict(Facts(load(spoilt))).confidence


# --------------------------------------------------------------------------------- two folders


def upgraded(folder: Path, **changes: Any) -> Path:
    make(folder, blocks=3)
    for run in load(folder).runs:
        path = run.folder / "run.json"
        write_json(path, msgspec.structs.replace(read_json(path, RunMeta), **changes))
    return folder


def test_arms_of_two_folders_are_held_against_their_namesakes(tmp_path: Path, folder: Path) -> None:
    second = upgraded(tmp_path / "after", versions={"vllm": "0.33.0"})
    found = told(folder, second)
    worst = row(found, "worst_gap_ms")
    pairs = [(one["a"], one["b"]) for one in worst["comparisons"]]
    assert ("split_1p1d@after", "split_1p1d") in pairs
    assert ("split_1p1d", "copies_2048") in pairs
    (one,) = [c for c in worst["comparisons"] if c["a"] == "split_1p1d@after"]
    assert one["verdict"] == "cannot tell, the arms also differ in versions"


def test_a_declared_difference_spoils_nothing(tmp_path: Path, folder: Path) -> None:
    second = upgraded(tmp_path / "after", versions={"vllm": "0.33.0"})
    found = told(folder, second, "--factor", "versions")
    worst = row(found, "worst_gap_ms")
    (one,) = [c for c in worst["comparisons"] if c["a"] == "split_1p1d@after"]
    assert one["verdict"] == "equal within 3 %"
    (versions,) = [c for c in found["confounds"] if c["what"] == "versions"]
    assert versions["declared"] is True
    asked = CliRunner().invoke(cli, ["compare", str(folder), "--factor", "weather"])
    assert asked.exit_code == 2
    assert "nothing differs that is called 'weather'" in asked.output


def test_another_model_is_a_difference_and_no_fault_of_its_answers(
    tmp_path: Path, folder: Path
) -> None:
    """Its greedy texts are its own: they code nothing NEEDLE."""
    second = upgraded(tmp_path / "other", model="other")
    for run in load(second).runs:
        assert run.needle is not None
        greedy = {probe: f"{text}!" for probe, text in run.needle.greedy.items()}
        write_json(run.folder / "needle.json", msgspec.structs.replace(run.needle, greedy=greedy))
    found = told(folder, second)
    assert {code["code"] for one in found["excluded"] for code in one["codes"]} == {"INFLIGHT"}
    (one,) = [c for c in row(found, "worst_gap_ms")["comparisons"] if c["a"] == "split_1p1d@other"]
    assert one["verdict"] == "cannot tell, the arms also differ in model"
    said = CliRunner().invoke(cli, ["compare", str(folder), str(second)]).output
    assert "No verdict between arms that also differ in model." in said
    assert "Models (needle and other) differ in more than their settings" in said
    assert "Where that is what you ask: --factor model" in said
    meant = CliRunner().invoke(cli, ["compare", str(folder), str(second), "--factor", "model"])
    assert "Where that is what you ask" not in meant.output


def test_seals_hold_under_another_name(tmp_path: Path, folder: Path) -> None:
    found = told(folder, upgraded(tmp_path / "again", versions={"vllm": "0.33.0"}))
    assert not [one for one in found["excluded"] if one["codes"][0]["code"] == "DAMAGED"]


# -------------------------------------------------------------------------------- in a terminal


def test_the_terminal_has_the_same_verdicts(folder: Path) -> None:
    shown = CliRunner().invoke(cli, ["compare", str(folder)])
    assert shown.exit_code == 0
    assert "0.021\N{MULTIPLICATION SIGN} (" in shown.output
    assert "times shorter" not in shown.output
    assert ", better" in shown.output
    assert "(248)" in shown.output or "excluded: INFLIGHT" in shown.output
    assert "flag --max-num-batched-tokens (knob)" in shown.output
    assert "INFLIGHT copies_256: 3 of 3 short-prompt cells, 3.1 of 4" in shown.output
    assert "it need not be the quotient" in shown.output


def test_one_block_is_indicative_and_one_arm_is_no_comparison(tmp_path: Path) -> None:
    found = row(told(make(tmp_path / "one")), "worst_gap_ms")
    assert {one["verdict"] for one in found["comparisons"]} == {"indicative"}
    alone = CliRunner().invoke(cli, ["compare", str(make(tmp_path / "alone", arms=ARMS[:1]))])
    assert alone.exit_code == 1
    assert "No two arms can be compared here." in alone.output


def test_unreadable_results_are_an_answer_not_a_traceback(tmp_path: Path) -> None:
    folder = make(tmp_path / "bad")
    for run in load(folder).runs:
        (run.folder / "run.json").write_text("{")
    outcome = CliRunner().invoke(cli, ["compare", str(folder)])
    assert outcome.exit_code == 1
    assert "3 faults" in outcome.output
    assert as_json(compare_folders(folder))["faults"][0]["why"]
    missing = CliRunner().invoke(cli, ["compare", str(tmp_path / "nowhere")])
    assert missing.exit_code == 2


def test_a_copy_of_the_same_runs_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(QuestionError, match="cannot be held against itself") as error:
        compare_folders(folder, tmp_path / "copy")
    assert error.value.place == str(tmp_path / "copy")
    assert "another campaign" in error.value.remedy


def test_every_comparison_is_the_pages_own(tmp_path: Path) -> None:
    """Also of figures that are zero in a block, which have no ratio at all."""
    folder = make(tmp_path / "r", blocks=3)
    facts = Facts(load(folder))
    compared = compare_folders(folder)
    found = [(row, one) for row in compared.rows for one in row.against]
    assert found
    for row, one in found:
        assert one == facts.versus(row.cell, row.metric, one.a, one.b)
    assert any(one.ratio is None for _, one in found)
    shown = CliRunner().invoke(cli, ["compare", str(folder)])
    assert "no ratio: 0 or less in a block" in shown.output
