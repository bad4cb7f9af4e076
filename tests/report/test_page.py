"""The page is whole, offline, repeatable, and names what it leaves out."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
from tests.report.synthetic import ARMS, GRID, INTERFERENCE, make
from tests.report.test_markup import read

from twolane.analysis.results import load
from twolane.errors import QuestionError
from twolane.records import Code
from twolane.report import html, timeline, write
from twolane.report.facts import Facts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(tmp_path / "demo")


def test_it_is_written_into_the_results_folder(folder: Path) -> None:
    path = write(folder)
    assert path == folder / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list(folder.glob("*.tmp"))


def test_the_same_results_give_the_same_bytes(folder: Path) -> None:
    assert html(load(folder)) == html(load(folder))


def test_it_refers_to_nothing_outside_and_runs_nothing(folder: Path) -> None:
    page = read(html(load(folder)))
    assert "script" not in page.tags
    assert {value for name, value in page.attributes if name in ("src", "srcset")} == set()
    links = [value or "" for name, value in page.attributes if name == "href"]
    assert links
    assert all(link.startswith("#") for link in links)


def test_every_link_has_its_target(folder: Path) -> None:
    page = read(html(load(folder)))
    targets = {value for name, value in page.attributes if name == "id"}
    links = {(value or "")[1:] for name, value in page.attributes if name == "href"}
    assert links <= targets
    assert len(targets) == len([1 for name, _ in page.attributes if name == "id"])


def test_it_has_every_section_in_order(folder: Path) -> None:
    found = re.findall(r'<section id="([\w-]+)" class="part"', html(load(folder)))
    assert found == [
        *(
            "answers",
            "frontier",
            "streams",
            "figures",
            "first-token",
            "gates",
            "machine",
            "methods",
        ),
    ]


def test_every_chart_is_named_and_has_its_table(folder: Path) -> None:
    page = html(load(folder))
    images = re.findall(r'<(?:svg|div|span)[^>]*role="img"[^>]*>', page)
    # Bars of the opening, strips of arms and null runs, long prompts, pauses, ratios, ledgers.
    assert len(images) == 3 * 3 + 12 + 3 + 3 + 17 + 6
    assert all("aria-label=" in image for image in images)
    assert page.count("<table") == 5 + 1 + 2 + 1 + 2 + 1 + 3 + 1 + 1


def test_an_excluded_figure_is_struck_and_its_reason_is_in_words(tmp_path: Path) -> None:
    code = Code(code="INFLIGHT", why="mean in-flight 3.1 of 4")
    page = html(load(make(tmp_path / "r", codes={"copies_256": {GRID.id: [code]}})))
    assert page.count('<s class="value">') == 3
    assert page.count('class="meter hollow"') == 3
    assert "mean in-flight 3.1 of 4" in page
    assert "fewer requests in flight than asked for" in page


def test_figures_and_the_table_beside_the_strips_are_of_one_window(tmp_path: Path) -> None:
    """A stall of the recovery is drawn, and counted in neither."""
    late = dataclasses.replace(ARMS[0], pauses_ms=(*ARMS[0].pauses_ms, 900.0))
    results = load(make(tmp_path / "r", arms=(late, *ARMS[1:])))
    stalled = Facts(results).figure(INTERFERENCE, "stalled_s", "copies_2048").value
    (run,) = results.of_arm("copies_2048")
    strip, _ = timeline.panels(run, INTERFERENCE)[1].strips
    assert len(strip.holes) == 4
    assert strip.stalled.count == 3
    assert strip.stalled.seconds == stalled
    assert "stalled in it, s" in html(results)


def test_a_loss_no_larger_than_the_null_runs_is_grey(folder: Path) -> None:
    results = load(folder)
    facts = Facts(results)
    cell = facts.interference
    assert cell is not None
    lost, null = (
        [facts.figure(cell, key, arm).value or 0.0 for arm in facts.arms]
        for key in ("tokens_lost", "null_tokens_lost")
    )
    grey = sum(one <= floor for one, floor in zip(lost, null, strict=True))
    assert html(results).count('<td class="slight">') == grey
    assert grey < len(facts.arms)


def test_legends_name_only_what_is_drawn(tmp_path: Path) -> None:
    page = html(load(make(tmp_path / "one", arms=ARMS[2:])))
    assert "No reader stalled" in page
    assert "Red ticks" not in page
    page = html(load(make(tmp_path / "three")))
    assert "thin lines in it are single tokens" in page
    assert "Red ticks" in page


def test_an_arm_whose_interference_cell_is_coded_is_hollow_without_a_ratio(
    tmp_path: Path,
) -> None:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    page = html(load(make(tmp_path / "r", codes={"split_1p1d": busy})))
    assert 'class="panel excluded"' in page
    assert 'class="row excluded"' in page
    assert "Indicative, from one block: run copies_256; split_1p1d could not be judged." in page
    interference = page.split('<tbody><tr class="cell">')[1]
    assert interference.count("BUSY") == interference.count('<s class="value">') == 8
    assert 'class="better"' not in interference


def test_with_every_arm_coded_nothing_is_green_and_the_page_cannot_answer(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    codes = {arm.name: busy for arm in ARMS}
    page = html(load(make(tmp_path / "r", blocks=2, codes=codes)))
    assert "<p>This run cannot answer: other programs used" in page
    assert 'class="pause excluded best"' not in page
    assert page.count('class="pause excluded"') == 3 * 3
    interference = page.split('<tbody><tr class="cell">')[1]
    assert 'class="versus"' not in interference


def test_disagreeing_greedy_text_is_shown_and_excludes_the_arm(tmp_path: Path) -> None:
    page = html(load(make(tmp_path / "r", spoil_greedy="split_1p1d")))
    assert "19 of 20 equal" in page
    assert page.count('<s class="value">') == 11
    assert "greedy output differs from" in page


def test_blocks_bring_intervals_and_the_other_shots(tmp_path: Path) -> None:
    page = html(load(make(tmp_path / "r", blocks=3)))
    assert "The other 6 shots and 8 null runs" in page
    assert '<b class="better">better</b>' in page
    assert re.search(r"0\.02\d\u00d7 <span class=\"span\">\[0\.02\d, 0\.02\d\]", page)


def test_what_could_not_be_read_is_named_on_the_page(folder: Path) -> None:
    run = load(folder).runs[0].folder
    (run / "requests.jsonl").write_text("garbage <script>\n")
    (run / "needle.json").unlink()
    page = html(load(folder))
    assert "4 files or lines could not be read" in page
    assert f"runs/{run.name}/needle.json: file is missing" in page


def test_hostile_text_in_results_stays_text(folder: Path) -> None:
    path = load(folder).runs[0].folder / "run.json"
    path.write_text(path.read_text().replace("Imaginary CPU", "<script>alert(1)</script>"))
    page = html(load(folder))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_run_that_failed_says_how(folder: Path) -> None:
    path = load(folder).runs[2].folder / "run.json"
    text = path.read_text().replace('"status": "done"', '"status": "failed"')
    path.write_text(text.replace('"error": null', '"error": "e1 died: out of memory"'))
    (path.parent / "cells.jsonl").unlink()
    assert "failed: e1 died: out of memory" in html(load(folder))


def test_nothing_readable_is_still_a_page(tmp_path: Path) -> None:
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    page = html(load(tmp_path))
    assert "No run can be read here" in page
    assert "run.json: file is missing" in page


def test_runs_without_cells_are_still_a_page(folder: Path) -> None:
    for run in load(folder).runs:
        (run.folder / "cells.jsonl").unlink()
        (run.folder / "requests.jsonl").unlink()
    assert "no answer yet" in html(load(folder))


def test_the_page_shows_how_the_engines_were_started(folder: Path) -> None:
    page = read(html(load(folder)))
    assert "--max-num-batched-tokens 2048" in page.text
    assert "VLLM_CPU_OMP_THREADS_BIND=1" in page.text
    assert "twolane report results/demo" in page.text


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuestionError):
        write(tmp_path / "nowhere")


def test_a_large_campaign_stays_a_small_page(tmp_path: Path) -> None:
    """Ten blocks of streams with tens of thousands of events, in well under the 15 MB allowed."""
    page = html(load(make(tmp_path / "r", blocks=10)))
    assert len(page) < 1_000_000
    shutil.rmtree(tmp_path / "r")
