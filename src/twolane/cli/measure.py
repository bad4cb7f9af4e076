"""The commands that measure: demo, run, bench."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from twolane import bench, campaign, report, schedule
from twolane.analysis import results as stored
from twolane.cli.frame import ALLOW, JSON, OUT, allowing, cli, interruptible, shipped
from twolane.config import Campaign, load_campaign
from twolane.config.cells import parse_cells
from twolane.errors import QuestionError
from twolane.halt import Halt
from twolane.live import LiveView
from twolane.report import text as report_text
from twolane.report.again import going_on_in
from twolane.report.facts import Facts
from twolane.report.unanswered import unanswered

RESUME = click.option(
    "--resume", is_flag=True,
    help="Go on in the campaign's newest folder; what is done there stays.",
)  # fmt: skip
DRY_RUN = click.option(
    "--dry-run", is_flag=True,
    help="Show the runs and how long they should take; start nothing.",
)  # fmt: skip


REDO = click.option(
    "--redo", multiple=True, metavar="CODE",
    help="With --resume: do again the runs that have this code, e.g. BUSY.",
)  # fmt: skip


@cli.command()
@click.option("--blocks", type=click.IntRange(1), default=1, show_default=True,
              help="How often every arm runs; one block is only indicative.")  # fmt: skip
@RESUME
@REDO
@DRY_RUN
@OUT
@JSON
def demo(
    blocks: int, *, resume: bool, redo: tuple[str, ...], dry_run: bool, out: Path, as_json: bool
) -> None:
    """The main job on this machine, no GPU needed: two token budgets and the split, compared.

    Starts real vLLM CPU engines with the bundled needle model, one core each. Exit code 1 if a run
    failed, or the worst pause of two arms is not there to compare; the last lines then say why.

    \b
    Example:
      twolane demo
      twolane demo --blocks 3
    """
    _require_resumed(redo, resume=resume)
    planned = dataclasses.replace(load_campaign(shipped("demo.yaml")), blocks=blocks)
    again = ["demo", "--blocks", str(blocks)]
    _run(planned, _Wanted(out, as_json, again, resume=resume, dry_run=dry_run, redo=redo))


@cli.command()
@click.argument("path", metavar="CAMPAIGN", type=click.Path(path_type=Path))
@RESUME
@click.option("--blocks", "total", type=click.IntRange(1, 1000), metavar="N",
              help="How many blocks there are to be, in place of the file's; with --resume, more "
              "than were measured are added.")  # fmt: skip
@click.option("--block", "blocks", multiple=True, type=click.IntRange(1),
              help="Only this block, counted from 1; may be given again.")  # fmt: skip
@click.option("--arm", "arms", multiple=True, metavar="NAME",
              help="Only this arm; may be given again.")  # fmt: skip
@REDO
@DRY_RUN
@ALLOW
@OUT
@JSON
def run(
    path: Path,
    *,
    resume: bool,
    total: int | None,
    blocks: tuple[int, ...],
    arms: tuple[str, ...],
    redo: tuple[str, ...],
    dry_run: bool,
    allow: tuple[str, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Run a campaign: every arm started fresh, gated, measured and stopped, with a live view.

    Ctrl-C lets the current request have its answer, keeps everything and says how to go on;
    a second Ctrl-C stops at once. --dry-run shows the plan and how long it should take. Exit code 1
    if a run failed, or what the campaign was run for has no answer: two arms (or the one there is)
    whose first figure has no reason code; the last lines then say what is missing and what to do.
    "Cannot tell" is an answer. 2 for a bad campaign, 130 after Ctrl-C.

    \b
    Example:
      twolane run configs/demo.yaml --dry-run
      twolane run configs/demo.yaml
      twolane run configs/demo.yaml --resume
      twolane run configs/demo.yaml --blocks 5 --resume
    """
    _require_resumed(redo, resume=resume)
    planned = allowing(load_campaign(path), allow)
    again = ["run", str(path)]
    if total is not None:
        planned = dataclasses.replace(planned, blocks=total)
        again += ["--blocks", str(total)]
    for option, values in (("--block", blocks), ("--arm", arms), ("--allow", allow)):
        for value in values:
            again += [option, str(value)]
    wanted = _Wanted(out, as_json, again, resume=resume, dry_run=dry_run, redo=redo)
    _run(planned, dataclasses.replace(wanted, blocks=tuple(b - 1 for b in blocks), arms=arms))


@dataclasses.dataclass(frozen=True)
class _Wanted:
    """How a campaign is to be run; `again` are the words that name it on the command line."""

    out: Path
    as_json: bool
    again: Sequence[str]
    resume: bool = False
    dry_run: bool = False
    blocks: tuple[int, ...] = ()
    arms: tuple[str, ...] = ()
    redo: tuple[str, ...] = ()

    @property
    def resuming(self) -> str:
        """The command that goes on where this one was cut."""
        return shlex.join(["twolane", *self.again, "--resume", "--out", str(self.out)])


def _require_resumed(redo: Sequence[str], *, resume: bool) -> None:
    if redo and not resume:
        raise QuestionError(
            f"--redo {redo[0]} without --resume: a new folder has nothing to do again",
            place="--redo",
            remedy="add --resume",
        )


def _run(planned: Campaign, wanted: _Wanted) -> None:
    if wanted.dry_run:
        todo = schedule.prepare(
            planned, wanted.out, continued=wanted.resume, blocks=wanted.blocks, arms=wanted.arms,
            redo=wanted.redo,
        )  # fmt: skip
        show = schedule.as_json if wanted.as_json else schedule.as_text
        click.echo(show(todo))
        if todo.obstacle is not None:
            raise todo.obstacle
        return
    outcome = _driven(planned, wanted)
    with going_on_in(outcome.folder):
        _tell(outcome, wanted)


def _tell(outcome: campaign.Outcome, wanted: _Wanted) -> None:
    """The verdict and the page; exits with 1 where a run failed or there is no answer."""
    facts = Facts(stored.load(outcome.folder))
    page = report.write(outcome.folder, facts)
    told = report_text.verdict(facts)
    missing = unanswered(facts, wanted.resuming)
    if wanted.as_json:
        answer = {
            "verdict": str(told),
            "answered": not missing,
            "missing": missing,
            "report": str(page),
            "results": str(outcome.folder),
            "runs": [{"id": r.id, "arm": r.arm, "status": r.status, "error": r.error}
                     for r in outcome.runs],
        }  # fmt: skip
        click.echo(msgspec.json.encode(answer))
    else:
        Console().print(report_text.table(facts.results))
        click.echo("\n".join(["", *told.lines, "", f"report: {page}"]))
    for failed in outcome.failed:
        click.secho(f"run {failed.id}: {failed.error}", fg="red", err=True)
    if outcome.failed:
        click.echo(f"to do what failed again: {wanted.resuming}", err=True)
    if missing:
        click.secho(missing, fg="red", err=True)
    if outcome.failed or missing:
        sys.exit(1)


def _driven(planned: Campaign, wanted: _Wanted) -> campaign.Outcome:
    halt = Halt()
    try:
        with LiveView(Console(stderr=True)) as view:
            return interruptible(
                campaign.run(
                    planned,
                    wanted.out,
                    view,
                    continued=wanted.resume,
                    blocks=wanted.blocks,
                    arms=wanted.arms,
                    redo=wanted.redo,
                    halt=halt,
                ),
                halt,
            )
    except KeyboardInterrupt:
        click.echo(f"what was measured is kept; go on with: {wanted.resuming}", err=True)
        raise


@cli.command("bench")
@click.argument("url", metavar="URL")
@click.option("--cell", "cells", multiple=True, required=True, metavar="CELL",
              help="A workload, in the words of campaign.yaml; may be given again.")  # fmt: skip
@click.option("--model", help="Default: the first that the server lists.")
@click.option("--metrics", multiple=True, metavar="[NAME=]URL",
              help="An engine behind it; name it prefill... or decode... in a split.")  # fmt: skip
@click.option("--chat", is_flag=True, help="Use /v1/chat/completions.")
@click.option("--seed", type=click.IntRange(0), help="Default: new prompts every time.")
@click.option("--calibrate/--no-calibrate", "calibrated", default=True, show_default=True,
              help="First measure, in some seconds, what the client adds itself.")  # fmt: skip
@OUT
@JSON
def bench_(
    url: str,
    cells: tuple[str, ...],
    *,
    model: str | None,
    metrics: tuple[str, ...],
    chat: bool,
    seed: int | None,
    calibrated: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Cells against any OpenAI-compatible server; exit 1 where one is spoilt.

    \b
    Example:
      twolane bench http://127.0.0.1:8000 --cell 'c64 in1024 out1024 60s' --cell 'fresh 128k' \\
          --cell 'interference victims=2 prompt=60k' --metrics http://127.0.0.1:8000
    """
    asked = parse_cells(cells)
    engines = bench.engines_by_name(metrics)
    server = bench.find(url, model)
    if seed is None:
        seed = time.time_ns() // 1000
    with LiveView(Console(stderr=True)) as view:
        outcome = interruptible(
            bench.run(
                server,
                asked,
                out,
                view,
                seed=seed,
                engines=engines,
                chat=chat,
                calibrated=calibrated,
            )
        )
    if as_json:
        click.echo(msgspec.json.encode(bench.answer(outcome)))
    else:
        Console().print(report_text.table(stored.load(outcome.folder)))
        for cell in outcome.cells:
            for code in cell.codes:
                click.secho(f"{cell.cell.id}: {code.code}: {code.why}", fg="yellow")
        click.echo(f"\nresults: {outcome.folder}")
    if not outcome.good:
        sys.exit(1)
