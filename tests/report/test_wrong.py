"""Findings that a campaign kept: shown where there are any, and never in the way."""

from __future__ import annotations

from pathlib import Path

from tests.report.synthetic import make
from tests.report.test_markup import read

from twolane.analysis.results import load
from twolane.records import Finding, Findings, PostMortem, write_json
from twolane.report import html


def finding(rule: str) -> Finding:
    return Finding(
        rule=rule,
        severity="error",
        where="prefill_a.log:7",
        title=f"title of {rule}",
        consequence="It <hangs>.",
        fix="Restart it.",
        source="somewhere.py",
        certainty="source",
        evidence=["ERROR <boom>"],
    )


def test_no_section_without_findings(tmp_path: Path) -> None:
    folder = make(tmp_path / "demo")
    for run in (folder / "runs").iterdir():
        write_json(run / "findings.json", Findings())
    assert "What went wrong" not in html(load(folder))


def test_the_cause_is_shown_with_its_fix_and_the_rest_is_folded(tmp_path: Path) -> None:
    folder = make(tmp_path / "demo")
    run = min((folder / "runs").iterdir())
    one = PostMortem(about="needle 6000", cause="RUN01", findings=[finding("RUN01"), finding("X")])
    write_json(run / "findings.json", Findings(preflight=[finding("ENV03")], postmortems=[one]))
    page = html(load(folder))
    read(page)
    part = page[page.index('id="wrong"') : page.index('id="gates"')]
    for words in ("title of RUN01", "needle 6000", "Restart it.", "1 more", "title of ENV03"):
        assert words in part
    assert "It &lt;hangs&gt;." in part
    assert "ERROR &lt;boom&gt;" in part


def test_a_torn_file_is_named_and_nothing_else_suffers(tmp_path: Path) -> None:
    folder = make(tmp_path / "demo")
    run = min((folder / "runs").iterdir())
    (run / "findings.json").write_text('{"preflight": [')
    assert "findings.json" in html(load(folder))
