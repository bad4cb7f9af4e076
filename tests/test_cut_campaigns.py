"""A campaign that is killed again and again, and goes on, ends as one that nobody disturbed.

TWOLANE_CUTS says how often it is killed (default 3).
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import golden_campaign

from twolane import plan
from twolane.analysis.results import Run, load
from twolane.records import Request, RunMeta, read_json, read_jsonl
from twolane.resume import CUT, finished_key, left_over

CUTS = int(os.environ.get("TWOLANE_CUTS", "3"))
EVENTS_A_RUN = 15
"""Fewest events that a run of this campaign tells."""

PATIENCE_S = 120.0
OF_THE_HOST = {"BUSY", "CLIENT"}
"""Codes that say what else this host does meanwhile."""


def start(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.golden_campaign", str(out)], cwd=golden_campaign.ROOT,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def to_its_end(out: Path) -> None:
    running = start(out)
    said = running.communicate(timeout=PATIENCE_S)[1]
    assert running.returncode == 0, said.decode()


def told(out: Path) -> int:
    """Events so far."""
    try:
        return (out / "golden/events.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def finished(out: Path) -> dict[str, str]:
    """Digest of every file of each run that is done, by the run's key."""
    found: dict[str, str] = {}
    for run in sorted((out / "golden/runs").glob("*")):
        if (key := finished_key(run)) is not None:
            assert key not in found, "a run that was complete was done again"
            parts = [path.read_bytes() for path in sorted(run.iterdir())]
            found[key] = hashlib.sha256(b"".join(parts)).hexdigest()
    return found


def asked(run: Run) -> list[tuple[Any, ...]]:
    """What was asked of the engine and what it said, less the times and the warm-ups."""
    return sorted(
        (r.cell, r.role, r.user, r.index, r.prompt_tokens, r.output_tokens, r.needle, r.text)
        for r in run.requests()
        if r.role in ("grid", "turn")
    )


def account(out: Path) -> dict[str, Any]:
    """All that the campaign's results say, as far as it does not depend on the clock."""
    results = load(out / "golden")
    assert list(results.faults) == []
    return {
        f"{run.arm} {run.block}": (
            run.meta.config["key"], run.meta.order, run.meta.seed, run.meta.status, asked(run),
            [(cell.cell.id, {c.code for c in cell.codes} - OF_THE_HOST) for cell in run.cells],
        )
        for run in results.runs
    }  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_cut_and_resumed_equals_undisturbed(tmp_path: Path) -> None:
    moments = random.Random(time.time_ns())
    out = tmp_path / "cut"
    kept: dict[str, str] = {}
    for _ in range(CUTS):
        last = told(out) + moments.randint(1, 2 * EVENTS_A_RUN)
        running = start(out)
        until = time.monotonic() + PATIENCE_S
        while told(out) < last and running.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        running.kill()
        running.communicate()
        before, kept = kept, finished(out)
        assert before.items() <= kept.items(), "a run that was complete was lost or changed"
    to_its_end(out)
    assert kept.items() <= finished(out).items()

    whole = tmp_path / "whole"
    to_its_end(whole)
    planned = {step.key for step in plan.runs(golden_campaign.campaign())}
    assert finished(out).keys() == planned
    assert account(out) == account(whole)
    for cut in (out / "golden" / CUT).glob("*"):
        assert finished_key(cut) is None


def test_ctrl_c_finishes_the_request_keeps_all_and_says_how_to_go_on(tmp_path: Path) -> None:
    """To the whole group, as a terminal sends it, in the middle of a ramp."""
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.golden_campaign", str(tmp_path), "--command"],
        cwd=golden_campaign.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, env=os.environ | {golden_campaign.PREFILL_US: "3000"},
    )  # fmt: skip
    events = tmp_path / "golden/events.jsonl"
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and running.poll() is None:
        if events.exists() and b'"step":"phase","text":"user 0"' in events.read_bytes():
            break
        time.sleep(0.005)
    os.killpg(running.pid, signal.SIGINT)
    said = running.communicate(timeout=PATIENCE_S)[1].decode()
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert "finishing the current request" in said
    assert f"go on with: twolane run golden.yaml --resume --out {tmp_path}" in said
    (run,) = (tmp_path / "golden/runs").iterdir()
    turns = [r for r in read_jsonl(run / "requests.jsonl", Request, []) if r.role == "turn"]
    assert turns
    assert all(turn.error is None for turn in turns)
    assert read_json(run / "run.json", RunMeta).status == "interrupted"
    step = plan.runs(golden_campaign.campaign())
    assert len(left_over(step, tmp_path / "golden").carried[step[0].key].turns) == len(turns)
