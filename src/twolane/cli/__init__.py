"""The commands. Each reads its arguments, calls one function and prints; nothing is decided here.

Exit codes: 0 good, 1 the answer is bad, 2 the question was bad, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twolane.cli import (  # noqa: F401 - each adds its commands
    compare,
    explain,
    export,
    faults,
    gather,
    measure,
    read,
    serve,
    watch,
)
from twolane.cli.frame import cli

__all__ = ["cli", "main"]


def main() -> None:
    """Entry point of `twolane` and of `python -m twolane`."""
    command: Callable[..., Any] = cli
    command(prog_name="twolane")
