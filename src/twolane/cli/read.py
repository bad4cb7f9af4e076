"""The commands that read results."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from twolane import report
from twolane.analysis import results as stored
from twolane.cli.frame import JSON, cli
from twolane.report import again, answers, text
from twolane.report.again import going_on_in
from twolane.report.facts import Facts
from twolane.report.unanswered import unanswered


@cli.command("report")
@click.argument("folder", metavar="RESULTS", type=click.Path(path_type=Path))
@JSON
def report_(folder: Path, as_json: bool) -> None:
    """Write the report of a results folder anew: one self-contained HTML file.

    Prints the decision and the answers: which budget, whether a split pays, users per device.
    Exit code 1 if what the campaign was run for has no answer; the last lines then say why.

    \b
    Example:
      twolane report results/demo
    """
    with going_on_in(folder):
        _report(folder, as_json=as_json)


def _report(folder: Path, *, as_json: bool) -> None:
    facts = Facts(stored.load(folder))
    page = report.write(folder, facts)
    told = answers.answers(facts)
    metas = [run.meta for run in facts.results.runs]
    resume = again.command(metas[0], (), among=metas) if metas else f"twolane report {folder}"
    missing = unanswered(facts, resume)
    if as_json:
        asked = [{"question": a.question, "answer": a.answer, "state": a.state,
                  "missing": a.missing} for a in told]  # fmt: skip
        answer = {"verdict": str(text.verdict(facts)), "answered": not missing,
                  "missing": missing, "answers": asked, "report": str(page),
                  "caveats": facts.caveats}  # fmt: skip
        click.echo(msgspec.json.encode(answer))
    else:
        click.echo("\n".join([*text.verdict(facts).lines, ""]))
        click.echo(f"{answers.plain(told)}\n\nreport: {page}")
    if missing:
        click.secho(missing, fg="red", err=True)
        sys.exit(1)
