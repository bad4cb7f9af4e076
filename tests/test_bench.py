"""`twolane bench` against the golden engine: what it finds, refuses, drives and writes."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from tests.golden_engine import Pace, serve

from twolane import bench, clock, report
from twolane.analysis.results import load
from twolane.cli import cli
from twolane.clock import NS
from twolane.config import parse_cell
from twolane.errors import AnswerError, QuestionError
from twolane.load import driver, endpoint
from twolane.records import AnyCell, Code, Event

CELLS = [
    parse_cell(text)
    for text in ("c2 in64 out32 n20", "fresh 600 out=8", "ramp 1200 turns=3 out=8", "needle 500")
]


async def benched(tmp_path: Path, pace: Pace, cells: list[AnyCell] = CELLS) -> bench.Outcome:
    async with serve(pace) as (_, port):
        server = await asyncio.to_thread(bench.find, f"http://127.0.0.1:{port}/v1")
        assert (server.model, server.context) == ("golden", 100_000)
        return await bench.run(server, cells, tmp_path, told.append, seed=1, calibrated=False)


told: list[Event] = []

OF_A_SLOW_HOST = {"UNSTEADY", "CLIENT", "INFLIGHT", "LITTLE"}
"""Codes that a cell of a second's length may earn where other programs take the cores away."""


def of_the_cell(codes: list[Code]) -> list[Code]:
    return [code for code in codes if code.code not in OF_A_SLOW_HOST]


async def test_cells_of_every_kind_are_driven_and_written(tmp_path: Path) -> None:
    outcome = await benched(tmp_path, Pace(gap_s=0.002, knows=True, cache_block=16))
    assert [of_the_cell(cell.codes) for cell in outcome.cells] == [[], [], [], []]
    assert outcome.good == (not any(cell.codes for cell in outcome.cells))
    results = load(outcome.folder)
    assert not results.faults
    (run,) = results.runs
    assert [cell.cell for cell in run.cells] == CELLS
    assert len(list(run.requests(cell="ramp 1200 turns=3 out=8"))) == 3
    assert run.needle is not None
    assert run.needle.passed
    assert report.write(outcome.folder).exists()


async def test_a_spoilt_cell_is_not_good_and_says_why(tmp_path: Path) -> None:
    outcome = await benched(tmp_path, Pace(gap_s=0.002, longest_prompt=550))
    assert not outcome.good
    by_cell = {one["cell"]: one["codes"] for one in bench.answer(outcome)["cells"]}
    assert of_the_cell(by_cell["c2 in64 out32 n20"]) == []
    assert [code.code for code in by_cell["fresh 600 out=8"]] == ["FAILED"]
    assert [code.code for code in by_cell["needle 500"]] == ["NEEDLE"]
    assert outcome.meta.status == "done"


@pytest.mark.parametrize(("resets", "codes"), [(True, []), (False, ["RESET", "CACHE"])])
async def test_caches_of_the_named_engines_are_emptied_before_each_cell(
    tmp_path: Path, resets: bool, codes: list[str]
) -> None:
    cell = parse_cell("fresh 600 out=4")
    async with serve(Pace(gap_s=0.002, cache_block=16, resets=resets)) as (_, port):
        server = await asyncio.to_thread(bench.find, f"http://127.0.0.1:{port}")
        for _ in range(2):
            outcome = await bench.run(
                server, [cell], tmp_path, told.append, seed=1, calibrated=False,
                engines={"engine0": server.url},
            )  # fmt: skip
    assert [code.code for code in outcome.cells[0].codes] == codes
    (run,) = load(outcome.folder).runs
    marks = [sample.mark for sample in run.samples() if sample.mark is not None]
    assert marks == [f"begin:{cell.id}", f"end:{cell.id}"]


@pytest.mark.parametrize(
    ("pace", "chat", "says"),
    [
        (Pace(hang_after=0), False, "v1/completions: .*silent for 0.2 s, given up"),
        (Pace(hang_after=0), True, "chat/completions: .*silent for 0.2 s, given up"),
        (Pace(status=401), False, "HTTP 401: planted refusal"),
    ],
)
async def test_a_server_that_answers_nothing_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: Pace, chat: bool, says: str
) -> None:
    monkeypatch.setattr(driver, "PROBE_PATIENCE_S", 0.2)
    async with serve(pace) as (_, port):
        server = await asyncio.to_thread(bench.find, f"http://127.0.0.1:{port}")
        with pytest.raises(AnswerError, match=says):
            await bench.run(
                server, CELLS[:1], tmp_path, told.append, seed=1, chat=chat, calibrated=False
            )
    assert any("one token, at most 60 s" in event.text for event in told)
    (run,) = load(next(tmp_path.iterdir())).runs
    assert run.meta.status == "failed"
    assert "one token" in (run.meta.error or "")


@pytest.mark.parametrize("cell", ["fresh 128k", "fresh 99990"])
async def test_what_cannot_fit_is_refused_before_anything_is_sent(
    tmp_path: Path, cell: str
) -> None:
    told.clear()
    with pytest.raises(QuestionError, match="context is 100000"):
        await benched(tmp_path, Pace(), [parse_cell(cell)])
    assert not told


def test_a_list_of_models_that_never_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One byte at a time is inside of every time limit of a socket."""
    seconds = itertools.count()
    monkeypatch.setattr(clock, "now_ns", lambda: next(seconds) * NS)

    class Dripping:
        read = 0

        def read1(self) -> bytes:
            self.read += 1
            return b" "

    answer = Dripping()
    with pytest.raises(TimeoutError, match="did not end within 10 s"):
        endpoint._whole(cast(Any, answer))
    assert answer.read == 11


def test_urls_and_engines_are_understood_or_refused() -> None:
    with pytest.raises(QuestionError, match="base URL"):
        bench.find("https://127.0.0.1:1")
    with pytest.raises(QuestionError, match="base URL"):
        bench.find("http://127.0.0.1:1/v2")
    with pytest.raises(AnswerError, match="cannot be read"):
        bench.find("127.0.0.1:1")
    assert bench.engines_by_name(["http://a:1/metrics", "decode0=http://b:2"]) == {
        "engine0": "http://a:1",
        "decode0": "http://b:2",
    }
    with pytest.raises(QuestionError, match="not another engine"):
        bench.engines_by_name(["x=http://a:1", "x=http://b:1"])


@pytest.fixture
def golden() -> Iterator[str]:
    """The golden engine as a program of its own; its URL."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "tests/golden_engine.py", "--gap-ms", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) as engine:
        assert engine.stdout is not None
        yield f"http://127.0.0.1:{engine.stdout.readline().strip()}"
        engine.kill()


def test_the_command_answers_a_machine_and_a_person(golden: str, tmp_path: Path) -> None:
    asked = ["bench", golden, "--cell", "c2 in64 out32 n20", "--out", str(tmp_path)]
    told = CliRunner().invoke(cli, [*asked, "--json"])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert answer["good"]
    assert answer["cells"][0]["values"]["users"] == 2
    shown = CliRunner().invoke(cli, asked)
    assert shown.exit_code == 0
    assert "Throughput" in shown.stdout
    assert "smallest stall that can be resolved here" in told.stderr
    missed = CliRunner().invoke(cli, ["bench", golden, "--cell", "needle 500", *asked[4:]])
    assert missed.exit_code == 1
    assert "NEEDLE: 3 of 3 needles missed" in missed.stdout


def test_a_model_that_is_not_there_is_a_bad_question(golden: str, tmp_path: Path) -> None:
    asked = ["bench", golden, "--model", "other", "--cell", "needle 500", "--out", str(tmp_path)]
    told = CliRunner().invoke(cli, asked)
    assert told.exit_code == 2
    assert "one of: golden" in told.stderr


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:99999", "http://[::1", "http://a:0", "http://a b:1", "http://a..b:1",
     "http://u:p@a:1"],
)  # fmt: skip
def test_an_address_that_nobody_can_have_is_the_questions_fault(url: str) -> None:
    with pytest.raises(QuestionError, match="base URL") as caught:
        bench.find(url)
    assert caught.value.remedy
    with pytest.raises(QuestionError, match="not another engine"):
        bench.engines_by_name([url])
