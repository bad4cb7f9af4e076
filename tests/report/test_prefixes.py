"""c*(p) by prefix on the page, in the terminal and as JSON: one made-up campaign, known answers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.report import synthetic
from tests.report.sweep import ENTRY_MS, QUIET_MS, A, B, make

from twolane.analysis.results import load
from twolane.cli import cli
from twolane.records import Code
from twolane.report import html
from twolane.report.answers import answers
from twolane.report.facts import Facts

NEEDLE = [Code(code="NEEDLE", why="the gate has no answers")]


def plain(text: str) -> str:
    return re.sub(r"<[^>]+>", " ", text).replace("\N{NARROW NO-BREAK SPACE}", " ")


def gap(chunk: int, prefix: float) -> float:
    return QUIET_MS + chunk * (A + B * (prefix - chunk / 2))


def test_the_grid_is_the_truth(tmp_path: Path) -> None:
    (one,) = Facts(load(make(tmp_path / "r"))).prefixes
    told = {(held.prefix, held.limit_ms): held for held in one.grid}
    assert one.tops == (8192, 16384, 32768, 65536, 131_072)
    # 8,191 tokens cost 97 ms at prefix 16,384 and 191 ms at 131,072; 1,023 cost at most 29 ms.
    assert {p: told[p, 100.0].held for p in one.tops} == {
        8192: 8192, 16384: 8192, 32768: 1024, 65536: 1024, 131_072: 1024
    }  # fmt: skip
    assert {told[p, 250.0].held for p in one.tops} == {8192}
    last = [k * 8191 for k in range(1, 17)][-1]
    assert told[131_072, 250.0].gap_ms == pytest.approx(gap(8191, last), abs=0.01)
    for edges in one.edges:
        assert edges.entry_ms == ENTRY_MS
        assert edges.exit_ms > 300


def test_the_page_has_grid_chart_and_edges(tmp_path: Path) -> None:
    page = html(load(make(tmp_path / "r", victims=(1, 8))))
    section = page.split('id="prefixes"', 1)[1].split("<section", 1)[0]
    words = plain(section)
    assert "Beside 1 reader" in words
    assert "Beside 8 readers" in words
    assert re.search(r"131,072\s+1,024\s+gave 29 ms", words)
    assert section.count('class="level"') == 4  # two limits in each of two charts
    assert section.count("<path d=") >= 4  # a line a budget
    assert "with the prompt\u2019s first token" in words
    assert "Here the exit is the longest" in words
    assert section.count("<caption") == 6
    for link in re.findall(r'href="#(cstar[^"]+)"', section):
        assert f'id="{link}"' in section


def test_the_answer_in_words_names_budgets_up_to_prefixes(tmp_path: Path) -> None:
    facts = Facts(load(make(tmp_path / "r", budgets=(1024, 8192, 32768))))
    (found,) = [one for one in answers(facts) if one.id == "prefix"]
    assert found.answer.startswith(
        "Under 100 ms: prefix up to 16,384: budget 8,192; prefix up to 131,072: budget 1,024. "
        "Under 250 ms: prefix up to 131,072: budget 8,192."
    )
    assert found.state in ("answered", "partly answered")


def test_made_up_weights_are_figures_and_no_verdict(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", codes=NEEDLE, dummy=True)
    facts = Facts(load(folder))
    (found,) = [one for one in answers(facts) if one.id == "prefix"]
    assert found.state == "cannot tell"
    assert found.answer.startswith("Figures, not a verdict: the weights are made up. Under 100 ms:")
    assert "Figures, not a verdict" in html(load(folder))


def test_coded_points_of_a_true_model_are_no_figures(tmp_path: Path) -> None:
    facts = Facts(load(make(tmp_path / "r", codes=NEEDLE)))
    assert [one.lines for one in facts.prefixes] == [()]
    assert "prefix" not in [one.id for one in answers(facts)]


def test_without_iterations_in_the_log_nothing_is_asked(tmp_path: Path) -> None:
    facts = Facts(load(make(tmp_path / "r", logs=False)))
    assert "prefix" not in [one.id for one in answers(facts)]
    assert 'id="prefixes"' not in html(load(tmp_path / "r"))
    assert all(one.lines == () for one in Facts(load(synthetic.make(tmp_path / "s"))).prefixes)


def test_compare_tells_it_in_text_and_as_json(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    told = CliRunner().invoke(cli, ["compare", str(folder)])
    words = plain(told.output)
    assert "Largest token budget for a chunk, by prefix, beside 1 reader:" in words
    assert re.search(r"131,072 +1,024 \(gave 29 ms\) +8,192 \(gave 191 ms\)", words)
    assert "60 ms before its first chunk" in words
    data = json.loads(CliRunner().invoke(cli, ["compare", str(folder), "--json"]).output)
    (one,) = data["budget_by_prefix"]
    assert (one["readers"], one["verdict"], len(one["grid"])) == (1, True, 10)
    assert {held["budget"] for held in one["grid"] if held["limit_ms"] == 250} == {8192}
