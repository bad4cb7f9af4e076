"""Options of vLLM that a campaign sets itself: an arm that asks for another value would lose.

Rules of this file: pure. It knows spellings of options and of vLLM's numbers, not YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kKmMgG]?)")
# As vLLM reads them: small letters are thousands, large ones powers of 1,024.
_FACTOR = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30,
}  # fmt: skip


def against(words: Sequence[str], owned: Mapping[str, int]) -> dict[str, str]:
    """Options of `owned` to which `words` give another value than that, each with its value."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        option, has_value, value = word.partition("=")
        option = option.replace("_", "-")
        if word.startswith("--") and option in owned:
            told = value if has_value else "".join(words[i + 1 : i + 2])
            if _number(told) != owned[option]:
                found[option] = told
    return found


def _number(text: str) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    return float(match[1]) * _FACTOR[match[2]] if match else None
