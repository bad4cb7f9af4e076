"""A campaign on golden engines, to be cut at any moment.

`python -m tests.golden_campaign OUT`, or with `--command` as `twolane run` itself does it.

Everything is twolane's own: plan, locks, guards, load workers, files, resume. In the place of vLLM
stands the golden engine, in the place of the router nothing, and preflight is not asked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twolane import campaign as campaigns
from twolane import devices, inspection
from twolane.cli import cli, measure
from twolane.config import Campaign, Layout, load_campaign, parse_cell
from twolane.engines import fleet, installed, ports
from twolane.engines.front import Front
from twolane.engines.launch import Launch
from twolane.engines.process import Process

ROOT = Path(__file__).parents[1]
CELLS = ("c2 in64 out8 n6", "ramp 1200 turns=4 out=16")
PREFILL_US = "GOLDEN_PREFILL_US"
ENGINE = (
    "--gap-ms",
    "2",
    "--prefill-us-per-token",
    os.environ.get(PREFILL_US, "100"),
    "--ttft-ms",
    "2",
    "--cache-block",
    "16",
    "--knows",
)


def campaign(cells: Sequence[str] = CELLS) -> Campaign:
    """Two arms of one engine each, in two blocks."""
    demo = load_campaign(ROOT / "configs/demo.yaml")
    arms = tuple(
        dataclasses.replace(arm, layout=Layout(arm.name, arm.layout.engines[:1]))
        for arm in demo.arms[:2]
    )
    return dataclasses.replace(
        demo, name="golden", arms=arms, gates=(), greedy=(), blocks=2,
        cells=tuple(parse_cell(cell) for cell in cells),
    )  # fmt: skip


def launches(_: Any, layout: Layout, __: Any) -> list[Launch]:
    (port,) = ports.choose(1)
    argv = (sys.executable, str(ROOT / "tests/golden_engine.py"), "--port", str(port), *ENGINE)
    return [Launch(layout.engines[0], argv, {}, port, None)]


async def front(_: Any, urls: Sequence[str], folder: Path, **__: Any) -> Front:
    """Nothing stands in front: clients talk to the engine."""
    idle = await Process.start("proxy", ["sleep", "600"], env={}, log=folder / "proxy.log")
    return Front(idle, [], int(urls[0].rpartition(":")[2]))


async def no_calibration(*_: Any, **__: Any) -> None:
    return None


def patch() -> None:
    vars(fleet)["launches"] = launches
    vars(inspection)["preflight"] = lambda *_: []
    vars(campaigns)["calibrate"] = no_calibration
    vars(devices)["require"] = lambda *_: None
    vars(installed)["require"] = lambda *_: None
    Front.start = front  # type: ignore[assignment, method-assign]


def main(out: Path) -> None:
    outcome = asyncio.run(campaigns.run(campaign(), out, lambda _: None, continued=True))
    sys.exit(1 if outcome.failed else 0)


def command(out: Path) -> None:
    vars(measure)["load_campaign"] = lambda _: campaign()
    cli(["run", "golden.yaml", "--resume", "--out", str(out)])


if __name__ == "__main__":
    patch()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    run = command if sys.argv[2:] == ["--command"] else main
    run(Path(sys.argv[1]))
