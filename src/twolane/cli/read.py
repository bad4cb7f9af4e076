"""The commands that read results."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from twolane import report
from twolane.analysis import results as stored
from twolane.analysis.standing import answerable
from twolane.cli.frame import JSON, cli
from twolane.report import answers, text
from twolane.report.facts import Facts


@cli.command("report")
@click.argument("folder", metavar="RESULTS", type=click.Path(path_type=Path))
@JSON
def report_(folder: Path, as_json: bool) -> None:
    """Write the report of a results folder anew: one self-contained HTML file.

    Prints the decision and the answers: which budget, whether a split pays, users per device.
    Exit code 1 if no point is left to answer from.

    \b
    Example:
      twolane report results/demo
    """
    facts = Facts(stored.load(folder))
    page = report.write(folder, facts)
    told = answers.answers(facts)
    if as_json:
        asked = [{"question": a.question, "answer": a.answer, "state": a.state,
                  "missing": a.missing} for a in told]  # fmt: skip
        answer = {"verdict": str(text.verdict(facts)), "answers": asked, "report": str(page),
                  "caveats": facts.caveats}  # fmt: skip
        click.echo(msgspec.json.encode(answer))
    else:
        click.echo("\n".join([*text.verdict(facts).lines, ""]))
        click.echo(f"{answers.plain(told)}\n\nreport: {page}")
    if not answerable(facts.measured):
        sys.exit(1)
