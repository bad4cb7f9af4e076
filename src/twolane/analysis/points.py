"""Every metric of every cell of every run, as points that can be compared.

Rules of this file: values are those that `stats.summarise` gives of the requests. A cell whose
seal holds wrote them down itself, by the same definitions, and they are taken over; all others are
recomputed, window and reason codes excepted. A run whose gate failed, or whose greedy text is not
the aggregated arm's, spoils all its points: they are of a model that gives wrong answers. What is
not as it was written has the code `DAMAGED`, also where a finished run has lost a cell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from twolane.analysis import integrity, measures, stats
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


def measure(results: Results, *, recompute: bool = False) -> list[Measured]:
    """All cells that were driven to their end, in the order they ran.

    With `recompute` every value is taken from the requests, whatever was written down.
    """
    results.check()
    unequal = {equality.run: equality.code for equality in greedy_equality(results)}
    found: list[Measured] = []
    for run in results.runs:
        of_run = _run_codes(run, unequal.get(run.id))
        found += [_measured(run, summary, of_run, recompute) for summary in run.cells]
        found += _lost(run)
    return found


def _measured(run: Run, summary: CellSummary, of_run: list[Code], recompute: bool) -> Measured:
    written = None if recompute else _written(run, summary)
    values = _recomputed(run, summary) if written is None else written
    damage = run.checked.damage.get(summary.cell.id)
    # The campaign may have seen the failed gate itself: one reason is given once.
    every = (*([damage] if damage else []), *of_run, *summary.codes)
    codes = {(code.code, code.why): code for code in every}
    return Measured(run, summary.cell, values, tuple(codes.values()))


def _written(run: Run, summary: CellSummary) -> stats.Values | None:
    """The values that the cell wrote down, if they are still those and still mean the same."""
    sealed = summary.seal
    if sealed is None or sealed.measures != measures.VERSION:
        return None
    if summary.cell.id in run.checked.edited:
        return None
    return summary.values | dict.fromkeys(summary.never, math.inf)


def _recomputed(run: Run, summary: CellSummary) -> stats.Values:
    requests = list(run.requests(cell=summary.cell.id))
    return stats.summarise(summary.cell, requests, summary.window_ns)


def _lost(run: Run) -> list[Measured]:
    """Cells that a finished run has lost: points without values, so that they are missed."""
    cells = {cell.id: cell for cell in run.meta.cells}
    code = Code(code=integrity.CODE, why="its line in cells.jsonl is gone")
    return [Measured(run, cells[cell], {}, (code,)) for cell in run.checked.lost]


def _run_codes(run: Run, unequal: Code | None) -> list[Code]:
    codes = [unequal] if unequal else []
    if run.needle is not None and run.needle.answers and not run.needle.passed:
        missed = [answer for answer in run.needle.answers if not answer.ok]
        why = (
            f"{len(missed)} of {len(run.needle.answers)} needles missed, first: {missed[0].reason}"
        )
        codes.append(Code(code="NEEDLE", why=why, value=len(missed), limit=0))
    return codes
