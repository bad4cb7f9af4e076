"""What changed between two runs: nothing that only names a place, everything else once."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.report.synthetic import INTERFERENCE, make

from twolane.analysis.changes import changes, moved
from twolane.analysis.points import measure
from twolane.analysis.results import load
from twolane.records import Appender, RunMeta, Sample, read_json, write_json


def test_two_arms_differ_in_their_budget(tmp_path: Path) -> None:
    runs = load(make(tmp_path / "r")).runs
    found = {(c.kind, c.what): (c.before, c.after) for c in changes(runs[0], runs[1])}
    assert found["run", "arm"] == ("copies_2048", "copies_256")
    assert found["flag", "e0: --max-num-batched-tokens"] == ("2048", "256")
    assert found["flag", "e1: --max-num-batched-tokens"] == ("2048", "256")
    assert {kind for kind, _ in found} == {"run", "flag"}


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    run = load(make(tmp_path / "r")).runs[0]
    assert changes(run, run) == []


def test_versions_capacity_devices_and_clocks(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", blocks=2)
    before, after = load(folder).of_arm("split_1p1d")
    meta = read_json(after.folder / "run.json", RunMeta)
    engines = [msgspec.structs.replace(e, kv_tokens=1024) for e in meta.engines]
    changed = msgspec.structs.replace(
        meta, versions={**meta.versions, "vllm": "0.33.0"}, engines=engines
    )
    write_json(after.folder / "run.json", changed)
    for run, clock in ((before, 1980.0), (after, 1200.0)):
        with Appender(run.folder / "metrics.jsonl") as metrics:
            values = {"gpu0:sm_clock_mhz": clock}
            metrics.append(Sample(t_ns=1, source="devices", values=values))
    before, after = load(folder).of_arm("split_1p1d")
    found = {c.what: (c.before, c.after) for c in changes(before, after)}
    assert found["vllm"] == ("0.32.0", "0.33.0")
    assert found["e0: KV capacity, tokens"] == ("65,536", "1,024")
    assert found["e0: devices"] == ("0", "1")
    assert found["SM clock, median MHz"] == ("1,980", "1,200")
    assert "e0: --port" not in found


def test_figures_of_shared_cells_with_the_codes_of_either(tmp_path: Path) -> None:
    results = load(make(tmp_path / "r"))
    found = measure(results)
    one, other = ([m for m in found if m.run.arm == arm] for arm in ("copies_2048", "copies_256"))
    told = {(m.cell, m.metric): m for m in moved(one, other)}
    gap = told[INTERFERENCE.id, "worst_gap_ms"]
    assert (round(gap.before), round(gap.after), gap.coded) == (2206, 310, ())
    assert gap.ratio is not None
    assert round(gap.ratio, 3) == 0.141
