"""The command that measures again what a reason code spoilt, in the words of who ran it.

Rules of this file: a campaign's file is taken to bear its name, as the shipped ones do; the demo
has a command of its own. Results whose folder bears the campaign's name lie where `--out` put them:
that is told only within `going_on_in`, since a page that is published is read on other hosts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from twolane.records import RunMeta

DEMO = "demo"
USUAL = Path("results")
"""Where a campaign without `--out` writes."""

_FOLDER: ContextVar[Path | None] = ContextVar("_FOLDER", default=None)


@contextmanager
def going_on_in(folder: Path) -> Iterator[None]:
    """Within it, commands go on in the results `folder`, wherever it lies on this host."""
    before = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(before)


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
    metas = (*among, meta)
    most = max(map(_planned, metas))
    return _words(meta, most if _given(metas) else None, words)


def with_more_blocks(metas: Sequence[RunMeta], blocks: int) -> str:
    """Measures further blocks of a campaign, until there are so many, and whatever is missing."""
    most = max(map(_planned, metas))
    raised = blocks > most or _given(metas) or metas[0].campaign == DEMO
    return _words(metas[0], max(blocks, most) if raised else None, ["--resume"])


def _words(meta: RunMeta, blocks: int | None, words: Sequence[str]) -> str:
    named = ["demo"] if meta.campaign == DEMO else ["run", f"{meta.campaign}.yaml"]
    of = [] if blocks is None else ["--blocks", str(blocks)]
    return shlex.join(["twolane", *named, *of, *_out(meta.campaign), *words])


def _out(campaign: str) -> list[str]:
    """`--out` and its value where it is needed, as seen from the working directory."""
    folder = _FOLDER.get()
    here = folder.resolve() if folder is not None else None
    if here is None or not re.fullmatch(rf"{re.escape(campaign)}(-\d+)?", here.name):
        return []
    if here.parent == USUAL.resolve():
        return []
    cwd = Path.cwd().resolve()
    out = here.parent.relative_to(cwd) if here.parent.is_relative_to(cwd) else here.parent
    return ["--out", str(out)]


def _given(metas: Sequence[RunMeta]) -> bool:
    """Whether the number of blocks is not what the campaign goes by without `--blocks`."""
    planned = {_planned(one) for one in metas}
    last = metas[-1]
    usual = 1 if last.campaign == DEMO else last.config.get("file_blocks", _planned(last))
    return planned != {usual}


def _planned(meta: RunMeta) -> int:
    """How many blocks the campaign was to have when this run was begun."""
    blocks = meta.config.get("blocks", 1)
    return blocks if isinstance(blocks, int) else 1
