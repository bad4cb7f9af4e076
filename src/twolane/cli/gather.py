"""The command that puts the parts of a campaign together."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from twolane import gather as gathering
from twolane.cli.frame import JSON, cli
from twolane.copies import Told
from twolane.gather import Gathered


@cli.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True,
                type=click.Path(path_type=Path))  # fmt: skip
@click.option("--out", metavar="DIR", required=True, type=click.Path(path_type=Path),
              help="The campaign's folder to be; it may be a part, or hold some.")  # fmt: skip
@JSON
def gather(folders: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Put parts of one campaign, measured in different folders, together in one.

    Blocks can be measured at once on disjoint devices (`beside_others: true`, `--block N`), each
    by its own process into its own --out, or go on on another host after a cut. `compare`,
    `report`, `export` and `run --resume` then work on DIR as on any campaign's folder. The parts
    stay as they are. What is in DIR already is not copied again.

    \b
    Example:
      twolane run sweep.yaml --block 1 --out gpu0
      twolane run sweep_gpu1.yaml --block 2 --out gpu1
      twolane gather gpu0/sweep gpu1/sweep --out results/sweep
    """
    with _shown() as told:
        found = gathering.gather(folders, out, told)
    if as_json:
        click.echo(msgspec.json.encode(_as_json(found)))
        return
    for note in found.notes:
        click.secho(f"note: {note}", fg="yellow", err=True)
    click.echo("\n".join(_lines(found)))


@contextlib.contextmanager
def _shown() -> Iterator[Told]:
    """A bar on a terminal; in a pipe nothing, since the end says it all."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=None)

        def told(name: str, read: int, total: int) -> None:
            progress.update(task, description=name, completed=read, total=total)

        yield told


def _as_json(found: Gathered) -> dict[str, object]:
    return {
        "campaign": found.campaign,
        "results": str(found.folder),
        "done": found.done,
        "damaged": found.damaged,
        "copied": found.copied,
        "there": found.there,
        "aside": found.aside,
        "missing": [{"arm": arm, "block": block + 1} for arm, block in found.missing],
        "notes": found.notes,
    }


def _lines(found: Gathered) -> list[str]:
    planned = len(found.done) + len(found.missing)
    lines = [
        f"{found.campaign}: {len(found.done)} of {planned} runs are in {found.folder}; "
        f"{len(found.copied)} were copied, {len(found.there)} were there"
    ]
    if found.aside:
        lines.append(f"set aside, since done again: {', '.join(found.aside)}")
    lines += [f"not measured: {arm}, block {block + 1}" for arm, block in found.missing]
    lines.append(f"\ngo on with: {shlex.join(['twolane', 'report', str(found.folder)])}")
    if found.missing or found.damaged:
        lines.append(_going_on(found))
    return lines


def _going_on(found: Gathered) -> str:
    """How the missing runs are done: a campaign is resumed in the folder that bears its name."""
    name = found.folder.resolve().name
    options = ["--resume", *(["--redo", "DAMAGED"] if found.damaged else [])]
    if name != found.campaign:
        told = " ".join(options)
        return f"and to measure the rest, rename it to {found.campaign}, then run with {told}"
    words = ["twolane", "run", "CAMPAIGN", *options, "--out", str(found.folder.parent)]
    return f"and the rest: {shlex.join(words)}"
