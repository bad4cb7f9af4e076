"""The command that writes results for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import click
import msgspec

from twolane import export as exporting
from twolane.cli.frame import JSON, cli


@cli.command("export")
@click.argument("results", metavar="RESULTS", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["csv", "parquet", "json", "vllm-bench"]),
              default="csv", show_default=True,
              help="parquet also has every gap, and needs pyarrow.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Default: RESULTS/export.")
@JSON
def export_(results: Path, form: str, out: Path | None, as_json: bool) -> None:
    """Tables of every cell and request, the cells as JSON, or vLLM's own files.

    Every row has its reason codes. json is one file, cells.json: each cell with its measures, their
    units, its codes and what was asked, and each run with its versions; a value that is null is not
    known, or infinite where `never` is true. vllm-bench is what `vllm bench serve --save-detailed`
    writes: one file a run and cell, of the cells that vLLM's client could have sent: closed loops,
    fresh prompts, mixes and traces. Exit code 1 if there was nothing to write. --json names the
    files written.

    \b
    Example:
      twolane export results/demo
      twolane export results/demo --format json
      twolane export results/demo --format vllm-bench --out /tmp/demo
    """
    written = exporting.export(results, cast(exporting.Format, form), out or results / "export")
    if as_json:
        click.echo(msgspec.json.encode({"written": [str(path) for path in written]}))
    else:
        click.echo("\n".join(f"{path} ({path.stat().st_size:,} bytes)" for path in written))
    if not written:
        click.secho("nothing was written: no cell of this format's kinds", fg="red", err=True)
        sys.exit(1)
