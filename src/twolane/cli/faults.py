"""The commands that find faults in engines: check before start-up, diagnose after."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from twolane import inspection
from twolane.cli.frame import ENGINES, JSON, cli
from twolane.diagnosis.commands import Said, run_diagnose


@cli.command()
@click.argument("path", metavar="[CAMPAIGN|MODELS]", required=False,
                type=click.Path(path_type=Path))  # fmt: skip
@ENGINES
@JSON
def check(path: Path | None, engines: Path | None, as_json: bool) -> None:
    """Every known mistake that can be seen before start-up. Exit code 1 if there is one.

    \b
    Example:
      twolane check configs/demo.yaml
      twolane check --engines engines.json --json
    """
    _answer(inspection.check_files(path, engines), as_json)


@cli.command()
@click.argument("logs", metavar="LOG...", nargs=-1, type=click.Path(path_type=Path))
@ENGINES
@click.option("--metrics-before", "before", type=click.Path(path_type=Path),
              help="An engine's /metrics, saved before the trouble.")  # fmt: skip
@click.option("--metrics-after", "after", type=click.Path(path_type=Path),
              help="The same engine's, saved after it.")  # fmt: skip
@JSON
def diagnose(
    logs: tuple[Path, ...],
    engines: Path | None,
    before: Path | None,
    after: Path | None,
    as_json: bool,
) -> None:
    """Why engines died, hang, answer wrongly or are slow: the cause, its lines, and the fix.

    \b
    Example:
      twolane diagnose prefill.log decode.log
    """
    _answer(run_diagnose(logs, engines, before, after), as_json)


def _answer(said: Said, as_json: bool) -> None:
    click.echo(said.json if as_json else said.text)
    sys.exit(said.code)
