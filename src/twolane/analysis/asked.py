"""What a campaign asks now against what it asked when a run was measured, by the keys of its file.

Rules of this file: of recorded plain data alone, and only of keys that make it another question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from twolane import __version__
from twolane.records import AnyCell, RunMeta

_SHOWN: Final = 120
"""Characters of a value; a command line can be longer than a message should be."""
_OF_ENGINE: Final = ("role", "group", "devices", "tp", "args", "env")


def changed(metas: Sequence[RunMeta], now: Mapping[str, Any]) -> list[str]:
    """`cells: grid 2000x100 u1 n20 -> n60`: each key once, with what it was and what it is."""
    if not now:
        return []
    plain = msgspec.json.decode(msgspec.json.encode(now))  # lists, as run.json has them
    return list(dict.fromkeys(one for meta in metas for one in _of_run(meta, plain)))


def _of_run(meta: RunMeta, now: Mapping[str, Any]) -> Iterable[str]:
    before = meta.config
    version = meta.versions.get("twolane")
    if version not in (None, __version__):
        yield f"twolane {version} -> {__version__}"
    for key, of in _KEYS.items():
        if key in before and of(before[key]) != of(now[key]):
            yield _told(key, *_apart(of(before[key]), of(now[key])))
    yield from _arm(meta.arm, before.get("arms"), now["arms"])


def _arm(name: str, before: object, now: Mapping[str, Any]) -> Iterable[str]:
    if not isinstance(before, Mapping) or name not in before:
        return
    if name not in now:
        yield f"arm {name} is not in the campaign any more"
        return
    if _words(before[name], "proxy") != _words(now[name], "proxy"):
        yield f"proxy of arm {name}"
    there, here = _engines(before[name]), _engines(now[name])
    if len(there) != len(here):
        yield f"engines of arm {name}: {len(there)} -> {len(here)}"
    for one, other in zip(there, here, strict=False):
        for key in _OF_ENGINE:
            if one.get(key) != other.get(key):
                yield _told(f"{key} of arm {name}", *_apart(_words(one, key), _words(other, key)))


def _engines(arm: object) -> list[Mapping[str, Any]]:
    engines = arm.get("engines") if isinstance(arm, Mapping) else None
    return [one for one in engines or () if isinstance(one, Mapping)]


def _words(of: object, key: str) -> list[str]:
    value = of.get(key) if isinstance(of, Mapping) else None
    if isinstance(value, Mapping):
        return [f"{name}={told}" for name, told in value.items()]
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]


def _apart(before: Sequence[str], now: Sequence[str]) -> tuple[list[str], list[str]]:
    """What each has that the other has not; both whole where they differ by their order alone."""
    gone, new = [w for w in before if w not in now], [w for w in now if w not in before]
    return (gone, new) if gone or new else (list(before), list(now))


def _told(key: str, before: Sequence[str], now: Sequence[str]) -> str:
    return f"{key}: {_short(before)} -> {_short(now)}"


def _short(words: Sequence[str]) -> str:
    text = ", ".join(words) or "none"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _cells(given: object) -> list[str]:
    try:
        return [cell.id for cell in msgspec.convert(given, list[AnyCell])]
    except msgspec.ValidationError:
        return [str(given)]


def _plain(given: object) -> list[str]:
    return [str(one) for one in given] if isinstance(given, list) else [str(given)]


def _model(given: object) -> list[str]:
    return [str(given.get("content")) if isinstance(given, Mapping) else str(given)]


_KEYS: Final[Mapping[str, Callable[[object], list[str]]]] = {
    "model": _model, "context": _plain, "seed": _plain, "gates": _cells, "greedy": _plain,
    "cells": _cells,
}  # fmt: skip
