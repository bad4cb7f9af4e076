"""What went wrong: the findings that a campaign kept with its runs, and what to do about each."""

from __future__ import annotations

from twolane.analysis.results import Results, Run
from twolane.records import Finding, PostMortem
from twolane.report.markup import Child, Markup, details, el, join


def wrong(results: Results) -> Markup | None:
    """One entry a run and cause; None where no run kept a finding."""
    entries = [entry for run in results.runs for entry in _of_run(run)]
    return el("ul", entries, class_="findings") if entries else None


def _of_run(run: Run) -> list[Markup]:
    found = run.findings
    if found is None:
        return []
    known = [_entry(run, "before the start", [finding]) for finding in found.preflight]
    return [*known, *(_entry(run, _when(one), one.findings) for one in found.postmortems)]


def _when(one: PostMortem) -> str:
    return one.about or "the run\u2019s end"


def _entry(run: Run, when: str, findings: list[Finding]) -> Markup:
    """The first finding in full, the others closed."""
    where = f" {run.arm}, block {run.block + 1}, {when}: "
    rest = [el("li", _finding(finding)) for finding in findings[1:]]
    more = details(f"{len(rest)} more", el("ul", rest)) if rest else None
    return el("li", el("b", findings[0].rule), where, _finding(findings[0]), more)


def _finding(finding: Finding) -> Markup:
    value: Child = f" ({finding.value})" if finding.value else None
    lines = "\n".join(finding.evidence)
    return join(
        el("b", finding.title),
        value,
        f". {finding.consequence} ",
        el("b", "Fix: "),
        finding.fix,
        " ",
        el("small", f"({finding.where}; rule {finding.rule}, {finding.source})"),
        details("The lines that say so", el("pre", lines, tabindex="0")) if lines else None,
    )
