"""The command that measures again what a reason code spoilt, in the words of who ran it.

Rules of this file: a campaign's file is taken to bear its name, as the shipped ones do; the demo
has a command of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from twolane.records import RunMeta

DEMO = "demo"


def command(
    meta: RunMeta, codes: Iterable[str], *, alone: bool = False, among: Iterable[RunMeta] = ()
) -> str:
    """Does again the runs of a campaign that have one of `codes`; `alone`, this run's work only.

    `among` are the runs of its folder: where blocks were added, all of them are to be named.
    """
    words = ["--resume"]
    for code in codes:
        words += ["--redo", code]
    if alone and meta.campaign != DEMO:
        words += ["--arm", meta.arm, "--block", str(meta.block + 1)]
    planned = [_planned(one) for one in (*among, meta)]
    usual = 1 if meta.campaign == DEMO else planned[-1]
    blocks = max(planned) if max(planned) != usual or len(set(planned)) > 1 else None
    return _words(meta, blocks, words)


def with_more_blocks(metas: Sequence[RunMeta], blocks: int) -> str:
    """Measures further blocks of a campaign, until there are so many, and whatever is missing."""
    most = max(map(_planned, metas))
    raised = blocks > most or len({_planned(one) for one in metas}) > 1
    demo = metas[0].campaign == DEMO
    return _words(metas[0], max(blocks, most) if raised or demo else None, ["--resume"])


def _words(meta: RunMeta, blocks: int | None, words: Sequence[str]) -> str:
    named = ["demo"] if meta.campaign == DEMO else ["run", f"{meta.campaign}.yaml"]
    of = [] if blocks is None else ["--blocks", str(blocks)]
    return shlex.join(["twolane", *named, *of, *words])


def _planned(meta: RunMeta) -> int:
    """How many blocks the campaign was to have when this run was begun."""
    blocks = meta.config.get("blocks", 1)
    return blocks if isinstance(blocks, int) else 1
