"""Whether two runs are of one campaign: what it planned, setting by setting.

Rules of this file: pure; it reads run.json's record and nothing else. Where a group's devices are
is no setting: parts of a campaign may be measured at once on different ones, and a difference
between arms in them is a confound. What was not recorded is None, and differs from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from twolane.records import RunMeta

MOST_BLOCKS: Final = 1000
"""That a campaign may have; an edited file may say anything."""

_SHOWN = 120  # characters of a value
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """One setting that is not the same, as text."""

    setting: str
    here: str
    there: str


def planned(meta: RunMeta) -> dict[str, Any]:
    """What a campaign must have in common, by setting; `key` is None for a run of none."""
    config = meta.config
    model, node = _mapping(config.get("model")), _mapping(config.get("node"))
    return {
        "name": meta.campaign,
        "twolane": meta.versions.get("twolane"),
        "model": {"name": meta.model, "content": model.get("content")},
        "context": meta.context,
        "seed": config.get("seed"),
        "node": {
            "platform": node.get("platform"),
            "groups": {name: _count(of) for name, of in _mapping(node.get("groups")).items()},
        },
        "arms": {name: _arm(_mapping(arm)) for name, arm in _mapping(config.get("arms")).items()},
        "gates": _ids(config.get("gates")),
        "greedy": config.get("greedy"),
        "cells": _ids(config.get("cells")),
        "order": config.get("order"),
        "swap_groups": config.get("swap_groups"),
    }


def said_only(meta: RunMeta) -> dict[str, Any]:
    """What may differ between the parts, since it changes no run: how many there are to be, and
    how they are judged."""
    return {name: meta.config.get(name) for name in ("blocks", "margin", "slos")}


def _arm(arm: Mapping[str, Any]) -> dict[str, Any]:
    engines: Any = arm.get("engines")
    return {
        "factor": arm.get("factor"),
        "layout": arm.get("name"),
        "engines": [_engine(_mapping(one)) for one in engines] if _is_list(engines) else None,
    }


def _engine(engine: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("name", "role", "group", "tp", "args", "env")
    return {name: engine.get(name) for name in kept}


def _ids(cells: Any) -> Any:
    if not _is_list(cells):
        return None
    return [_mapping(cell).get("id", cell) for cell in cells]


def _count(devices: Any) -> int | None:
    return len(devices) if _is_list(devices) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def differences(here: Any, there: Any, at: str = "") -> Iterator[Difference]:
    """Every setting below `at` in which the two differ."""
    if here is None or there is None:
        return
    if isinstance(here, dict) and isinstance(there, dict):
        for key in dict.fromkeys([*here, *there]):
            inner = f"{at}.{key}" if at else str(key)
            yield from differences(here.get(key, _ABSENT), there.get(key, _ABSENT), inner)
    elif (
        _is_list(here)
        and _is_list(there)
        and len(here) == len(there)
        and _of_parts([*here, *there])
    ):
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            yield from differences(one, other, f"{at}.{number}")
    elif here != there:
        yield Difference(at, _said(here, there), _said(there, here))


def _of_parts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _said(value: Any, other: Any) -> str:
    """A value; of a list that is compared with another only what the other lacks."""
    if value is _ABSENT:
        return "not there"
    if other is _ABSENT:
        return "there"
    if _is_list(value) and _is_list(other):
        own = [one for one in value if one not in other]
        value = own or value
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def missing(done: Iterable[RunMeta]) -> list[tuple[str, int]]:
    """Runs that were planned and are not in `done`, as arm and block, in order of the blocks."""
    metas = list(done)
    held = {(meta.arm, meta.block) for meta in metas}
    arms = {arm: None for meta in metas for arm in _mapping(meta.config.get("arms"))}
    blocks = [meta.config.get("blocks") for meta in metas]
    most = max((count for count in blocks if isinstance(count, int)), default=0)
    most = min(most, MOST_BLOCKS)
    every = ((arm, block) for block in range(most) for arm in arms)
    return [one for one in every if one not in held]
