"""An engine's arguments and variables as YAML lists them, and the words that the engine gets.

Rules of this file: pure, and it knows no option of vLLM by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from twolane.config.source import Path_, YamlFile
from twolane.errors import Faults

_OPTION: Final = re.compile(r"--?[A-Za-z]")
_TOLD: Final = re.compile(r"--?[A-Za-z][^\s=]*[\s=]")
"""An option with its value in the same item."""
_WORDS: Final = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)+")
_WITH_VALUE: Final = re.compile(rf"({_WORDS.pattern})[ =]\S.*", re.DOTALL)
_ONE_WORD: Final = re.compile(r"[a-z][a-z0-9]*[ =]\S.*", re.DOTALL)


def _lacks_dashes(item: str, before: str | None) -> bool:
    """Whether `item`, which follows `before`, is an option whose dashes were forgotten and no value
    of the option before it."""
    if _WITH_VALUE.fullmatch(item):
        return True
    if before is None:
        return item[:1].isalpha()
    named = _WORDS.fullmatch(item) or _ONE_WORD.fullmatch(item)
    return bool(named and _TOLD.match(before))


def arguments(file: YamlFile, at: Path_, items: Sequence[str | int | float]) -> list[str]:
    """Arguments as the engine gets them: `--flag value` in one item is two words.

    Raises ConfigError at each item whose quotation is open, or that lacks its dashes.
    """
    words: list[str] = []
    faults = Faults()
    texts = [str(item) for item in items]
    for i, (item, before) in enumerate(zip(texts, [None, *texts], strict=False)):
        if _lacks_dashes(item, before):
            what = f"argument {item!r} is no option: it has no dashes"
            faults.add(file.fault((*at, i), what, f"did you mean --{item}?"))
        try:
            words += shlex.split(item) if _OPTION.match(item) else [item]
        except ValueError as error:
            what = f"argument {item!r}: {error}"
            faults.add(file.fault((*at, i), what, "close the quotation"))
    faults.refuse()
    return words


def places(file: YamlFile, at: Path_, items: Sequence[str | int | float]) -> dict[str, str]:
    """Where each option of `items` stands, as file:line:col."""
    return {
        str(item).split("=")[0].split(" ")[0]: file.place((*at, i)) for i, item in enumerate(items)
    }


def variable_text(value: str | int | float | bool) -> str:
    """An environment value as text; YAML's true is vLLM's 1."""
    return str(int(value)) if isinstance(value, bool) else str(value)
