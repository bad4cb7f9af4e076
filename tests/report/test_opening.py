"""What the figures hold for and what was left out are on the first screen, each in one line."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.report.synthetic import ARMS, GRID, INTERFERENCE, make

from twolane.analysis.compare import Comparison, Outcome
from twolane.analysis.results import load
from twolane.cli import cli
from twolane.records import CellSummary, Code, RunMeta, read_json, write_json
from twolane.report import again, html, left_out, opening
from twolane.report.decision import Line
from twolane.report.facts import Facts
from twolane.report.figures import brief
from twolane.report.machine import without_empty
from twolane.report.scope import scope
from twolane.report.text import verdict

BUSY = Code(code="BUSY", why="others had 27% of CPU time", value=0.27, limit=0.1)


def changed(folder: Path, **fields: object) -> Facts:
    """Results whose runs have other fields in run.json."""
    for run in load(make(folder)).runs:
        path = run.folder / "run.json"
        write_json(path, msgspec.structs.replace(read_json(path, RunMeta), **fields))
    return Facts(load(folder))


def test_machine_engine_model_and_blocks_stand_under_the_question(tmp_path: Path) -> None:
    facts = Facts(load(make(tmp_path / "r", blocks=3)))
    assert scope(facts) == (
        "Imaginary CPU, 2 CPU cores, no GPU; vLLM 0.32.0; model needle; 3 blocks, each arm "
        "in each sent the long prompt once. Another model or machine has other figures: measure "
        "yours with configs/own."
    )
    assert f'<p class="scope">{scope(facts)}</p>' in html(facts.results)


def test_gpus_are_counted_by_name(tmp_path: Path) -> None:
    gpus = [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]
    assert scope(changed(tmp_path / "r", host={"cpu": "Xeon", "gpus": gpus})).startswith(
        "2 NVIDIA H200; vLLM"
    )


def test_of_many_gpus_it_is_told_how_many_an_arm_has(tmp_path: Path) -> None:
    gpus = [{"name": "NVIDIA H200"}] * 4
    facts = changed(tmp_path / "r", host={"cpu": "Xeon", "gpus": gpus})
    assert scope(facts).startswith("4 NVIDIA H200, 2 of them an arm; vLLM")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/x/twolane/models/needle", "model needle, twolane\u2019s own small one that copies;"),
        ("/x/models/needle-7b", "model needle;"),
    ],
)
def test_the_bundled_model_is_named_as_such(tmp_path: Path, path: str, words: str) -> None:
    config = {"model": {"name": "needle", "path": path}}
    assert words in scope(changed(tmp_path / "r", config=config))


@pytest.mark.parametrize(
    ("argv", "dummy"),
    [
        (["--load-format", "dummy"], True),
        (["--load-format=dummy"], True),
        (["--load-format", "auto", "--served-model-name", "dummy"], False),
    ],
)
def test_dummy_weights_are_named(tmp_path: Path, argv: list[str], dummy: bool) -> None:
    (first, *_) = load(make(tmp_path / "made")).runs
    engines = [msgspec.structs.replace(one, argv=argv) for one in first.meta.engines]
    assert ("dummy weights" in scope(changed(tmp_path / "r", engines=engines))) is dummy


def test_what_is_left_out_is_one_line_an_arm_and_code(tmp_path: Path) -> None:
    codes = {"split_1p1d": {INTERFERENCE.id: [BUSY]}}
    facts = Facts(load(make(tmp_path / "r", blocks=3, codes=codes)))
    assert left_out.counted(facts, "split_1p1d", "BUSY") == "3 of 3 long-prompt cells"
    assert [line.partition(" (")[0] for line in left_out.plain(facts)] == [
        "BUSY split_1p1d: 3 of 3 long-prompt cells"
    ]
    said = left_out.left_out(facts)
    assert said.count("<li>") == 1
    assert "3 of 18 measured cells enter no verdict" in said
    assert "(27 %, limit 10 %)" in said
    assert "<code>twolane run synthetic.yaml --resume --redo BUSY</code>" in said


def test_codes_that_strike_one_arm_alone_are_remarked(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [BUSY]}
    alone = Facts(load(make(tmp_path / "a", blocks=2, codes={"split_1p1d": busy})))
    assert left_out.remarks(alone)[0].startswith("Only split_1p1d is struck")
    assert "<summary>Whose CPU time</summary>" in left_out.left_out(alone)
    both = Facts(load(make(tmp_path / "b", codes={"split_1p1d": busy, "copies_256": busy})))
    assert not any("Only" in one for one in left_out.remarks(both))


def test_a_reason_without_a_share_is_told_in_its_words(tmp_path: Path) -> None:
    lost = Code(code="FAILED", why="1 of 3 requests failed", value=1)
    facts = Facts(load(make(tmp_path / "r", codes={ARMS[0].name: {GRID.id: [lost]}})))
    said = left_out.left_out(facts)
    assert "1 of 1 short-prompt cells" in said
    assert ", 1 of 3 requests failed</li>" in said
    assert "CPU time" not in said


def test_columns_in_which_nothing_stands_are_dropped() -> None:
    head, rows = without_empty(("a", "b", "c"), [("x", "", "1"), ("y", "\N{EN DASH}", "")])
    assert head == ["a", "c"]
    assert rows == [["x", "1"], ["y", ""]]


def test_what_a_code_means_is_said_once(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [BUSY], GRID.id: [BUSY]}
    page = html(load(make(tmp_path / "r", blocks=2, codes={"split_1p1d": busy})))
    excluded = page.partition('<ul class="excluded">')[2].partition("</ul>")[0]
    assert excluded.count("<li") == 4
    assert excluded.count("other programs used this host") == 1


def test_a_partly_coded_figure_says_how_many_runs_are_clean(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", blocks=3)
    facts = Facts(load(folder))
    metric = "throughput_tok_s"
    points = facts.points(GRID, metric)
    facts._points[GRID.id, metric] = [
        type(p)(p.arm, p.block, p.run, p.cell, p.metric, p.value, (BUSY,) * (p.block == 1))
        for p in points
    ]
    assert facts.figure(GRID, metric, "split_1p1d").partly == "2 of 3 runs clean"
    assert facts.figure(GRID, "ttft_p50_ms", "split_1p1d").partly == ""


def test_what_is_partly_coded_does_not_look_whole(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", blocks=2)
    run = next(run for run in load(folder).runs if run.arm == "copies_256")
    lines = (run.folder / "cells.jsonl").read_text().splitlines()
    cells = [msgspec.json.decode(line, type=CellSummary) for line in lines]
    coded = [msgspec.structs.replace(cell, codes=[BUSY], seal=None) for cell in cells]
    text = b"\n".join(msgspec.json.encode(cell) for cell in coded) + b"\n"
    (run.folder / "cells.jsonl").write_bytes(text)
    page = html(load(folder))
    assert page.count('class="pause partly"') == 3  # worst pause, time stalled, tokens lost
    assert 'class="meter partly"' in page
    assert "budget partly" in page  # its point on the frontier
    assert "1 of 2 runs left out: BUSY" in page


def test_of_arms_that_run_alike_the_second_says_what_it_is_for(tmp_path: Path) -> None:
    alike = (ARMS[0], replace(ARMS[0], name="again_2048"))
    page = html(load(make(tmp_path / "r", arms=alike)))
    assert page.count("<small>two copies, budget\N{NO-BREAK SPACE}2,048</small>") == 1
    assert page.count("<small>copies_2048 again, for the noise (A/A)</small>") == 1


@pytest.mark.parametrize(
    ("outcome", "more", "words"),
    [
        ("A better", 0, "better"),
        ("B better", 0, "worse"),
        ("equal", 0, "equal within 3 %"),
        ("cannot tell", 1, "cannot tell, guess: 1 more block"),
        ("cannot tell", None, "cannot tell, >100 blocks"),
        ("indicative", None, "one block"),
    ],
)
def test_verdicts_are_short_under_a_figure(outcome: Outcome, more: int | None, words: str) -> None:
    found = Comparison("a", "b", "c", "m", 2, 0, outcome, 0.03, 1.2, 1.1, 1.3, more_blocks=more)
    assert brief(found) == words


def test_within_noise_is_said_plainly() -> None:
    found = Comparison("a", "b", "c", "m", 3, 0, "cannot tell", 0.03, 1.06, 1.03, 1.08, floor=1.06)
    assert brief(found) == "within noise"


def test_arms_of_which_a_code_struck_as_many_cells_share_a_line(tmp_path: Path) -> None:
    lost = {arm.name: {GRID.id: [Code(code="FAILED", why=f"{arm.name} failed")]} for arm in ARMS}
    said = left_out.left_out(Facts(load(make(tmp_path / "r", codes=lost))))
    assert said.count("<li>") == 1
    assert "1 of 1 short-prompt cells each: " in said
    assert said.count("copies_2048 failed; copies_256 failed; split_1p1d failed</li>") == 1
    assert "--resume --redo FAILED</code>" in said


def test_under_the_decision_stand_three_lines_and_doubts_are_a_list(tmp_path: Path) -> None:
    opening = html(load(make(tmp_path / "r", blocks=3))).partition("</header>")[0]
    decision = opening.partition('<div class="decision settled">')[2].partition("</div>")[0]
    assert decision.startswith("<p>Run split_1p1d.</p><p><b>Worst pause</b> 0.046")
    assert decision.count("<p>") == 4
    sure = opening.partition("How sure</h2>")[2].partition("</section>")[0]
    assert "<p>By the worst pause, split_1p1d is better than" in sure
    assert sure.index("</ul>") < sure.index("<summary>In full</summary>") < sure.index("95 % ")


@pytest.mark.parametrize(("blocks", "arms", "told"), [(1, 3, ()), (2, 1, ()), (2, 3, ("A ratio",))])
def test_what_no_bar_shows_is_not_explained_under_them(
    tmp_path: Path, blocks: int, arms: int, told: tuple[str, ...]
) -> None:
    facts = Facts(load(make(tmp_path / "r", blocks=blocks, arms=ARMS[:arms])))
    page = html(facts.results)
    note = page.partition('<p class="note">')[2].partition("</p>")[0]
    assert note.startswith("The tick in a bar")
    assert ("A ratio to copies_2048" in note) is ("A ratio" in told)
    assert ("Bars are medians" in note) is (blocks > 1 and bool(facts.answers.limits))


def test_what_a_host_spoilt_is_measured_again_by_a_command_that_exists(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [BUSY]}
    codes = {arm.name: busy for arm in ARMS}
    results = load(make(tmp_path / "r", codes=codes))
    told = verdict(Facts(results)).decided.line("What to do")
    assert told == "close other programs, then: twolane run synthetic.yaml --resume --redo BUSY"
    (meta, *_) = (run.meta for run in results.runs)
    demo = msgspec.structs.replace(meta, campaign="demo", config={"blocks": 3})
    alone = again.command(meta, ["BUSY"], alone=True)
    assert alone.endswith(f" --resume --redo BUSY --arm {meta.arm} --block 1")
    for command in (alone, again.command(demo, ["BUSY"], alone=True)):
        outcome = CliRunner().invoke(cli, [*command.split()[1:], "--help"])
        assert outcome.exit_code == 0, outcome.output
    assert again.command(demo, ["BUSY"]) == "twolane demo --blocks 3 --resume --redo BUSY"


def of(campaign: str, *blocks: int) -> list[RunMeta]:
    """Runs of a campaign that was to have so many blocks when each was begun."""
    return [
        RunMeta(
            id=f"r{i}", campaign=campaign, arm="a", model="m", layout="l", context=1, block=i,
            order=i, seed=1, started_at="", boot="", config={"blocks": n}, config_hash="",
            versions={}, host={}, cells=[],
        )
        for i, n in enumerate(blocks)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("metas", "blocks", "words"),
    [
        (of("demo", 1), 3, "demo --blocks 3 --resume"),
        (of("demo", 1, 3), 3, "demo --blocks 3 --resume"),
        (of("sweep", 2, 2), 4, "run sweep.yaml --blocks 4 --resume"),
        (of("sweep", 3, 3), 3, "run sweep.yaml --resume"),
        (of("sweep", 2, 4), 4, "run sweep.yaml --blocks 4 --resume"),
        (of("a sweep", 2), 5, "run 'a sweep.yaml' --blocks 5 --resume"),
    ],
)
def test_the_command_for_more_blocks_is_one_that_can_be_typed(
    metas: list[RunMeta], blocks: int, words: str
) -> None:
    command = again.with_more_blocks(metas, blocks)
    assert command == f"twolane {words}"
    asked = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--help"])
    assert asked.exit_code == 0, asked.output


def test_where_blocks_were_added_what_is_done_again_names_them_all() -> None:
    metas = of("sweep", 2, 4)
    assert again.command(metas[0], ["BUSY"], among=metas) == (
        "twolane run sweep.yaml --blocks 4 --resume --redo BUSY"
    )
    demo = of("demo", 1, 3)
    assert again.command(demo[0], [], among=demo) == "twolane demo --blocks 3 --resume"


def test_one_block_says_how_it_becomes_a_verdict(tmp_path: Path) -> None:
    told = verdict(Facts(load(make(tmp_path / "r"))))
    assert told.decided.strength == "indicative"
    said = "`twolane run synthetic.yaml --blocks 3 --resume` adds the blocks for one."
    assert said in told.confidence
    assert said in html(load(tmp_path / "r"))


def test_what_would_settle_it_is_a_command_to_type(tmp_path: Path) -> None:
    """Where a number of blocks would do; no full stop where a command ends."""
    found = Line("To settle it", "against b 2 more blocks would do", "twolane run x --resume")
    assert str(found) == "To settle it: against b 2 more blocks would do: twolane run x --resume"
    assert "<code>twolane run x --resume</code>" in str(opening._said(found))
    parts = Line("KV transfer", "one came\nIt moved 1 GB")
    assert str(parts) == "KV transfer: one came. It moved 1 GB."
    assert str(opening._said(parts)).count('class="say"') == 2
    assert str(opening._said(Line("Still lost", "nothing"))) == "nothing"


def test_the_command_names_the_folder_that_out_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    busy = {arm.name: {INTERFERENCE.id: [BUSY]} for arm in ARMS}
    for parent, out in (("res", " --out res"), ("results", ""), ("a b", " --out 'a b'")):
        folder = make(Path(parent) / "synthetic", codes=busy)
        told = CliRunner().invoke(cli, ["report", str(folder)])
        line = f"twolane run synthetic.yaml{out} --resume --redo BUSY"
        assert line in told.stdout
        assert line in told.stderr
        assert line in (folder / "report.html").read_text()
    away = make(Path("unpacked") / "other", codes=busy)
    assert "--out" not in CliRunner().invoke(cli, ["report", str(away)]).stdout
    assert "--out" not in html(load(Path("res") / "synthetic"))


def test_explain_names_the_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    busy = {arm.name: {INTERFERENCE.id: [BUSY]} for arm in ARMS}
    folder = make(Path("res") / "synthetic-2", codes=busy)
    told = CliRunner().invoke(cli, ["explain", f"{folder}/{ARMS[0].name}"])
    assert "synthetic.yaml --out res --resume --redo BUSY" in told.output


def test_blocks_from_the_command_line_are_named_in_what_goes_on() -> None:
    metas = [
        msgspec.structs.replace(one, config={"blocks": 3, "file_blocks": 1})
        for one in of("sweep", 3, 3)
    ]
    assert again.command(metas[0], [], among=metas) == "twolane run sweep.yaml --blocks 3 --resume"
    assert again.with_more_blocks(metas, 3) == "twolane run sweep.yaml --blocks 3 --resume"
