"""Groups of devices named anew, so that an arm of one host can be started on another.

Rules of this file: an arm stays what it is. Groups get other devices and nothing else changes; a
group of GPUs keeps its number of them, since a tensor-parallel engine on more or fewer is another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from twolane.config.campaign import Arm, Campaign
from twolane.errors import QuestionError

OPTION: Final = "--group"
_MOST_DIGITS: Final = 9  # more than any host has devices; Python reads no number of thousands


def regrouped(campaign: Campaign, arm: Arm, words: Iterable[str]) -> Campaign:
    """`campaign` with `arm` alone, its groups on other devices, as each `GROUP_A=0,1` says.

    Raises QuestionError where that is no group of the arm or no devices, where a device would be in
    two groups, and where a group of GPUs would have more or fewer than before.
    """
    before = {e.group: e.devices for e in arm.layout.engines}
    given: dict[str, tuple[int, ...]] = {}
    for word in words:
        group, devices = _parsed(word, before)
        if group in given:
            raise QuestionError(
                f"{group} is given twice",
                place=OPTION,
                remedy=f"name all of its devices at once, as in {OPTION} {group}=0,1",
            )
        given[group] = devices
    if campaign.models.node.platform == "gpu":
        for group, devices in given.items():
            _require_as_many(group, devices, before[group])
    groups = {**before, **given}
    _require_apart(groups)
    moved = {group: (group, devices) for group, devices in groups.items()}
    there = replace(arm, layout=arm.layout.swapped(moved))
    node = replace(campaign.models.node, groups=groups)
    return replace(campaign, arms=(there,), models=replace(campaign.models, node=node))


def example(arm: Arm, here: Iterable[int]) -> str:
    """The options that put `arm` on devices that are here; empty where these are too few."""
    free = sorted(here)
    words: list[str] = []
    for group, count in {e.group: len(e.devices) for e in arm.layout.engines}.items():
        if count > len(free):
            return ""
        words.append(f"{OPTION} {group}={','.join(map(str, free[:count]))}")
        free = free[count:]
    return " ".join(words)


def _parsed(word: str, known: Mapping[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    group, equals, text = word.partition("=")
    numbers = text.split(",")
    if not equals or not all(map(_is_device, numbers)):
        raise QuestionError(
            f"{word[:60]!r} is not a group with its devices",
            place=OPTION,
            remedy="write it as GROUP_A=0 or GROUP_A=0,1",
        )
    if group not in known:
        raise QuestionError(
            f"no engine of the arm is on a group {group!r}",
            place=OPTION,
            remedy=f"one of {', '.join(known)}",
        )
    return group, tuple(int(number) for number in numbers)


def _is_device(text: str) -> bool:
    return text.strip().isdecimal() and len(text.strip()) <= _MOST_DIGITS


def _require_as_many(group: str, devices: tuple[int, ...], before: tuple[int, ...]) -> None:
    if len(devices) != len(before):
        raise QuestionError(
            f"{group} had {len(before)} GPUs, {len(devices)} are named: that would be another arm",
            place=OPTION,
            remedy=f"name {len(before)} of them",
        )


def _require_apart(groups: Mapping[str, tuple[int, ...]]) -> None:
    holders: dict[int, str] = {}
    for group, devices in groups.items():
        for device in devices:
            if device in holders:
                raise QuestionError(
                    f"device {device} would be in {holders[device]} and in {group}"
                    if holders[device] != group
                    else f"device {device} is named twice for {group}",
                    place=OPTION,
                    remedy="give each device one group, and name every group that moves",
                )
            holders[device] = group
