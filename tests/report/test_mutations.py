"""Whatever happened to a results folder, the page is made and `explain` answers or refuses."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.analysis.test_work import ledger_file
from tests.report.synthetic import make

from twolane.analysis.results import load
from twolane.cli import cli
from twolane.report import html

HOW = ("cut", "bytes", "lost line", "doubled line", "number", "gone")
NUMBERS = (b"0", b"-5", b"1e400", b"99999999999999999999", b"null")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make(tmp_path_factory.mktemp("whole") / "r")
    for run in load(folder).runs:
        ledger_file(run, "e0")
    return folder


def mutate(folder: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
    data, how = bytearray(path.read_bytes()), rng.choice(HOW)
    lines = data.splitlines(keepends=True)
    if how == "gone" or not data:
        path.unlink()
        return
    at = rng.randrange(len(lines))
    if how == "cut":
        data = data[: rng.randrange(len(data))]
    elif how == "bytes":
        for _ in range(5):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif how in ("lost line", "doubled line"):
        lines[at : at + 1] = [] if how == "lost line" else [lines[at]] * 2
        data = bytearray(b"".join(lines))
    else:
        number = rng.choice(list(re.finditer(rb"\d+", data)))
        data[number.start() : number.end()] = rng.choice(NUMBERS)
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_folder_is_told_and_never_a_traceback(
    whole: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    for _ in range(rng.randint(1, 3)):
        mutate(folder, rng)
    assert html(load(folder)).endswith("</html>\n")
    for words in (["split_1p1d", "interference"], ["copies_2048"]):
        told = CliRunner().invoke(cli, ["explain", f"{folder}/{words[0]}", *words[1:]])
        assert told.exit_code in (0, 1, 2)
        assert told.exception is None or isinstance(told.exception, SystemExit)


WRONG: tuple[Any, ...] = (
    None, -1, 2.5, "x", True, [], {}, [-1], {"a": -1}, [None, "x"],
    [{"index": [], "uuid": {}, "nvlinks": "x"}],
)  # fmt: skip
OPEN = (
    ("host",), ("host", "gpus"), ("host", "cores"), ("host", "beside"), ("host", "nice"),
    ("host", "cpu"), ("host", "memory_bytes"), ("versions",), ("versions", "vllm"), ("proxy",),
    ("proxy", "argv"), ("config", "arms"), ("config", "model"), ("config", "margin"),
    ("config", "slos"), ("config", "blocks"), ("config", "key"), ("engines",), ("engines", 0),
    ("engines", 0, "devices"), ("engines", 0, "argv"), ("engines", 0, "env"),
    ("engines", 0, "kv_tokens"), ("engines", 0, "ready_s"), ("engines", 0, "strayed"),
)  # fmt: skip


def put(run: Path, place: tuple[str | int, ...], value: Any) -> None:
    held: Any = json.loads((run / "run.json").read_text())
    inner = held
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (run / "run.json").write_text(json.dumps(held))


@pytest.mark.parametrize("place", OPEN, ids=lambda place: ".".join(map(str, place)))
def test_a_wrong_type_in_run_json_is_no_traceback(
    whole: Path, tmp_path: Path, place: tuple[str | int, ...]
) -> None:
    """In the first run, which the page and the comparison take their circumstances from; the page,
    which takes longer, of one value each."""
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    run = load(folder).runs[0].folder
    before = (run / "run.json").read_bytes()
    for number, value in enumerate(WRONG):
        (run / "run.json").write_bytes(before)
        put(run, place, value)
        told = CliRunner().invoke(cli, ["compare", str(folder), "--json"])
        assert told.exception is None or isinstance(told.exception, SystemExit), (place, value)
        if number == OPEN.index(place) % len(WRONG):
            assert html(load(folder)).endswith("</html>\n"), (place, value)


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (("host", "gpus"), [-1], "host.gpus is not a list of GPUs"),
        (("host", "gpus"), [{"index": []}], "host.gpus is not a list of GPUs"),
        (("host", "cores"), 2, "host.cores is not a list of numbers"),
        (("host", "beside"), 2, "host.beside is not a list"),
        (("proxy", "argv"), None, "proxy.argv is not a list of words"),
    ],
)
def test_what_no_figure_can_read_is_named_and_read_as_absent(
    whole: Path, tmp_path: Path, place: tuple[str, str], value: Any, why: str
) -> None:
    folder = tmp_path / "r"
    shutil.copytree(whole, folder)
    run = load(folder).runs[0].folder
    put(run, place, value)
    results = load(folder)
    (told,) = (bad for bad in results.faults if bad.path == str(run / "run.json"))
    assert told.why == f"{why}; read as if it were not there"
    assert place[1] not in getattr(results.runs[0].meta, place[0])
    assert html(results).endswith("</html>\n")
