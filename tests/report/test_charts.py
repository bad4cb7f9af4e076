"""Ratios, ramps, needles and telemetry: what is drawn is what was measured."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.synthetic import ARMS, GRID, make

from twolane.analysis.results import load
from twolane.clock import MS, NS
from twolane.config import parse_cell
from twolane.records import (
    Appender,
    CellSummary,
    Code,
    NeedleResult,
    RampCell,
    Request,
    RunMeta,
    Sample,
    read_json,
    write_json,
)
from twolane.report import html, needles, ramps, ratios, telemetry
from twolane.report.facts import Facts

# -------------------------------------------------------------------------------------- frontier


def test_of_arms_that_run_alike_one_is_on_the_line_of_budgets(tmp_path: Path) -> None:
    again = dataclasses.replace(ARMS[0], name="again_2048")
    page = html(load(make(tmp_path / "r", arms=(*ARMS[:2], again))))
    drawn = page.partition('id="frontier"')[2].partition("</section>")[0]
    lines = re.findall(r'<path d="([^"]*)" class="line', drawn)
    assert lines
    assert {line.count("L") for line in lines} == {1}
    assert ", 4 users" in drawn


# ---------------------------------------------------------------------------------------- ratios


def test_every_compared_figure_has_its_ratio_and_verdicts_their_colour(tmp_path: Path) -> None:
    facts = Facts(load(make(tmp_path / "r", blocks=3)))
    found = {(row.cell.id, row.metric.key, row.arm): row for row in ratios.rows(facts)}
    # Without the split's time stalled: it never stalls, and zero has no ratio.
    assert len(found) == 2 * (6 + 3) - 1
    gap = found[facts.cells[0].id, "worst_gap_ms", "split_1p1d"]
    assert gap.kind == "better"
    low, high = gap.ends
    assert low < gap.ratio < high
    page = ratios.section(facts)
    assert page is not None
    assert page.count('class="ratio ') == len(found)
    assert 'class="ratio better"' in page


def test_a_spoiled_figure_has_no_ratio_and_one_block_no_bar(tmp_path: Path) -> None:
    code = Code(code="INFLIGHT", why="3.1 of 4")
    facts = Facts(load(make(tmp_path / "r", codes={"copies_256": {GRID.id: [code]}})))
    arms = [row.arm for row in ratios.rows(facts) if row.cell.id == GRID.id]
    assert set(arms) == {"split_1p1d"}
    page = ratios.section(facts)
    assert page is not None
    assert 'class="span"' not in page
    assert {row.kind for row in ratios.rows(facts)} == {"open"}


# ----------------------------------------------------------------------------------------- ramps


def ramp(folder: Path, *, missed: int = -1) -> RampCell:
    """Results in which every run also has a ramp of four turns; the split's grow slower."""
    cell = parse_cell("ramp 4000 turns=4")
    assert isinstance(cell, RampCell)
    for run in (make(folder) / "runs").iterdir():
        meta = read_json(run / "run.json", RunMeta)
        write_json(run / "run.json", msgspec.structs.replace(meta, cells=[*meta.cells, cell]))
        slow = 1 if "split" in run.name else 2
        with Appender(run / "requests.jsonl") as requests:
            for turn in range(4):
                first = round((turn + 1) * 100 * slow * MS)
                requests.append(
                    Request(id=f"turn-{turn}", cell=cell.id, role="turn", index=turn, send_ns=0,
                            due_ns=0, first_ns=first, last_ns=first + 60 * MS,
                            gaps_ns=[20 * MS] * 3, output_tokens=4, cached_tokens=turn * 900,
                            prompt_tokens=(turn + 1) * 1000,
                            needle="wrong" if turn == missed else "ok")
                )  # fmt: skip
        with Appender(run / "cells.jsonl") as cells:
            cells.append(CellSummary(cell=cell, started_ns=0, ended_ns=NS))
    return cell


def test_a_conversation_is_told_turn_by_turn(tmp_path: Path) -> None:
    cell = ramp(tmp_path / "r")
    facts = Facts(load(tmp_path / "r"))
    found = {one.arm: one for one in ramps.growths(facts, cell)}
    assert [t.ttft_ms for t in found["split_1p1d"].turns] == [100, 200, 300, 400]
    assert [t.ttft_ms for t in found["copies_256"].turns] == [200, 400, 600, 800]
    assert [t.prompt for t in found["copies_256"].turns] == [1000, 2000, 3000, 4000]
    page = html(facts.results)
    assert page.count('class="spot small') == 3 * 4 * 2
    assert page.count('class="line c') == 3 * 2
    (target,) = set(re.findall(r'href="#(ramp-[\w-]+)"', page))
    assert f'id="{target}"' in page


def test_a_missed_needle_is_marked(tmp_path: Path) -> None:
    ramp(tmp_path / "r", missed=2)
    page = ramps.section(Facts(load(tmp_path / "r")))
    assert page is not None
    assert page.count(" missed") >= 3 * 2
    assert re.search(r"turn 3: 3,000 tokens, 300\W?ms, needle missed", page)


# --------------------------------------------------------------------------------------- needles


def test_the_grid_counts_every_answer_and_shows_a_miss(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", blocks=2)
    run = load(folder).runs[0]
    assert run.needle is not None
    first, *rest = run.needle.answers
    bad = msgspec.structs.replace(first, ok=False, got="1111", reason="other digits")
    write_json(run.folder / "needle.json", NeedleResult(answers=[bad, *rest]))
    page = needles.section(load(folder))
    assert page is not None
    assert "17 of 18 needles found" in page
    assert page.count('class="found"') == 8
    assert page.count('class="lost"') == 1
    assert "expected 4821, got" in page


# ------------------------------------------------------------------------------------- telemetry


def test_readings_are_curves_devices_first(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    run = load(folder).runs[0]
    with Appender(run.folder / "metrics.jsonl") as metrics:
        for second in range(5):
            t_ns = 1000 * NS + second * NS
            clock = {"gpu0:sm_clock_mhz": 1980.0 - 100 * second, "gpu0:unknown": 1.0}
            metrics.append(Sample(t_ns=t_ns, source="devices", values=clock))
            used = {"vllm:kv_cache_usage_perc": 0.1 * second}
            metrics.append(Sample(t_ns=t_ns, source="e0", values=used))
    clock_curve, cache = telemetry.curves(load(folder).runs[0].samples())
    assert (clock_curve.source, clock_curve.values[-1]) == ("gpu0", 1580)
    assert cache.source == "e0"
    assert cache.values[-1] == pytest.approx(40)
    page = html(load(folder))
    assert "SM clock, MHz of gpu0: 1,580 to 1,980" in page


def test_gpus_are_summed_up_by_arm_while_cells_ran_and_their_own_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    run = load(folder).runs[0]  # on devices 0 and 1
    (cell, *_) = run.cells
    with Appender(run.folder / "metrics.jsonl") as metrics:
        for at, clock, held in (
            (0, 1980, 0),
            (NS, 1500, 4),
            (2, 1700, 5),
            (3, 1700, 1),
            (-NS, 9, 8),
        ):
            values = {"gpu0:sm_clock_mhz": float(clock), "gpu0:throttle": float(held)}
            values |= {"gpu7:sm_clock_mhz": 5.0}
            t_ns = cell.started_ns + at
            metrics.append(Sample(t_ns=t_ns, source="devices", values=values))
    table = telemetry.summary(Facts(load(folder)))
    assert table is not None
    assert "1,500 to 1,980" in table
    assert "power cap, 50% of seconds" in table
    assert "slowdown" not in table
    page = html(load(folder))
    assert "Every run, second by second" in page
    assert "A GPU that ran slower in one arm would be seen here." in page


def test_without_gpus_there_is_nothing_to_sum_up(tmp_path: Path) -> None:
    assert telemetry.summary(Facts(load(make(tmp_path / "r")))) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=2000))
def test_thinning_keeps_the_extremes_and_bounds_the_number(values: list[float]) -> None:
    points = [(float(i), value) for i, value in enumerate(values)]
    kept = telemetry.thinned(points)
    assert len(kept) <= 2 * telemetry.POINTS
    assert kept == sorted(kept)
    assert {min(values), max(values)} <= {value for _, value in kept}
