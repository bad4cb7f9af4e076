"""From a campaign to its runs, in order, each with an id that depends only on what it does.

The order inside a block alternates (ABBA), or is drawn from the seed. Groups are swapped in
blocks 1 and 2 of every four, so that after four blocks each arm has had every combination of
early or late and GROUP_A or GROUP_B, and after two blocks both groups.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from twolane import __version__
from twolane.config import Arm, Campaign, Layout, Node, identity


@dataclass(frozen=True)
class PlannedRun:
    """One arm in one block. `key` is equal for equal work: arm, cells, block, seed, version."""

    key: str
    arm: Arm
    layout: Layout  # the arm's layout on the groups of this block
    block: int
    order: int  # position in the whole campaign, from 0
    seed: int  # of this block: the same for every arm in it, so that they get the same prompts


def runs(campaign: Campaign) -> tuple[PlannedRun, ...]:
    """Every run of the campaign in the order in which it is to happen."""
    planned: list[PlannedRun] = []
    swaps = group_swaps(campaign.models.node) if campaign.swap_groups else {}
    for block in range(campaign.blocks):
        swap = swaps if block % 4 in (1, 2) else {}
        seed = block_seed(campaign.seed, block)
        for arm in block_order(campaign, block):
            layout = arm.layout.swapped(swap)
            key = _key(campaign, arm, block)
            planned.append(PlannedRun(key, arm, layout, block, len(planned), seed))
    return tuple(planned)


def on_groups(campaign: Campaign, groups: Mapping[str, tuple[int, ...]]) -> tuple[PlannedRun, ...]:
    """The same runs on a node whose groups hold these devices."""
    node = replace(campaign.models.node, groups=groups)
    places = {name: (name, devices) for name, devices in groups.items()}
    arms = tuple(replace(arm, layout=arm.layout.swapped(places)) for arm in campaign.arms)
    return runs(replace(campaign, arms=arms, models=replace(campaign.models, node=node)))


def block_order(campaign: Campaign, block: int) -> list[Arm]:
    """The arms of one block in the order of their runs."""
    arms = list(campaign.arms)
    if campaign.order == "random":
        random.Random(block_seed(campaign.seed, block)).shuffle(arms)
    elif block % 2:
        arms.reverse()
    return arms


def block_seed(seed: int, block: int) -> int:
    """Seed of one block: fresh prompts in every block, equal ones for its arms."""
    digest = hashlib.sha256(f"{seed}/{block}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def group_swaps(node: Node) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Each group's place after a swap: the next group of its size, the last one's the first."""
    by_size: dict[int, list[str]] = {}
    for name, devices in node.groups.items():
        by_size.setdefault(len(devices), []).append(name)
    return {
        name: (names[(i + 1) % len(names)], node.groups[names[(i + 1) % len(names)]])
        for names in by_size.values()
        for i, name in enumerate(names)
    }


def _key(campaign: Campaign, arm: Arm, block: int) -> str:
    engines = [
        (e.name, e.role, e.group, e.devices, e.tp, e.args, sorted(e.env.items()))
        for e in arm.layout.engines
    ]
    work = [
        __version__, _model(campaign.model.path, arm), campaign.context, campaign.seed, block,
        arm.name, engines, campaign.gates, campaign.greedy, campaign.cells,
        *([arm.layout.proxy] if arm.layout.proxy else []),
    ]  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(work)).hexdigest()[:12]


def _model(path: str, arm: Arm) -> str:
    """The model by its content: its folder may lie elsewhere where the campaign goes on."""
    dummy = all(identity.has_dummy_weights(engine.args) for engine in arm.layout.engines)
    return identity.of_model(path, weights=not dummy)
