"""Whatever happened to a results folder, the page is made and `explain` answers or refuses."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

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
