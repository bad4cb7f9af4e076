"""The commands that read results."""

from __future__ import annotations

from pathlib import Path

import click

from twolane import report
from twolane.analysis import results as stored
from twolane.cli.frame import cli
from twolane.report import text as report_text


@cli.command("report")
@click.argument("folder", metavar="RESULTS", type=click.Path(path_type=Path))
def report_(folder: Path) -> None:
    """Write the report of a results folder anew: one self-contained HTML file.

    \b
    Example:
      twolane report results/demo
    """
    page = report.write(folder)
    click.echo(f"{report_text.verdict_sentence(stored.load(folder))}\n\nreport: {page}")
