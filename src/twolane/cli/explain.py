"""The command that explains: a run, a cell, a request, or what changed between two runs."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from twolane.analysis.lookup import find_run, find_target
from twolane.analysis.points import measure
from twolane.analysis.results import Results, Run
from twolane.cli.frame import JSON, OUT, cli
from twolane.errors import QuestionError
from twolane.records import CellSummary, Request
from twolane.report import explain as words
from twolane.report import explained
from twolane.report.again import going_on_in


@cli.command("explain")
@click.argument("run", metavar="RUN")
@click.argument("target", metavar="[CELL|REQUEST]", required=False)
@click.option("--against", metavar="RUN2", help="Tell what changed from RUN to RUN2.")
@OUT
@JSON
def explain(run: str, target: str | None, against: str | None, out: Path, as_json: bool) -> None:
    """Where a first token's time went, what a stall coincides with, why a point is coded.

    RUN is a run's folder, or its id or arm (a part of it is enough) in a campaign's folder, as
    results/demo/split; of an arm's several blocks it is the first, and ARM/2 is the second.
    CELL or REQUEST is an id or a part of it; of several long prompts, the median one.

    \b
    Example:
      twolane explain results/demo/copies_2048
      twolane explain results/demo/copies_2048 interference
      twolane explain results/demo/copies_2048 aggressor
      twolane explain results/demo/copies_2048 --against results/demo/copies_256
    """
    if target and against:
        raise QuestionError(
            "--against compares whole runs", place=target, remedy="leave the cell or request out"
        )
    if against:
        told, said = _against(run, against, out)
    else:
        told, said = _alone(run, target, out)
    click.echo(msgspec.json.encode(told) if as_json else said)


def _alone(name: str, target: str | None, out: Path) -> tuple[object, str]:
    try:
        results, run = find_run(name, out)
    except QuestionError:
        if target is None or not (Path(name) / "runs").is_dir():
            raise
        name, target = f"{name}/{target}", None  # of several runs, the second word says which
        results, run = find_run(name, out)
    with going_on_in(results.folder):
        return _told(name, target, results, run)


def _told(name: str, target: str | None, results: Results, run: Run) -> tuple[object, str]:
    _note_block(name, results, run)
    mine = [one for one in measure(results) if one.run.id == run.id]
    if target is None:
        of_run = explained.of_run(run, mine)
        return of_run, words.run(of_run, f"{results.folder}/{run.id}")
    found = find_target(run, target)
    if isinstance(found, CellSummary):
        cell = explained.of_cell(run, next(m for m in mine if m.cell.id == found.cell.id))
        return cell, words.cell(cell)
    _note_shot(target, run, found)
    measured = next((m for m in mine if m.cell.id == found.cell), None)
    request = explained.of_request(run, found, measured)
    return request, words.request(request)


def _note_block(name: str, results: Results, run: Run) -> None:
    """Says which block was taken where the name says none."""
    blocks = {one.block + 1 for one in results.runs if one.arm == run.arm}
    if len(blocks) > 1 and Path(name).name not in (run.id, str(run.block + 1)):
        click.echo(
            f"note: block {run.block + 1} of {len(blocks)}; "
            f"{results.folder}/{run.arm}/{max(blocks)} is block {max(blocks)}",
            err=True,
        )


def _note_shot(target: str, run: Run, found: Request) -> None:
    """Says which long prompt was taken where `target` may mean several."""
    if target != found.id and (meant := sum(target in one.id for one in run.requests())) > 1:
        click.echo(f"note: {found.id}, the median of {meant} by first token", err=True)


def _against(before: str, after: str, out: Path) -> tuple[object, str]:
    (theirs, here), (others, there) = (find_run(name, out) for name in (before, after))
    measured = [*measure(theirs), *(measure(others) if others.folder != theirs.folder else [])]
    told = explained.against(here, there, measured)
    return told, words.against(told)
