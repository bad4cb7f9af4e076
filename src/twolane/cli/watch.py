"""The command that watches a campaign which another terminal runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from twolane import live as view
from twolane.cli.frame import cli


@cli.command()
@click.argument("folder", metavar="RESULTS", type=click.Path(path_type=Path))
def live(folder: Path) -> None:
    """Follow a running campaign from another terminal; ends when it ends.

    Of one that is over it shows how it went. Exit code 1 where it was cut. Ctrl-C stops the
    watching alone.

    \b
    Example:
      twolane live results/demo
    """
    if not view.follow(folder, Console()):
        click.echo("nobody writes it any more, and it has no end: it was cut", err=True)
        sys.exit(1)
