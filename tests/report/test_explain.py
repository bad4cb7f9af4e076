"""`twolane explain`: where time went, what a stall meets, why a point is coded, what changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.analysis.test_work import ledger_file
from tests.report.synthetic import ARMS, GRID, INTERFERENCE, make

from twolane.analysis.results import load
from twolane.cli import cli
from twolane.records import (
    Appender,
    CellSummary,
    Code,
    Finding,
    Findings,
    PostMortem,
    RunMeta,
    Sample,
    read_json,
    read_jsonl,
    write_json,
)
from twolane.report import explain as explain_words
from twolane.report.told import StallTold


def explain(*words: str) -> str:
    outcome = CliRunner().invoke(cli, ["explain", *words])
    assert outcome.exit_code == 0, outcome.output
    plain = str.maketrans("\N{NARROW NO-BREAK SPACE}\N{NO-BREAK SPACE}", "  ")
    return outcome.output.translate(plain)


def told(*words: str) -> Any:
    return json.loads(explain(*words, "--json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "r")


def test_a_ledgers_parts_sum_to_what_the_client_saw(folder: Path) -> None:
    for arm in ("copies_256", "split_1p1d"):
        for ledger in told(f"{folder}/{arm}", "interference")["ledgers"]:
            whole = sum(ledger["parts_ms"].values()) + ledger["unexplained_ms"]
            assert whole == pytest.approx(ledger["ttft_ms"])
    text = explain(f"{folder}/split_1p1d", "interference")
    assert "First token of the long prompt: 3.45 s" in text
    assert "D queue + KV transfer" in text


def test_a_stall_is_told_with_what_overlaps_it(folder: Path) -> None:
    run = load(folder).of_arm("copies_2048")[0]
    ledger_file(run, "e0")
    text = explain(f"{folder}/copies_2048", "interference")
    assert "3 stalls" in text
    assert "2.21 s  reader 1 on e0, shot 1, hit, 0.7" in text
    assert "prefill of 6,000 tokens (aggressor) on e0, 3.35 s: covers 100% of it" in text
    assert told(f"{folder}/copies_2048", "interference")["stalls_in_all"] == 3
    assert "No reader stalled." in explain(f"{folder}/split_1p1d", "interference")


@pytest.mark.parametrize(("null", "began"), [(True, "sleep began"), (False, "prompt was sent")])
def test_a_stall_of_a_null_run_is_placed_by_its_sleep(*, null: bool, began: str) -> None:
    one = StallTold("r", 1, 0, null, 80.0, 50.0, "hit", 0.7, "e0", [], [], [])
    assert next(explain_words._stall([one])).endswith(f"s after the {'long ' * (not null)}{began}")


def test_transfers_are_held_against_the_link(folder: Path) -> None:
    run = load(folder).of_arm("split_1p1d")[0]
    cell = run.cells[0]
    before = {f"vllm:nixl_{name}": 0.0 for name in ("num_descriptors_count",)}
    after = {
        "vllm:nixl_num_descriptors_count": 1.0,
        "vllm:nixl_num_descriptors_sum": 125_000.0,
        "vllm:nixl_bytes_transferred_sum": 1.024e9,
        "vllm:nixl_post_time_seconds_sum": 0.71,
        "vllm:nixl_xfer_time_seconds_sum": 0.78,
    }
    with Appender(run.folder / "metrics.jsonl") as metrics:
        for at, values in ((cell.started_ns, before), (cell.ended_ns, after)):
            metrics.append(Sample(t_ns=at, source="e1", values=values))
    text = explain(f"{folder}/split_1p1d", "interference")
    assert "KV transfers by pull over shared memory of one host, speed not known" in text
    assert "1.02 GB in 125,000 descriptors, 0.78 s, 1.31 GB/s, of it posting 0.71 s" in text
    assert "5.68 us a descriptor" in text


def test_a_code_is_told_with_its_meaning_and_remedy(tmp_path: Path) -> None:
    code = Code(code="INFLIGHT", why="mean in-flight 3.1 of 4", value=3.1, limit=3.8)
    folder = make(tmp_path / "r", codes={"copies_256": {GRID.id: [code]}})
    text = explain(f"{folder}/copies_256")
    assert "INFLIGHT: mean in-flight 3.1 of 4" in text
    assert "remedy: look for a limit on connections" in text
    (of_grid,) = [c for c in told(f"{folder}/copies_256")["cells"] if c["cell"] == GRID.id]
    assert of_grid["codes"][0]["limit"] == 3.8


def test_what_the_rules_found_is_told_with_the_cell(folder: Path) -> None:
    run = load(folder).of_arm("copies_256")[0]
    finding = Finding(
        rule="RUN07", severity="warn", where="e0.log:12", title="preempted", fix="more KV memory",
        consequence="requests start again", source="vLLM", certainty="executed",
    )  # fmt: skip
    post = PostMortem(about=GRID.id, findings=[finding])
    write_json(run.folder / "findings.json", Findings(postmortems=[post]))
    assert "fix: more KV memory" in explain(f"{folder}/copies_256", GRID.id)
    assert "RUN07" not in explain(f"{folder}/copies_256", "interference")


def test_a_request_alone(folder: Path) -> None:
    text = explain(f"{folder}/split_1p1d", "aggressor")
    assert "aggressor, shot 1 on e1" in text
    assert "6,000 prompt tokens, 16 answered, status 200, length" in text
    one = told(f"{folder}/split_1p1d", "aggressor")
    assert one["ledger"]["ttft_ms"] == pytest.approx(3446, abs=2)
    assert one["beside"] == []


def test_what_changed_between_two_runs(folder: Path) -> None:
    words = (f"{folder}/copies_2048", "--against", f"{folder}/copies_256")
    text = explain(*words)
    assert "e0: --max-num-batched-tokens: 2048 -> 256" in text
    assert "Worst pause of a reader, ms: 2,206 -> 310 (0.141" in text
    assert {c["kind"] for c in told(*words)["changes"]} == {"run", "flag"}


@pytest.mark.parametrize(
    "words", [["nope"], ["{}/copies_256", "nope"], ["{}/copies_256", "c4", "--against", "x"]]
)
def test_bad_questions_are_refused_with_what_there_is(folder: Path, words: list[str]) -> None:
    outcome = CliRunner().invoke(cli, ["explain", *(word.format(folder) for word in words)])
    assert outcome.exit_code == 2
    assert "remedy: " in outcome.output


def test_a_run_whose_requests_are_gone_is_still_explained(folder: Path) -> None:
    run = load(folder).of_arm("copies_256")[0]
    (run.folder / "requests.jsonl").unlink()
    text = explain(f"{folder}/copies_256")
    assert "copies_256" in text


def test_others_on_the_host_are_told_with_what_they_cost(folder: Path) -> None:
    (run,) = load(folder).of_arm("split_1p1d")[:1]
    path = run.folder / "cells.jsonl"
    kept = list(read_jsonl(path, CellSummary, []))
    path.unlink()
    with Appender(path) as cells:
        for one in kept:
            shares = {"foreign_cpu_share": 0.031, "lost_to_others_share": 0.012}
            values = one.values | shares
            cells.append(msgspec.structs.replace(one, values=values, seal=None))
    text = explain(f"{folder}/split_1p1d", "interference")
    assert "Others had 3.1% of the host's CPU time during the cell; it cost the worst-off" in text
    assert "at most 1.2% of its cores." in text
    assert told(f"{folder}/split_1p1d", "interference")["lost_to_others_share"] == 0.012
    assert "Others had" not in explain(f"{folder}/copies_256", "interference")


def test_of_several_blocks_the_first_is_told_and_the_next_command_works(tmp_path: Path) -> None:
    folder = make(tmp_path / "demo", blocks=2)
    said = explain(f"{folder}/split_1p1d")
    assert f"note: block 1 of 2; {folder}/split_1p1d/2 is block 2" in said
    words = said.rsplit("Next: twolane explain ", 1)[1].strip().replace("'", "").split(" ", 1)
    assert "note" not in explain(*words)


def test_an_arm_may_be_the_second_word(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    one = CliRunner().invoke(cli, ["explain", str(folder), "copies_256"])
    other = CliRunner().invoke(cli, ["explain", f"{folder}/copies_256"])
    assert (one.exit_code, one.output) == (0, other.output)
    assert CliRunner().invoke(cli, ["explain", str(folder), "nothing"]).exit_code == 2


def test_where_there_are_no_gates_nothing_is_offered_to_be_done_again(tmp_path: Path) -> None:
    codes = [Code(code=code, why="x") for code in ("BUSY", "NEEDLE")]
    struck = {arm.name: {INTERFERENCE.id: codes, GRID.id: codes} for arm in ARMS}
    folder = make(tmp_path / "r", codes=struck)
    gated = CliRunner().invoke(cli, ["report", str(folder)])
    assert "--redo NEEDLE" in gated.stderr
    for run in load(folder).runs:
        path = run.folder / "run.json"
        meta = read_json(path, RunMeta)
        write_json(path, msgspec.structs.replace(meta, config=meta.config | {"gates": []}))
    bare = CliRunner().invoke(cli, ["report", str(folder)])
    assert "remedy: add gates to the campaign" in bare.stderr
    assert "--redo" not in bare.stderr
    told = CliRunner().invoke(cli, ["explain", f"{folder}/copies_256", "interference"])
    assert "add gates to the campaign" in told.output
