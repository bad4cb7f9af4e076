"""Prompts of exact length that share nothing.

Rules of this file: a prompt follows from the seed and its salt's parts alone, so that two arms
get the same prompts and two requests of one arm never do. One ASCII byte is one token of the
bundled model. The filler holds no character that JSON escapes, so the body is as long as the
prompt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from twolane.errors import QuestionError
from twolane.gates import needle
from twolane.load.orders import Ask

SALT_LENGTH: Final = 16
"""Letters at the start that are the prompt's own. An engine's KV block is at least 16 tokens,
and each block's hash covers all before it: prompts that differ here share no cached block."""


def text(length: int, seed: int, *salt: str | int) -> str:
    """`length` bytes of filler behind a salt of its own.

    Raises QuestionError if it would be too short to be unlike every other.
    """
    if length < SALT_LENGTH:
        raise QuestionError(
            f"a prompt of {length} tokens cannot be unlike every other",
            remedy=f"ask for at least {SALT_LENGTH} tokens",
        )
    digest = hashlib.blake2b(repr((seed, *salt)).encode(), digest_size=16).digest()
    own = "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)
    return own + needle.filler(length - SALT_LENGTH, int.from_bytes(digest[:8], "big"))


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz012345"


def of(ask: Ask, seed: int) -> str:
    """The prompt of one ask: its ready text, or one generated for its place in the cell."""
    if ask.text is not None:
        return ask.text
    return text(ask.prompt, seed, ask.cell, ask.role, ask.shot, ask.index, ask.salt)


def greedy(lengths: Sequence[int], seed: int) -> dict[str, str]:
    """Probes for comparing greedy answers across arms, by their id `<length>/<seed>`."""
    return {f"{length}/{seed}": needle.echo(length, seed).text for length in lengths}
