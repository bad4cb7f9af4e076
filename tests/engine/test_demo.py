"""The main job on real engines, and what is left when an engine dies in the middle of it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from twolane import campaign as campaigns
from twolane.analysis.results import load
from twolane.cli import cli
from twolane.config import Campaign, load_campaign, parse_cell
from twolane.records import BadLine, Event, Sample, read_jsonl

pytestmark = pytest.mark.engine

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_demo_answers(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["demo", "--out", str(tmp_path), "--json"])
    assert result.exit_code in (0, 1), result.output
    answer = msgspec.json.decode(result.stdout.splitlines()[-1])
    assert "worst pause" in answer["verdict"]
    assert Path(answer["report"]).stat().st_size > 10_000
    results = load(Path(answer["results"]))
    assert [run.arm for run in results.runs] == ["copies_2048", "copies_256", "split_1p1d"]
    assert len(results.faults) == 0
    spoilt = all(cell.codes for run in results.runs for cell in run.cells)  # by a busy machine
    assert result.exit_code == int(spoilt)
    for run in results.runs:
        assert run.meta.status == "done"
        assert [engine.exit_code for engine in run.meta.engines] == [0, 0]
        assert all(engine.block_size and engine.kv_tokens for engine in run.meta.engines)
        assert run.needle is not None
        assert run.needle.passed
        assert len(run.cells) == 2
        codes = {code.code for cell in run.cells for code in cell.codes}
        assert not codes & {"NEEDLE", "CACHE", "DEGENERATE", "FAILED", "RESET"}
        victims = list(run.requests("victim"))
        assert len(victims) == 4  # two in the null shot, two in the real one
        assert all(v.finish_reason == "stopped_by_client" for v in victims)
    splits = [r for r in results.runs[2].requests("aggressor") if r.ledger]
    assert splits
    assert all(r.ledger and r.ledger.path == "split" for r in splits)


def short() -> Campaign:
    """One arm of the demo with one cell, long enough to be interrupted."""
    demo = load_campaign(CONFIGS / "demo.yaml")
    return dataclasses.replace(
        demo,
        arms=demo.arms[:1],
        gates=(),
        greedy=(),
        cells=(parse_cell("interference victims=2 prompt=6000 quiet=3s null=20s"),),
    )


async def test_an_engine_that_dies_in_a_cell_is_recorded(tmp_path: Path) -> None:
    killed: list[int] = []
    victims: list[int] = []

    def told(event: Event) -> None:
        if event.rates and not killed:  # the victims are reading: now
            meta = next(iter(load(next(tmp_path.iterdir())).runs)).meta
            killed.append(meta.engines[0].pid or 0)
            victims.extend(e.pid or 0 for e in meta.engines)
            os.kill(killed[0], signal.SIGKILL)

    outcome = await asyncio.wait_for(campaigns.run(short(), tmp_path, told), timeout=400)
    (meta,) = outcome.runs
    assert killed
    assert meta.status == "failed"
    assert meta.error is not None
    assert "copy_a" in meta.error
    assert meta.engines[0].exit_code == 128 + signal.SIGKILL
    folder = outcome.folder / "runs" / meta.id
    assert (folder / "copy_a.log").stat().st_size > 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in victims)
    assert len(load(outcome.folder).faults) == 0
    bad: list[BadLine] = []
    assert list(read_jsonl(folder / "metrics.jsonl", Sample, bad))
    assert bad == []
