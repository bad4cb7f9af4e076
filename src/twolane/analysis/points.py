"""Every metric of every cell of every run, as points that can be compared.

Rules of this file: values are recomputed from the requests by `stats.summarise`; of what the
campaign wrote down only the window and the reason codes are taken over. A run whose gate failed,
or whose greedy text is not the aggregated arm's, spoils all its points: they are of a model that
gives wrong answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.analysis import stats
from twolane.analysis.compare import Point, greedy_equality
from twolane.analysis.results import Results, Run
from twolane.records import AnyCell, CellSummary, Code


@dataclass(frozen=True)
class Measured:
    """One cell of one run: its values by metric name, and why they may enter no verdict."""

    run: Run
    cell: AnyCell
    values: stats.Values
    codes: tuple[Code, ...]

    def points(self) -> list[Point]:
        return [
            Point(self.run.arm, self.run.block, self.run.id, self.cell.id, name, value, self.codes)
            for name, value in self.values.items()
        ]


def measure(results: Results) -> list[Measured]:
    """All cells that were driven to their end, in the order they ran."""
    unequal = {equality.run: equality.code for equality in greedy_equality(results)}
    return [
        _measured(run, summary, _run_codes(run, unequal.get(run.id)))
        for run in results.runs
        for summary in run.cells
    ]


def _measured(run: Run, summary: CellSummary, of_run: list[Code]) -> Measured:
    requests = list(run.requests(cell=summary.cell.id))
    values = stats.summarise(summary.cell, requests, summary.window_ns)
    # The campaign may have seen the failed gate itself: one reason is given once.
    codes = {(code.code, code.why): code for code in (*of_run, *summary.codes)}
    return Measured(run, summary.cell, values, tuple(codes.values()))


def _run_codes(run: Run, unequal: Code | None) -> list[Code]:
    codes = [unequal] if unequal else []
    if run.needle is not None and run.needle.answers and not run.needle.passed:
        missed = [answer for answer in run.needle.answers if not answer.ok]
        why = (
            f"{len(missed)} of {len(run.needle.answers)} needles missed, first: {missed[0].reason}"
        )
        codes.append(Code(code="NEEDLE", why=why, value=len(missed), limit=0))
    return codes
