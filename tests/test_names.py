"""An arm, an engine or a model of any allowed name: whatever is made of the name is right."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from ruamel.yaml import YAML
from tests.report import synthetic

from twolane import export, handover
from twolane.analysis.results import load
from twolane.config import load_campaign
from twolane.plan import runs
from twolane.recorder import new_run_folder
from twolane.report import html
from twolane.report import text as report_text
from twolane.report.facts import slug

DEMO = Path(__file__).parents[1] / "configs" / "demo.yaml"
NAMES = ("budget 10%", "budget 10-", "[red]\"&'<b>;$HOME`x`", "größer, 2", "%n", "100%n {x}")


def renamed(tmp_path: Path) -> Path:
    arms = tuple(
        dataclasses.replace(arm, name=name)
        for arm, name in zip(synthetic.ARMS, NAMES[:3], strict=True)
    )
    return synthetic.make(tmp_path / "r", arms=arms)


@pytest.mark.parametrize("name", NAMES)
def test_units_and_services_are_called_by_what_systemd_and_compose_take(
    name: str, tmp_path: Path
) -> None:
    demo = load_campaign(DEMO)
    arm = demo.arms[2]
    engines = tuple(dataclasses.replace(e, name=f"{e.role} {name}") for e in arm.layout.engines)
    layout = dataclasses.replace(arm.layout, engines=engines)
    arm = dataclasses.replace(arm, name=name, layout=layout)
    written = handover.write(demo, arm, tmp_path / "w", port=8000)
    units = [path for path in written if path.suffix == ".service"]
    assert len({path.name for path in units}) == 3
    for path in units:
        assert re.fullmatch(r"twolane-[A-Za-z0-9_.-]+\.service", path.name)
    router = next(path for path in units if "-proxy." in path.name).read_text()
    needed = next(line for line in router.splitlines() if line.startswith("Wants="))
    assert set(needed.removeprefix("Wants=").split()) == {
        path.name for path in units if "-proxy." not in path.name
    }
    assert f"{engines[0].name}=http".replace("%", "%%").split('"')[0] in router.replace("$$", "$")
    readme = (tmp_path / "w" / "README.md").read_text()
    assert all(path.name in shlex.split(readme.split("--now ")[1].split("`")[0]) for path in units)
    services = YAML(typ="safe").load(tmp_path / "w" / "compose.yaml")["services"]
    for service, said in services.items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", service)
        assert set(said.get("depends_on", ())) <= services.keys()
    script = tmp_path / "w" / "start.sh"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    for line in script.read_text().splitlines():
        if line.startswith("ready "):
            assert len(shlex.split(line)) == 4


def test_no_two_names_are_called_the_same() -> None:
    assert handover.plain("split_1p1d") == "split_1p1d"
    close = ("a b", "a-b", "a%b", "a  b", "-a-b", "a b ")
    assert len({handover.plain(name) for name in close}) == len(close)
    assert len({slug(name) for name in close}) == len(close)
    assert slug("copies_256") == "copies-256"


def test_ids_of_the_page_are_unique_and_every_link_has_its_place(tmp_path: Path) -> None:
    page = html(load(renamed(tmp_path)))
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(set(ids)) == len(ids)
    assert not any(re.search(r"[\s%]", one) for one in ids)
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert "<b>;" not in page
    assert "--arm 'budget 10" in page or "--arm '[red]" in page


def test_tables_keep_a_name_whole(tmp_path: Path) -> None:
    results = renamed(tmp_path)
    for path in export.export(results, "csv", tmp_path / "csv"):
        with path.open(newline="") as file:
            assert {row["arm"] for row in csv.DictReader(file)} == set(NAMES[:3])
    (told,) = export.export(results, "json", tmp_path / "json")
    assert {cell["arm"] for cell in json.loads(told.read_text())["cells"]} == set(NAMES[:3])
    assert len(export.export(results, "vllm-bench", tmp_path / "vllm")) == 3
    out = io.StringIO()
    Console(file=out, width=200).print(report_text.table(load(results)))
    assert all(name in out.getvalue() for name in NAMES[:3])


def test_a_run_of_a_model_with_an_owner_lies_where_runs_are_looked_for(tmp_path: Path) -> None:
    demo = load_campaign(DEMO)
    owned = dataclasses.replace(demo, model=dataclasses.replace(demo.model, name="owner/name 8B"))
    folder = new_run_folder(tmp_path, owned, runs(demo)[0])
    assert folder.parent == tmp_path / "runs"
    assert folder.name.startswith("owner_name_8B__copies__")
