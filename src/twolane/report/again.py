"""The command that measures again what a reason code spoilt, in the words of who ran it.

Rules of this file: a campaign's file is taken to bear its name, as the shipped ones do; the demo
has a command of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from twolane.records import RunMeta

DEMO = "demo"


def command(meta: RunMeta, codes: Iterable[str], *, alone: bool = False) -> str:
    """Does again the runs of a campaign that have one of `codes`; `alone`, this run's work only."""
    words = ["--resume"]
    for code in codes:
        words += ["--redo", code]
    if meta.campaign == DEMO:
        return shlex.join(["twolane", "demo", *_blocks(meta.config), *words])
    if alone:
        words += ["--arm", meta.arm, "--block", str(meta.block + 1)]
    return shlex.join(["twolane", "run", f"{meta.campaign}.yaml", *words])


def _blocks(config: Mapping[str, Any]) -> list[str]:
    """A demo of other blocks is another campaign."""
    blocks = config.get("blocks", 1)
    return ["--blocks", str(blocks)] if blocks != 1 else []
