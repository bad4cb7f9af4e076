"""What a router's command may leave open, and how it is filled in.

Rules of this file: pure. `{name}` is a placeholder; `${name}` is the shell's and `{{name}}` a
template's, and both pass as they are, as does JSON.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence

from twolane.errors import QuestionError

KNOWN = (
    *("prefill", "decode", "prefill_address", "decode_address", "prefill_port", "decode_port"),
    "port",
)
_PLACEHOLDER = re.compile(r"(?<![{$])\{\s*([A-Za-z][\w.-]*)\s*\}(?!\})")


def require(argv: Sequence[str]) -> None:
    """Raises QuestionError, naming all of them, where `argv` has placeholders that are none, or no
    `{port}`."""
    unknown = list(dict.fromkeys(_unknown(argv)))
    if unknown:
        named = " and ".join(f"{found} in word {at} ({word!r})" for at, word, found in unknown)
        raise QuestionError(
            f"nothing fills in {named}", place=shlex.join(argv), remedy=_remedy(unknown)
        )
    if not any("{port}" in word for word in argv):
        raise QuestionError(
            "the command has no {port}: the router would listen elsewhere",
            place=shlex.join(argv),
            remedy="put {prefill}, {decode} and {port} where the router takes them",
        )


def fill(argv: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """`argv` with the value of each name in KNOWN in its place."""
    return [_PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), word) for word in argv]


def _unknown(argv: Sequence[str]) -> list[tuple[int, str, str]]:
    return [
        (at, word, match[0])
        for at, word in enumerate(argv, 1)
        for match in _PLACEHOLDER.finditer(word)
        if match[0] not in _written()
    ]


def _written() -> list[str]:
    return [f"{{{name}}}" for name in KNOWN]


def _remedy(unknown: Sequence[tuple[int, str, str]]) -> str:
    names = dict.fromkeys(found.strip("{} ") for *_, found in unknown)
    near = [
        f"did you mean {{{close[0]}}}?"
        for name in names
        if (close := difflib.get_close_matches(name.lower().replace("-", "_"), KNOWN, 1, 0.6))
    ]
    return " ".join([*dict.fromkeys(near), f"known: {', '.join(_written())}"])
