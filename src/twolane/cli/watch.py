"""The command that watches a campaign which another terminal runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from twolane import live as view
from twolane.cli.frame import cli

DONE = "done"  # as a campaign's last event says it


@cli.command()
@click.argument("folder", metavar="RESULTS", type=click.Path(path_type=Path))
def live(folder: Path) -> None:
    """Follow a running campaign from another terminal; ends when it ends.

    Of one that is over it shows how it went. Exit code 1 where it was cut, by Ctrl-C too. Here
    Ctrl-C stops the watching alone.

    \b
    Example:
      twolane live results/demo
    """
    ended = view.follow(folder, Console())
    if ended == DONE:
        return
    if not ended:
        click.echo("nobody writes it any more, and it has no end: it was cut", err=True)
    else:
        click.echo(f"it did not come to its end: {ended}", err=True)
    sys.exit(1)
