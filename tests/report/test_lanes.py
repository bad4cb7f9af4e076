"""Under the strips: the long prompt's way and the engines' work, on the same seconds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.analysis.test_iterations import LINE
from tests.report.synthetic import INTERFERENCE, make

from twolane.analysis.iterations import FLAG
from twolane.analysis.results import Run, load
from twolane.clock import MS, NS
from twolane.records import Appender, RunMeta, Sample, read_json, write_json
from twolane.report import lanes, timeline


def shot(run: Run) -> timeline.Panel:
    return next(p for p in timeline.panels(run, INTERFERENCE) if not p.null)


def of(folder: Path, arm: str) -> Run:
    return load(folder).of_arm(arm)[0]


def test_the_long_prompts_way_ends_with_its_first_token(tmp_path: Path) -> None:
    run = of(make(tmp_path / "r"), "split_1p1d")
    panel = shot(run)
    (own,) = [one for one in lanes.lanes(run, INTERFERENCE, panel) if one.name == "long prompt"]
    kinds = [piece.kind for piece in own.pieces]
    assert kinds == ["wait", "compute", "rest2", "transfer", "step", "answer"]
    for before, after in zip(own.pieces, own.pieces[1:-1], strict=False):
        assert before.end_s == pytest.approx(after.start_s, abs=0.001)
    assert own.pieces[-1].start_s == pytest.approx(panel.hit_s)


def test_a_null_run_has_no_long_prompt(tmp_path: Path) -> None:
    run = of(make(tmp_path / "r"), "copies_256")
    null = next(p for p in timeline.panels(run, INTERFERENCE) if p.null)
    assert lanes.lanes(run, INTERFERENCE, null) == []


def test_engines_are_shaded_by_their_own_counts_and_show_transfers(tmp_path: Path) -> None:
    run = of(make(tmp_path / "r"), "split_1p1d")
    panel = shot(run)
    with Appender(run.folder / "metrics.jsonl") as metrics:
        for second, count in enumerate((0, 100, 110)):
            values = {
                "vllm:iteration_tokens_total_count": float(count),
                "vllm:nixl_num_descriptors_count": float(second // 2),
                "vllm:nixl_num_descriptors_sum": 125_000.0 * (second // 2),
            }
            at = panel.origin_ns + second * NS
            metrics.append(Sample(t_ns=at, source="e1", values=values))
    (engine,) = [one for one in lanes.lanes(run, INTERFERENCE, panel) if one.name == "e1"]
    spans = [piece for piece in engine.pieces if piece.kind == "span"]
    assert [round(piece.shade, 2) for piece in spans] == [1.0, 0.1]
    (moved,) = [piece for piece in engine.pieces if piece.kind == "moved"]
    assert moved.start_s == pytest.approx(1)
    assert "125,000 descriptors" in moved.title
    page = lanes.drawn([engine], timeline.Axis(-4, 8), panel)
    assert page is not None
    assert "10 iterations gave tokens in 1.00 s" in page


def test_iterations_of_the_log_are_drawn_where_they_ran(tmp_path: Path) -> None:
    run = of(make(tmp_path / "r"), "split_1p1d")
    panel = shot(run)
    reader = next(r for r in run.requests("victim") if r.shot == panel.shot)
    lines = [LINE.format(i=i, c=0, g=2, ms=gap / MS - 0.2) for i, gap in enumerate(reader.gaps_ns)]
    (run.folder / "e1.log").write_text("".join(lines))
    meta = read_json(run.folder / "run.json", RunMeta)
    engines = [msgspec.structs.replace(e, argv=[*e.argv, FLAG]) for e in meta.engines]
    write_json(run.folder / "run.json", msgspec.structs.replace(meta, engines=engines))
    run = of(tmp_path / "r", "split_1p1d")
    (engine,) = [one for one in lanes.lanes(run, INTERFERENCE, panel) if one.name == "e1"]
    assert len(engine.steps) > 100
    assert engine.steps[-1].end_ns == reader.last_ns
    page = lanes.drawn([engine], timeline.Axis(-4, 8), panel)
    assert page is not None
    assert "iterations, the longest 46" in page
    assert 'class="decoding"' in page
