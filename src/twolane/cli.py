"""The commands. Each reads its arguments, calls one function and prints; nothing is decided here.

Exit codes: 0 good, 1 the answer is bad, 2 the question was bad, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console

from twolane import __version__, bench, campaign, inspection, report
from twolane.analysis import results as stored
from twolane.config import Campaign, load_campaign, parse_cell
from twolane.diagnosis.commands import Said, run_diagnose
from twolane.errors import AnswerError, QuestionError, TwolaneError
from twolane.live import LiveView
from twolane.report import text as report_text

T = TypeVar("T")

_OUT = click.option(
    "--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
    help="Folder of all campaigns' results.",
)  # fmt: skip
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")

_ENGINES = click.option(
    "--engines", type=click.Path(path_type=Path),
    help="JSON of engines that twolane did not start: see docs/rules.md.",
)  # fmt: skip
_ALLOW = click.option(
    "--allow", multiple=True, metavar="RULE_ID", help="Start in spite of this rule's error."
)


class _Group(click.Group):
    """Turns twolane's own errors into a message and an exit code; anything else is a defect."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TwolaneError as error:
            _complain(error)
            ctx.exit(error.exit_code)
        except OSError as error:
            # A full disk or a folder that cannot be written is not a defect either.
            _complain(
                AnswerError(
                    error.strerror or str(error),
                    place=str(error.filename or ""),
                    remedy="free some space or choose another folder; what was written is kept",
                )
            )
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)


def _complain(error: TwolaneError) -> None:
    click.secho(f"error: {error}", fg="red", err=True)
    for line in getattr(error, "log_tail", ())[-12:]:
        click.echo(f"  | {line[:200]}", err=True)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twolane")
def cli() -> None:
    """What does one long prompt do to everybody else's stream, and which layout stops it?

    Start with: twolane demo
    """


@cli.command()
@click.option("--blocks", type=click.IntRange(1), default=1, show_default=True,
              help="How often every arm runs; one block is only indicative.")  # fmt: skip
@_OUT
@_JSON
def demo(blocks: int, out: Path, as_json: bool) -> None:
    """The main job on this machine, no GPU needed: two token budgets and the split, compared.

    Starts real vLLM CPU engines with the bundled needle model, one core each.

    \b
    Example:
      twolane demo
      twolane demo --blocks 3
    """
    planned = dataclasses.replace(load_campaign(shipped("demo.yaml")), blocks=blocks)
    _run(planned, out, as_json)


@cli.command()
@click.argument("path", metavar="CAMPAIGN", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True,
              help="Go on in the campaign's newest folder; what is done there stays.")  # fmt: skip
@click.option("--block", "blocks", multiple=True, type=click.IntRange(1),
              help="Only this block, counted from 1; may be given again.")  # fmt: skip
@_ALLOW
@_OUT
@_JSON
def run(
    path: Path,
    *,
    resume: bool,
    blocks: tuple[int, ...],
    allow: tuple[str, ...],
    out: Path,
    as_json: bool,
) -> None:
    """Run a campaign: every arm started fresh, gated, measured and stopped, with a live view.

    \b
    Example:
      twolane run configs/demo.yaml
      twolane run configs/demo.yaml --resume
    """
    planned = _allowing(load_campaign(path), allow)
    _run(planned, out, as_json, resume=resume, blocks=[b - 1 for b in blocks])


def _run(
    planned: Campaign,
    out: Path,
    as_json: bool,
    *,
    resume: bool = False,
    blocks: Collection[int] = (),
) -> None:
    with LiveView(Console(stderr=True)) as view:
        outcome = _interruptible(campaign.run(planned, out, view, continued=resume, blocks=blocks))
    page = report.write(outcome.folder)
    results = stored.load(outcome.folder)
    sentence = report_text.verdict_sentence(results)
    if as_json:
        answer = {
            "verdict": sentence,
            "report": str(page),
            "results": str(outcome.folder),
            "runs": [{"id": r.id, "arm": r.arm, "status": r.status, "error": r.error}
                     for r in outcome.runs],
        }  # fmt: skip
        click.echo(msgspec.json.encode(answer))
    else:
        Console().print(report_text.table(results))
        click.echo(f"\n{sentence}\n\nreport: {page}")
    for failed in outcome.failed:
        click.secho(f"run {failed.id}: {failed.error}", fg="red", err=True)
    if outcome.failed:
        sys.exit(1)


def _interruptible(work: Coroutine[None, None, T]) -> T:
    """Run `work`; SIGTERM ends it as Ctrl-C does, so that engines stop in good order."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


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
@_OUT
@_JSON
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
    asked = [parse_cell(text) for text in cells]
    engines = bench.engines_by_name(metrics)
    server = bench.find(url, model)
    if seed is None:
        seed = time.time_ns() // 1000
    with LiveView(Console(stderr=True)) as view:
        outcome = _interruptible(
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


@cli.command()
@click.argument("path", metavar="CAMPAIGN", type=click.Path(path_type=Path))
@click.argument("arm", metavar="ARM")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="Where clients connect; 0 picks a free port.")  # fmt: skip
@_ALLOW
@_OUT
def up(path: Path, arm: str, port: int, allow: tuple[str, ...], out: Path) -> None:
    """Start one arm's engines and its router, print the endpoint, stop all of it on Ctrl-C.

    \b
    Example:
      twolane up configs/demo.yaml split_1p1d
    """
    planned = _allowing(load_campaign(path), allow)
    _interruptible(campaign.serve(planned, arm, out, port=port, say=click.echo))


@cli.command()
@click.argument("path", metavar="[CAMPAIGN|MODELS]", required=False,
                type=click.Path(path_type=Path))  # fmt: skip
@_ENGINES
@_JSON
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
@_ENGINES
@click.option("--metrics-before", "before", type=click.Path(path_type=Path),
              help="An engine's /metrics, saved before the trouble.")  # fmt: skip
@click.option("--metrics-after", "after", type=click.Path(path_type=Path),
              help="The same engine's, saved after it.")  # fmt: skip
@_JSON
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


@cli.command()
@click.option("--prefill", multiple=True, metavar="[NAME=]URL[*WEIGHT]", help="A prefill engine.")
@click.option("--decode", multiple=True, metavar="[NAME=]URL[*WEIGHT]", help="A decode engine.")
@click.option("--aggregated", multiple=True, metavar="[NAME=]URL", help="An engine for both.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="0 picks a free port and prints it.")  # fmt: skip
@click.option("--ledger", type=click.Path(path_type=Path), help="Append one JSON line a request.")
@click.option("--model", help="Only where the engines do not list theirs.")
@click.option("--api-key", "api_keys", multiple=True, envvar="TWOLANE_API_KEYS",
              help="A key that clients must give; several, or in TWOLANE_API_KEYS.")  # fmt: skip
@click.option("--split-from", "split_from_tokens", type=click.IntRange(0), metavar="TOKENS",
              help="Prompts of fewer tokens (about) go straight to one engine.")  # fmt: skip
@click.option("--backlog", "backlog_tokens", type=click.IntRange(1), metavar="TOKENS",
              help="Prompt tokens one prefill engine is given at a time; more wait.")  # fmt: skip
@click.option("--decode-limit", type=click.IntRange(1), metavar="N",
              help="Requests one decode engine is given at a time; more wait.")  # fmt: skip
@click.option("--retry-share", type=click.FloatRange(0, 1),
              help="Share of requests asked again where an engine broke off.")  # fmt: skip
@click.option("--tokenise-once", is_flag=True, default=None,
              help="Give P's token ids to D, so that D does not tokenise again.")  # fmt: skip
@click.option("--queue", "queue_limit", type=click.IntRange(0), metavar="N",
              help="Requests that may wait; further ones are refused with 429.")  # fmt: skip
@click.option("--queue-timeout", "queue_timeout_s", type=click.FloatRange(0), metavar="SECONDS",
              help="How long a request may wait before it is refused with 503.")  # fmt: skip
def proxy(
    prefill: tuple[str, ...],
    decode: tuple[str, ...],
    aggregated: tuple[str, ...],
    *,
    host: str,
    port: int,
    ledger: Path | None,
    model: str | None,
    **limits: Any,
) -> None:
    """The prefill/decode proxy alone, in front of engines that somebody else started.

    \b
    Example:
      twolane proxy --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200
    """
    from twolane.proxy.config import config_from_urls  # noqa: PLC0415 - keeps `--help` fast
    from twolane.proxy.server import run as serve  # noqa: PLC0415

    serve(
        config_from_urls(
            prefill,
            decode,
            aggregated,
            host=host,
            port=port,
            ledger=ledger,
            model=model,
            limits={name: value for name, value in limits.items() if value is not None},
        )
    )


def _allowing(planned: Campaign, rules: tuple[str, ...]) -> Campaign:
    return dataclasses.replace(planned, allow=(*planned.allow, *rules))


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option("--rows", default="", metavar="TEXT", help="Only rows whose name holds this.")
@click.option("--streams", multiple=True, type=click.IntRange(1), default=(256, 1000, 5000),
              show_default=True, help="Streams that are open at once, one row each.")  # fmt: skip
@click.option("--background", type=click.IntRange(0), default=0, show_default=True,
              help="Streams of other users meanwhile, which no row may touch.")  # fmt: skip
@click.option("--log", type=click.Path(path_type=Path), default="conformance.log",
              show_default=True, help="What the router says.")  # fmt: skip
@_JSON
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
def conformance(
    command: tuple[str, ...],
    *,
    rows: str,
    streams: tuple[int, ...],
    background: int,
    log: Path,
    as_json: bool,
) -> None:
    """The fault table, before any prefill/decode router; exit 1 where a row fails.

    Starts one prefill and one decode engine that break on request and the router by COMMAND, in
    which {prefill}, {decode} (URLs), {prefill_address}, {decode_address} (HOST:PORT) and {port}
    are filled in.

    \b
    Example:
      twolane conformance -- twolane proxy --prefill {prefill} --decode {decode} --port {port}
    """
    from twolane.proxy.conformance import show, table  # noqa: PLC0415 - keeps `--help` fast
    from twolane.proxy.conformance.play import play  # noqa: PLC0415

    chosen = [row for row in table.rows(streams) if rows in row.name]
    if not chosen:
        raise QuestionError(f"no row's name holds {rows!r}", place="--rows")
    told = show.nothing if as_json else show.line
    outcome = _interruptible(play(command, chosen, log, background=background, told=told))
    click.echo(msgspec.json.encode(outcome) if as_json else show.summary(outcome))
    if not outcome.passed:
        sys.exit(1)


def shipped(name: str) -> Path:
    """A campaign that comes with twolane: beside the package when installed, else in configs/."""
    package = Path(__file__).parent
    for folder in (package / "configs", package.parents[1] / "configs"):
        if (folder / name).exists():
            return folder / name
    raise QuestionError(f"{name} is not here", place=str(package), remedy="reinstall twolane")


def main() -> None:
    """Entry point of `twolane` and of `python -m twolane`."""
    command: Callable[..., Any] = cli
    command(prog_name="twolane")
