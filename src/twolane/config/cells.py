"""The cell grammar: one line of text names one workload.

    c64 in1024 out1024 n640        closed loop, 64 users; n640 requests, or 60s of window
    interference victims=2 prompt=60k shots=2
    needle 64k

Sizes: plain numbers, or with k (x 1,024) or m (x 1,048,576): `128k`, `1m`, `1.5k`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from twolane.errors import QuestionError
from twolane.records import AnyCell, GridCell, InterferenceCell, NeedleCell

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)")
_FACTOR = {"": 1, "k": 1024, "m": 1024 * 1024}
_GRAMMAR = (
    "cells are e.g. 'c64 in1024 out1024 n640', 'c4 in512 out64 30s', "
    "'interference victims=2 prompt=60k', 'needle 64k'"
)


def parse_size(text: str) -> int:
    """Tokens in `text`: `6000`, `64k`, `1m`. Raises QuestionError."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _FACTOR[match[2].lower()] if match else 0.0
    if not match or size != int(size) or size < 1:
        raise QuestionError(
            f"{text!r} is not a size in tokens", remedy="write e.g. 6000, 64k or 1m"
        )
    return int(size)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s?", text)
    if not match or float(match[1]) <= 0:
        raise QuestionError(f"{text!r} is not a duration", remedy="write seconds, e.g. 30s")
    return float(match[1])


def parse_cell(text: str) -> AnyCell:
    """The cell that `text` names. Raises QuestionError naming the word and the grammar."""
    words = text.split()
    if not words:
        raise QuestionError("an empty cell", remedy=_GRAMMAR)
    if re.fullmatch(r"c\d+", words[0]):
        return _grid(words)
    if words[0] == "interference":
        return _interference(words[1:])
    if words[0] == "needle" and len(words) == 2:
        prompt = parse_size(words[1])
        if prompt < 400:
            raise QuestionError(
                f"needle of {prompt} tokens", remedy="three facts and a question need 400 or more"
            )
        return NeedleCell(id=f"needle {prompt}", prompt=prompt)
    raise QuestionError(f"unknown cell {text!r}", remedy=_GRAMMAR)


def _grid(words: list[str]) -> GridCell:
    got: dict[str, Any] = {"users": int(words[0][1:])}
    for word in words[1:]:
        if match := re.fullmatch(r"(in|out)(\S+)", word):
            got["prompt" if match[1] == "in" else "output"] = parse_size(match[2])
        elif re.fullmatch(r"n\d+", word):
            got["requests"] = int(word[1:])
        elif re.fullmatch(r"\d+(\.\d+)?s", word):
            got["seconds"] = _seconds(word)
        else:
            raise QuestionError(
                f"unknown word {word!r} in cell {' '.join(words)!r}", remedy=_GRAMMAR
            )
    if got["users"] < 1 or not {"prompt", "output"} <= got.keys():
        raise QuestionError(f"cell {' '.join(words)!r} needs users, in and out", remedy=_GRAMMAR)
    if "requests" in got and "seconds" in got:
        raise QuestionError(
            f"cell {' '.join(words)!r} has two bounds", remedy="give requests (n640) or time (60s)"
        )
    if "seconds" not in got:
        # Ten rounds of every user: enough for a window that the start and tail cannot rule.
        got.setdefault("requests", 10 * got["users"])
        if got["requests"] < got["users"]:
            raise QuestionError(
                f"cell {' '.join(words)!r} has fewer requests than users",
                remedy=f"n{4 * got['users']} or more",
            )
    bound = f"n{got['requests']}" if "requests" in got else f"{got['seconds']:g}s"
    return GridCell(id=f"c{got['users']} in{got['prompt']} out{got['output']} {bound}", **got)


_INTERFERENCE: dict[str, Callable[[str], int | float]] = {
    "victims": int,
    "prompt": parse_size,
    "victim_prompt": parse_size,
    "aggressor_output": parse_size,
    "quiet": _seconds,
    "recovery": _seconds,
    "null": _seconds,
    "shots": int,
}


def _interference(words: list[str]) -> InterferenceCell:
    got: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in _INTERFERENCE or not value:
            raise QuestionError(
                f"unknown word {word!r} in an interference cell",
                remedy=f"known: {', '.join(f'{k}=' for k in _INTERFERENCE)}",
            )
        try:
            number = _INTERFERENCE[key](value)
        except ValueError:
            raise QuestionError(f"{word!r} is not a number", remedy=_GRAMMAR) from None
        got[f"{key}_s" if key in ("quiet", "recovery", "null") else key] = number
    if not {"victims", "prompt"} <= got.keys() or got["victims"] < 1 or got.get("shots", 1) < 1:
        raise QuestionError(
            "an interference cell needs victims (1 or more) and prompt", remedy=_GRAMMAR
        )
    cell = InterferenceCell(id="", **got)
    rest = [w for w in words if not w.startswith(("victims=", "prompt="))]
    identity = " ".join(
        [f"interference victims={cell.victims} prompt={cell.prompt}", *sorted(rest)]
    )
    return InterferenceCell(id=identity, **got)
