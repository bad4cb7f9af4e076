"""The commands that serve: up, proxy, and conformance, which tries any router."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from twolane import handover, serving
from twolane.cli.frame import ALLOW, JSON, OUT, allowing, cli, interruptible
from twolane.config import load_campaign, load_results, regrouped
from twolane.config.source import nearest
from twolane.errors import QuestionError


@cli.command()
@click.argument("path", metavar="CAMPAIGN|RESULTS", type=click.Path(path_type=Path))
@click.argument("arm", metavar="[ARM]", required=False)
@click.option("--arm", "named", metavar="ARM", help="The same, by name.")
@click.option("--write", "folder", type=click.Path(path_type=Path), metavar="DIR",
              help="Start nothing: write the commands as a script, systemd units and a compose "
              "file, for who runs them without twolane.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="Where clients connect; 0 picks a free port.")  # fmt: skip
@click.option("--group", "moved", multiple=True, metavar="GROUP=N[,N...]",
              help="Devices of this host for a group of the arm; may be given again.")  # fmt: skip
@ALLOW
@OUT
def up(
    path: Path,
    arm: str | None,
    *,
    named: str | None,
    folder: Path | None,
    port: int,
    moved: tuple[str, ...],
    allow: tuple[str, ...],
    out: Path,
) -> None:
    """Start one arm's engines and its router, print the endpoint, stop all of it on Ctrl-C.

    The arm is one of a campaign, or of the results folder of one that has been run.

    \b
    Example:
      twolane up configs/demo.yaml split_1p1d
      twolane up results/demo --arm split_1p1d
      twolane up results/demo --arm split_1p1d --group GROUP_A=2 --group GROUP_B=3
      twolane up results/demo --arm split_1p1d --write split_1p1d
    """
    if named and arm and named != arm:
        raise QuestionError(
            f"two arms are named: {arm!r} and {named!r}", place="--arm", remedy="name one of them"
        )
    planned = allowing(load_results(path) if path.is_dir() else load_campaign(path), allow)
    chosen = serving.arm_of(planned, named or arm or "")
    if moved:
        planned = regrouped(planned, chosen, moved)
        chosen = serving.arm_of(planned, chosen.name)
    if folder is not None:
        if not port:
            raise QuestionError(
                "no port to write down", place="--port", remedy="give one, e.g. 8000"
            )
        for file in handover.write(planned, chosen, folder, port=port):
            click.echo(file)
        return
    interruptible(serving.serve(planned, chosen.name, out, port=port, say=click.echo))


@cli.command()
@click.option("--prefill", multiple=True, metavar="[NAME=]URL[*WEIGHT]", help="A prefill engine.")
@click.option("--decode", multiple=True, metavar="[NAME=]URL[*WEIGHT]", help="A decode engine.")
@click.option("--aggregated", multiple=True, metavar="[NAME=]URL", help="An engine for both.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
              help="0 picks a free port and prints it.")  # fmt: skip
@click.option("--ledger", type=click.Path(path_type=Path), help="Append one JSON line a request.")
@click.option("--config", "file", type=click.Path(path_type=Path), metavar="FILE",
              help="Engines and limits in YAML, read again on SIGHUP.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Processes on one port; limits are divided among them.")  # fmt: skip
@click.option("--model", help="Only where the engines do not list theirs.")
@click.option("--api-key", "api_keys", multiple=True, envvar="TWOLANE_API_KEYS",
              help="A key that clients must give; several, or in TWOLANE_API_KEYS.")  # fmt: skip
@click.option("--split-from", "split_from_tokens", type=click.IntRange(0), metavar="TOKENS",
              help="Requests of which one engine would compute fewer tokens (about), short or with "
              "a beginning that a D holds, go straight to it.")  # fmt: skip
@click.option("--backlog", "backlog_tokens", type=click.IntRange(1), metavar="TOKENS",
              help="Prompt tokens one prefill engine is given at a time; more wait.")  # fmt: skip
@click.option("--decode-limit", type=click.IntRange(1), metavar="N",
              help="Requests one decode engine is given at a time; more wait.")  # fmt: skip
@click.option("--kv-limit", type=click.FloatRange(0, 1, min_open=True),
              help="Share of a decode engine's KV that may be taken; more wait.")  # fmt: skip
@click.option("--fallback-share", type=click.FloatRange(0, 1),
              help="Share of requests one engine may serve where the split failed.")  # fmt: skip
@click.option("--scrape", "scrape_every_s", type=click.FloatRange(0), metavar="SECONDS",
              help="How often to read the engines' metrics; 0 for never.")  # fmt: skip
@click.option("--retry-share", type=click.FloatRange(0, 1),
              help="Share of requests asked again where an engine broke off.")  # fmt: skip
@click.option("--tokenise-once", is_flag=True, default=None,
              help="Give P's token ids to D, so that D does not tokenise again.")  # fmt: skip
@click.option("--connector", type=click.Choice(["auto", "pull", "push", "push-at-once"]),
              help="How KV travels: auto, as the engines report.")  # fmt: skip
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
    file: Path | None,
    workers: int,
    model: str | None,
    **limits: Any,
) -> None:
    """The prefill/decode proxy alone, in front of engines that somebody else started.

    \b
    Example:
      twolane proxy --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200
    """
    from twolane.proxy.config import ProxyConfig  # noqa: PLC0415 - keeps `--help` fast
    from twolane.proxy.configfile import configured  # noqa: PLC0415
    from twolane.proxy.server import run as serve  # noqa: PLC0415

    given = {name: value for name, value in limits.items() if value not in (None, ())}

    def read() -> ProxyConfig:
        engines = {"prefill": prefill, "decode": decode, "aggregated": aggregated}
        return configured(
            file, engines, model, given, host=host, port=port, ledger=ledger, workers=workers
        )

    serve(read(), read if file is not None else None)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option("--rows", default="", metavar="TEXT", help="Only rows whose name holds this.")
@click.option("--streams", multiple=True, type=click.IntRange(1), default=(256, 1000, 5000),
              show_default=True, help="Streams that are open at once, one row each.")  # fmt: skip
@click.option("--background", type=click.IntRange(0), default=0, show_default=True,
              help="Streams of other users meanwhile, which no row may touch.")  # fmt: skip
@click.option("--log", type=click.Path(path_type=Path), default="conformance.log",
              show_default=True, help="What the router says.")  # fmt: skip
@JSON
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
    which {prefill}, {decode} (URLs), {prefill_address}, {decode_address} (HOST:PORT),
    {prefill_port}, {decode_port} and {port} are filled in.

    \b
    Example:
      twolane conformance -- twolane proxy --prefill {prefill} --decode {decode} --port {port}
    """
    from twolane.proxy.conformance import show, table  # noqa: PLC0415 - keeps `--help` fast
    from twolane.proxy.conformance.play import play  # noqa: PLC0415

    known = table.rows(streams)
    chosen = [row for row in known if rows in row.name]
    if not chosen:
        raise QuestionError(
            f"no row's name holds {rows!r}",
            place="--rows",
            remedy=nearest(rows, [row.name for row in known]),
        )
    told = show.nothing if as_json else show.line
    outcome = interruptible(play(command, chosen, log, background=background, told=told))
    click.echo(msgspec.json.encode(outcome) if as_json else show.summary(outcome))
    if not outcome.passed:
        sys.exit(1)
