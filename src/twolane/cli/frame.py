"""What every command shares: the group, its options, exit codes, and how Ctrl-C ends one."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from twolane import __version__
from twolane.config import Campaign
from twolane.errors import AnswerError, QuestionError, TwolaneError
from twolane.halt import Halt

T = TypeVar("T")

OUT = click.option(
    "--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True,
    help="Folder of all campaigns' results.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")

ENGINES = click.option(
    "--engines", type=click.Path(path_type=Path),
    help="JSON of engines that twolane did not start: see docs/rules.md.",
)  # fmt: skip
ALLOW = click.option(
    "--allow", multiple=True, metavar="RULE_ID", help="Start in spite of this rule's error."
)


class Group(click.Group):
    """Turns twolane's own errors into a message and an exit code; anything else is a defect."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses a word that is not UTF-8: no report, JSON or record could name it."""
        for word in args:
            if not word.isprintable() and any("\ud800" <= c <= "\udfff" for c in word):
                raise click.UsageError(
                    f"{word!r} is not UTF-8 (remedy: rename the file or folder)", ctx
                )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TwolaneError as error:
            _complain(error)
            ctx.exit(error.exit_code)
        except OSError as error:
            # A full disk or a folder that cannot be written is not a defect either.
            _complain(of_system(error))
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)


_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another folder; what was written is kept",
    errno.EDQUOT: "free some of your quota, or choose another folder; what was written is kept",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "ask for the right to it, or choose another folder",
    errno.EPERM: "ask for the right to it, or run as a user who has it",
    errno.ENOENT: "check the path: something on it does not exist",
    errno.ENOTDIR: "check the path: a file stands where a folder is needed",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "name another: this one exists",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit of open files: `ulimit -n 65536`",
    errno.ENFILE: "close other programs: this host has no more open files",
    errno.ENOMEM: "close other programs: this host has no memory left",
    errno.EADDRINUSE: "end the process that listens there, or choose another port",
    errno.ECONNREFUSED: "check that the server runs and that its address is right",
    errno.EIO: "check the disk: it could not be read or written",
}


def of_system(error: OSError) -> AnswerError:
    """What the system refused, where, and what helps against that."""
    remedy = _REMEDIES.get(
        error.errno or 0, "what was written is kept; try again once it is mended"
    )
    return AnswerError(error.strerror or str(error), place=str(error.filename or ""), remedy=remedy)


def _complain(error: TwolaneError) -> None:
    for one in error.each:
        click.secho(f"error: {one.alone()}", fg="red", err=True)
    for line in getattr(error, "log_tail", ())[-12:]:
        click.echo(f"  | {line[:200]}", err=True)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twolane")
def cli() -> None:
    """What does one long prompt do to everybody else's stream, and which layout stops it?

    Start with: twolane demo
    """


def interruptible(work: Coroutine[None, None, T], halt: Halt | None = None) -> T:
    """Run `work`; SIGTERM ends it as Ctrl-C does, so that engines stop in good order.

    With a `halt`, the first Ctrl-C lets the request that is under way have its answer.
    """

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        if halt is not None:
            loop.add_signal_handler(signal.SIGINT, _ctrl_c, halt, task)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _ctrl_c(halt: Halt, task: asyncio.Task[Any]) -> None:
    if halt.ask():
        click.echo("finishing the current request; Ctrl-C again stops at once", err=True)
    else:
        task.cancel()


def allowing(planned: Campaign, rules: tuple[str, ...]) -> Campaign:
    return dataclasses.replace(planned, allow=(*planned.allow, *rules))


def shipped(name: str) -> Path:
    """A campaign that comes with twolane: beside the package when installed, else in configs/."""
    package = Path(__file__).parents[1]
    for folder in (package / "configs", package.parents[1] / "configs"):
        if (folder / name).exists():
            return folder / name
    raise QuestionError(f"{name} is not here", place=str(package), remedy="reinstall twolane")
