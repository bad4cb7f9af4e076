"""Preflight and post-mortem of what twolane starts: conversion, refusal, and what is kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from twolane import campaign, devices, inspection
from twolane.cli import cli
from twolane.config import Campaign, Layout, load_campaign, parse_cell
from twolane.engines import kv_runs
from twolane.engines.launch import launches
from twolane.errors import EngineError, GateError, QuestionError
from twolane.inspection import Inspector, explained, refuse
from twolane.records import Finding, Findings, read_json

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "configs/demo.yaml"
LOGS = Path(__file__).parent / "diagnosis/logs"

Changed = Callable[[str, str], Path]


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """The demo's files with one text exchanged; the path of its campaign."""

    def change(old: str, new: str) -> Path:
        for name in ("cpu.yaml", "demo.yaml"):
            text = (ROOT / "configs" / name).read_text()
            (tmp_path / name).write_text(text.replace(old, new))
        return tmp_path / "demo.yaml"

    return change


def split(planned: Campaign) -> Layout:
    return next(arm.layout for arm in planned.arms if arm.layout.split)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_what_is_shipped_has_nothing_wrong(path: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(path)])
    assert result.exit_code == 0, result.output


def test_a_finding_names_the_line_that_set_it(changed: Changed) -> None:
    path = changed(
        "decode_b: {cores: $GROUP_B}", "decode_b: {cores: $GROUP_B, args: [--swap-space 4]}"
    )
    result = CliRunner().invoke(cli, ["check", str(path), "--json"])
    (finding,) = json.loads(result.output)["findings"]
    assert result.exit_code == 1
    assert finding["rule"] == "ENV04"
    line, column = map(int, finding["where"].rsplit(":", 2)[1:])
    assert (
        (path.parent / "cpu.yaml")
        .read_text()
        .splitlines()[line - 1][column - 1 :]
        .startswith("--swap-space")
    )


def test_a_knob_of_the_campaign_is_found_there(changed: Changed) -> None:
    path = changed("context: 16384", "context: 65536")
    findings = {f.rule: f for f in inspection.preflight_file(path)}
    line = 1 + next(
        i for i, t in enumerate(path.read_text().splitlines()) if t.startswith("context")
    )
    assert findings["TOK01"].where == f"{path}:{line}:10"


def test_every_layout_of_a_models_file_is_judged(changed: Changed) -> None:
    path = changed("copy_b: {cores: $GROUP_B}", "copy_b: {cores: $GROUP_B, args: [--swap-space 4]}")
    assert [f.rule for f in inspection.preflight_file(path.parent / "cpu.yaml")] == ["ENV04"]


def test_foreign_engines_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.write_text(
        json.dumps(
            {"engines": [{"name": "e", "argv": ["vllm", "serve", "m", "--swap-space", "4"]}]}
        )
    )
    result = CliRunner().invoke(cli, ["check", "--engines", str(path)])
    assert result.exit_code == 1
    assert "ENV04" in result.output


def test_a_model_of_which_nothing_is_known_is_named() -> None:
    said = inspection.check_files(ROOT / "configs/models.yaml", None).text
    assert "no config.json of Qwen/Qwen3.8-27B, zai-org/GLM-5.3-Flash here" in said
    assert "no config.json" not in inspection.check_files(DEMO, None).text


def test_a_campaign_that_can_give_no_verdict_says_so_before_it_starts(changed: Changed) -> None:
    planned = load_campaign(DEMO)
    assert inspection.doubts(planned) == []
    assert "no verdict" not in inspection.check_files(DEMO, None).text
    (note,) = inspection.doubts(dataclasses.replace(planned, gates=()))
    assert note.startswith("no gates: every point will carry NEEDLE")
    path = changed(
        "decode_b: {cores: $GROUP_B}", "decode_b: {cores: $GROUP_B, args: [--load-format dummy]}"
    )
    said = CliRunner().invoke(cli, ["check", str(path)])
    assert said.exit_code == 0, said.output
    assert "note: weights are dummies: figures only, no verdict (split" in said.output


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("c64 in512 out64 n128", ["c64 in512 out64 n128: 2 waves of 64 users are few, and LITTLE "
                                  "may code it; n256 would do"]),
        ("c64 in512 out64 n256", []),
        ("c64 in512 out64 60s", []),
        ("c1 in512 out64 n3", []),
    ],
)  # fmt: skip
def test_too_few_waves_of_users_are_told_before_they_are_measured(
    cell: str, told: list[str]
) -> None:
    planned = dataclasses.replace(load_campaign(DEMO), cells=(parse_cell(cell),))
    assert inspection.doubts(planned) == told


def test_a_check_of_nothing_is_a_bad_question() -> None:
    assert CliRunner().invoke(cli, ["check"]).exit_code == 2
    assert CliRunner().invoke(cli, ["diagnose"]).exit_code == 2


def test_diagnose_says_the_cause_first() -> None:
    result = CliRunner().invoke(cli, ["diagnose", str(LOGS / "01_hybrid_ds_layout.log")])
    assert result.exit_code == 1
    assert "cause HYB01" in result.output.splitlines()[0]
    healthy = str(LOGS / "29_negative_healthy_decode.log")
    assert CliRunner().invoke(cli, ["diagnose", healthy]).exit_code == 0


async def test_an_error_stops_a_campaign_before_anything_starts(
    changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "require", lambda *_: None)
    planned = load_campaign(changed("context: 16384", "context: 65536"))
    with pytest.raises(QuestionError, match=r"TOK01.*[\s\S]*--allow TOK01"):
        await campaign.run(planned, tmp_path / "out", lambda _: None)
    assert not (tmp_path / "out").exists()
    inspection.preflight_campaign(dataclasses.replace(planned, allow=("TOK01",)))


def test_only_errors_that_are_not_allowed_refuse() -> None:
    refuse([finding("A", "warn"), finding("B", "error")], {"B"})
    with pytest.raises(QuestionError, match="B: title"):
        refuse([finding("A", "warn"), finding("B", "error")], ())


def test_the_preflight_is_kept_with_the_run_and_told(tmp_path: Path) -> None:
    planned = load_campaign(DEMO)
    layout = split(planned)
    decode = dataclasses.replace(layout.engines[1], env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"})
    layout = dataclasses.replace(layout, engines=(layout.engines[0], decode))
    said: list[str] = []
    Inspector(tmp_path, planned, layout, said.append).before()
    kept = read_json(tmp_path / "findings.json", Findings)
    assert [f.rule for f in kept.preflight] == ["ENV03"]
    assert "ENV03" in said[0]


async def test_a_post_mortem_explains_a_dead_engine(tmp_path: Path) -> None:
    planned = load_campaign(DEMO)
    made = launches(planned.model, split(planned), "cpu")
    dead = (LOGS / "23_worker_killed_9.log").read_bytes()
    (tmp_path / f"{made[0].engine.name}.log").write_bytes(dead)
    said: list[str] = []
    inspector = Inspector(tmp_path, planned, split(planned), said.append)
    answer = await inspector.after("", made)
    error = explained(EngineError("engine p died", place="x", log_tail=("raw",)), answer, tmp_path)
    assert isinstance(error, EngineError)
    assert f"engine p died: {answer.cause}: " in error.what
    assert error.place.startswith(str(tmp_path / made[0].engine.name))
    assert error.remedy == answer.findings[0].fix
    assert error.log_tail == tuple(answer.findings[0].evidence)
    kept = read_json(tmp_path / "findings.json", Findings).postmortems
    assert [p.cause for p in kept] == [answer.cause]
    assert str(answer.cause) in said[0]


async def test_an_unknown_failure_keeps_its_own_words(tmp_path: Path) -> None:
    planned = load_campaign(DEMO)
    inspector = Inspector(tmp_path, planned, split(planned), lambda _: None)
    answer = await inspector.after("", [])
    error = GateError("needle missed", place="r1", remedy="read")
    assert explained(error, answer, tmp_path) is error
    assert not (tmp_path / "findings.json").exists()


async def test_figures_of_a_coded_cell_are_judged(tmp_path: Path) -> None:
    planned = load_campaign(DEMO)
    made = launches(planned.model, split(planned), "cpu")
    name = made[1].engine.name
    late = "vllm:nixl_num_failed_transfers_total"
    inspector = Inspector(tmp_path, planned, split(planned), lambda _: None)
    answer = await inspector.after("c4", made, {name: {late: 1.0}}, {name: {late: 4.0}})
    assert answer.cause == "RUN03"
    assert read_json(tmp_path / "findings.json", Findings).postmortems[0].about == "c4"


@pytest.mark.parametrize(("cell", "found"), [("c4 in512 out64 n24", True), ("ramp 6000", False)])
async def test_a_warm_cache_is_no_fault_where_it_is_the_point(
    tmp_path: Path, cell: str, found: bool
) -> None:
    planned = load_campaign(DEMO)
    made = launches(planned.model, split(planned), "cpu")
    name = made[0].engine.name
    before = {"vllm:prefix_cache_queries_total": 0.0, "vllm:prefix_cache_hits_total": 0.0}
    after = {"vllm:prefix_cache_queries_total": 9000.0, "vllm:prefix_cache_hits_total": 6000.0}
    inspector = Inspector(tmp_path, planned, split(planned), lambda _: None)
    answer = await inspector.after(cell, made, {name: before}, {name: after})
    assert ("BENCH01" in [f.rule for f in answer.findings]) is found


def finding(rule: str, severity: str) -> Finding:
    return Finding(
        rule=rule, severity=severity, where="e0", title="title", consequence="so", fix="fix",  # type: ignore[arg-type]
        source="s", certainty="source",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ("one", ["one: proxy: tokenise_once, connector has no effect, for this arm is no split; "
                 "leave it out"]),
        ("split", []),
    ],
)  # fmt: skip
def test_options_of_a_handover_without_one_are_told(arm: str, told: list[str]) -> None:
    planned = load_campaign(DEMO)
    kind = next(a for a in planned.arms if a.layout.split == (arm == "split"))
    words = ("--tokenise-once", "--connector", "push", "--backlog", "4")
    layout = dataclasses.replace(kind.layout, proxy=words)
    asked = dataclasses.replace(kind, name=arm, layout=layout)
    assert inspection.doubts(dataclasses.replace(planned, arms=(asked,), cells=())) == told


@pytest.mark.parametrize(
    ("log", "env", "told"),
    [
        ("INFO ready", {"TWOLANE_KV_RUNS": "1"}, ["TWOLANE_KV_RUNS=1"]),
        (f"INFO {kv_runs.HEARD}: 8", {"TWOLANE_KV_RUNS": "1"}, []),
        (f"INFO {kv_runs.HEARD}: 8", {"TWOLANE_NIXL_ASCENDING": "1"}, ["TWOLANE_NIXL_ASCENDING=1"]),
        ("INFO ready", {"TWOLANE_KV_RUNS": "0"}, []),
        ("", {"TWOLANE_KV_RUNS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}, []),
    ],
)
def test_a_plugin_that_was_asked_for_and_not_heard_is_kept_and_told(
    tmp_path: Path, log: str, env: dict[str, str], told: list[str]
) -> None:
    campaign = load_campaign(DEMO)
    arm = campaign.arms[0]
    notes: list[str] = []
    inspector = inspection.Inspector(tmp_path, campaign, arm.layout, notes.append)
    made = launches(campaign.model, arm.layout, "cpu")[:1]
    asked = [dataclasses.replace(one, env={**one.env, **env}) for one in made]
    (tmp_path / f"{made[0].engine.name}.log").write_text(log)
    inspector.heard(asked)
    kept = [f for one in inspector.found.postmortems for f in one.findings]
    assert [(f.rule, f.value) for f in kept] == [("ENV18", value) for value in told]
    assert len(notes) == len(told)
