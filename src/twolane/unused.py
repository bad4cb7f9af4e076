"""What a campaign names and does not use: GPUs without a rank, groups to swap, a proxy's options.

Rules of this file: notes, not faults; it reads the campaign alone and asks no host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from twolane.analysis.arms import flags
from twolane.config import Arm, Campaign, Engine

# Each multiplies the GPUs of an engine; its names in vLLM's parser.
_RANKS: Final = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
    ("--prefill-context-parallel-size", "-pcp"),
)
_OF_A_SPLIT: Final = ("--connector", "--tokenise-once", "--split-from")
_NUMBER: Final = re.compile("[0-9]{1,4}")


def notes(campaign: Campaign) -> Iterator[str]:
    """Each in a line, once."""
    for arm in campaign.arms:
        yield from _proxy_without_split(arm)
    engines = [(arm, engine) for arm in campaign.arms for engine in arm.layout.engines]
    if campaign.models.node.platform == "gpu":
        yield from dict.fromkeys(note for _, one in engines for note in _idle(one))
    named = [(arm, one) for arm, one in engines if one.group not in campaign.models.node.groups]
    if campaign.swap_groups and campaign.blocks > 1 and named:
        arms = ", ".join(dict.fromkeys(arm.name for arm, _ in named))
        places = ", ".join(dict.fromkeys(f"[{one.group}]" for _, one in named))
        yield (
            f"{arms}: devices {places} are named by number and are the same in every block, though "
            "swap_groups is on; name a group, as in $GROUP_A, or say `swap_groups: false`"
        )


def _idle(engine: Engine) -> Iterator[str]:
    ranks, there = _ranks(engine), len(engine.devices)
    if ranks is not None and ranks < there:
        yield (
            f"{engine.name}: {there - ranks} of the {there} GPUs of {engine.group} stay idle, for "
            f"it has {ranks} rank{'s' * (ranks != 1)}; write `tp: {there}`, or use a smaller group"
        )


def _ranks(engine: Engine) -> int | None:
    """How many GPUs its ranks take; None where an argument does not tell."""
    given, ranks = flags([*engine.args]), 1
    for names in _RANKS:
        told = next((given[name] for name in names if name in given), None)
        if told is None:
            told = str(engine.tp if names == _RANKS[0] else 1)
        if not _NUMBER.fullmatch(told):
            return None
        ranks *= int(told)
    return ranks


def _proxy_without_split(arm: Arm) -> Iterator[str]:
    """Options of the proxy that speak of a handover, where none takes place."""
    idle = [] if arm.layout.split else [word for word in arm.layout.proxy if word in _OF_A_SPLIT]
    if idle:
        names = ", ".join(word.removeprefix("--").replace("-", "_") for word in idle)
        yield f"{arm.name}: proxy: {names} has no effect, for this arm is no split; leave it out"
