"""What every command shares: a remedy that fits, and an end without a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tests.report.synthetic import ARMS, GRID, INTERFERENCE, Arm, make

from twolane.analysis.results import load
from twolane.campaign import Outcome
from twolane.cli import cli, measure
from twolane.cli.frame import of_system
from twolane.records import Code

DEMO = Path(__file__).parents[1] / "configs" / "demo.yaml"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "the right to it"),
        (errno.ENOENT, "check the path"),
        (errno.EISDIR, "not a folder"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EADDRINUSE, "another port"),
        (errno.EXDEV, "what was written is kept"),
    ],
)
def test_the_remedy_fits_what_the_system_refused(number: int, remedy: str) -> None:
    error = of_system(OSError(number, os.strerror(number), "/some/file"))
    assert remedy in error.remedy
    assert ("space" in error.remedy) == (number == errno.ENOSPC)
    assert (error.place, error.what) == ("/some/file", os.strerror(number))


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["twolane", "--help"]
import twolane.__main__
twolane.__main__.main()
"""


def test_ctrl_c_while_the_commands_are_imported_is_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")


GROUP = """
import asyncio, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from twolane.cli.frame import interruptible
from twolane.halt import Halt
from twolane.config import parse_cell
from twolane.load.calibration import calibrate

async def work():
    asyncio.get_running_loop().call_later(0.7, os.killpg, 0, signal.SIGINT)
    await calibrate([parse_cell("c4 in512 out64 n24")])
    await asyncio.sleep(30)

try:
    interruptible(work(), Halt())
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_ctrl_c_to_the_whole_group_while_the_client_is_calibrated_is_no_traceback() -> None:
    """A terminal sends it to every process of the group, to the helpers too."""
    ended = subprocess.run(
        [sys.executable, "-c", GROUP],
        capture_output=True, text=True, timeout=60, start_new_session=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "d\udcff", "--json"], "is not UTF-8"),
        (["compare", "d", "--against", "\udcff"], "is not UTF-8"),
        (["up", "x.yaml", "a", "--arm", "b"], "two arms are named"),
        (["run", "x.yaml", "--dry-run", "--redo", "BUSY"], "without --resume"),
        (["run", str(DEMO), "--dry-run", "--allow", "ENV99"], "'ENV99', which is no rule"),
        (["run", str(DEMO), "--dry-run", "--resume", "--redo", "BUSSY"], "did you mean 'BUSY'"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(words: list[str], said: str) -> None:
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 2
    assert said in told.output
    assert "remedy" in told.output


@pytest.mark.parametrize(
    ("coded", "arms", "codes"),
    [
        (False, ARMS, {"demo": 0, "report": 0, "compare": 0}),
        (True, ARMS, {"demo": 1, "report": 1, "compare": 1}),
        (False, ARMS[:1], {"demo": 0, "report": 0, "compare": 1}),
    ],
)
def test_the_exit_codes_of_who_measures_and_who_reads_agree(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    coded: bool,
    arms: tuple[Arm, ...],
    codes: dict[str, int],
) -> None:
    """Without a valid point there is no answer; an arm alone is one, but no comparison."""
    lost = {cell.id: [Code(code="FAILED", why="all failed")] for cell in (INTERFERENCE, GRID)}
    folder = make(tmp_path / "r", arms=arms, codes={one.name: lost for one in arms if coded})
    metas = tuple(run.meta for run in load(folder).runs)
    monkeypatch.setattr(measure, "_driven", lambda *_: Outcome(folder, metas))
    for words in (["demo"], ["report", str(folder)], ["compare", str(folder)]):
        for asked in (words, [*words, "--json"]):
            told = CliRunner().invoke(cli, asked)
            assert told.exit_code == codes[words[0]], (asked, told.output)


@pytest.mark.parametrize("spoilt", [1, 2, 3])
def test_the_one_answer_of_the_demo_is_missed_where_two_arms_cannot_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: int
) -> None:
    """Its other cells are good: the exit code and the last lines tell all the same."""
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="others used 0.3 of the CPU time")]}
    arms = [one.name for one in ARMS[:spoilt]]
    folder = make(tmp_path / "r", codes=dict.fromkeys(arms, busy))
    metas = tuple(run.meta for run in load(folder).runs)
    monkeypatch.setattr(measure, "_driven", lambda *_: Outcome(folder, metas))
    for words in (["demo"], ["report", str(folder)]):
        told = CliRunner().invoke(cli, words)
        assert told.exit_code == (spoilt > 1), told.output
        last = told.output.splitlines()[-2:]
        assert ("no answer to what this was run for" in last[0]) == (spoilt > 1)
        if spoilt > 1:
            assert f"in {INTERFERENCE.id} is spoilt for {arms[0]}" in last[0]
            assert "(BUSY)" in last[0]
            assert last[1].startswith("  remedy: close other programs, then: twolane ")
            assert "--resume" in last[1]
            assert "--redo BUSY" in last[1]
        said = msgspec.json.decode(
            CliRunner().invoke(cli, [*words, "--json"]).output.splitlines()[0]
        )
        assert said["answered"] == (spoilt < 2)
        assert bool(said["missing"]) == (spoilt > 1)


def test_a_cell_that_was_never_driven_is_missed(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    for run in load(folder).runs[1:]:
        path = run.folder / "cells.jsonl"
        lines = [line for line in path.read_bytes().splitlines(True) if b"interference" not in line]
        path.write_bytes(b"".join(lines))
    told = CliRunner().invoke(cli, ["report", str(folder)])
    assert told.exit_code == 1
    assert "in interference" in told.output.splitlines()[-2]


def test_a_run_that_failed_is_a_bad_answer_of_who_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "r")
    metas = [run.meta for run in load(folder).runs]
    metas[0] = msgspec.structs.replace(metas[0], status="failed", error="e1 died")
    monkeypatch.setattr(measure, "_driven", lambda *_: Outcome(folder, tuple(metas)))
    told = CliRunner().invoke(cli, ["demo"])
    assert told.exit_code == 1
    assert "e1 died" in told.output
    assert "to do what failed again: twolane demo" in told.output


LATIN = "import click; click.echo('19\u202fms \u2588')"


def test_a_terminal_that_cannot_show_a_character_is_no_traceback() -> None:
    code = f"import twolane.__main__ as m; m._writable(); {LATIN}"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"19?ms ?\n", b"")
