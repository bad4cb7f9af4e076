"""Prompts of exact length of which no two begin alike.

Rules of this file: a prompt follows from the seed and its salt's parts alone, so that two arms
get the same prompts and two requests of one arm never do. One ASCII byte is one token of the
bundled model, so it gets text; the filler holds no character that JSON escapes, so the body is as
long as the prompt. Other models get token ids, whose number no tokeniser can change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np

from twolane.config.traces import BLOCK
from twolane.errors import QuestionError
from twolane.gates import needle
from twolane.load.orders import Ask, Form, Words

SALT_LENGTH: Final = 16
"""Letters at the start that are the prompt's own. An engine's KV block is at least 16 tokens,
and each block's hash covers all before it: prompts that differ here share no cached block."""


def text(length: int, seed: int, *salt: str | int) -> str:
    """`length` bytes of filler behind a salt of its own.

    Raises QuestionError if it would be too short to be unlike every other.
    """
    if length < SALT_LENGTH:
        raise _too_short(length)
    digest = hashlib.blake2b(repr((seed, *salt)).encode(), digest_size=16).digest()
    own = "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)
    return own + _filler(length - SALT_LENGTH, int.from_bytes(digest[:8], "big"))


STOCK: Final = 1 << 17
"""Bytes of filler from which short prompts are cut: to draw 512 anew takes 38 microseconds, to cut
them 3, and a closed loop makes one for each answer while it measures."""


def _filler(length: int, draw: int) -> str:
    if length > STOCK // 2:
        return needle.filler(length, draw)
    start = draw % (STOCK - length)
    return _stock()[start : start + length]


@cache
def _stock() -> str:
    return needle.filler(STOCK, 0)


FIRST_ID: Final = 1000
PAST_LAST_ID: Final = 9000
"""Ids that are plain text in every vocabulary that is still served: the first thousand hold the
control tokens of some, and the smallest has 32,000."""


def ids(length: int, seed: int, *salt: str | int) -> list[int]:
    """`length` token ids, unlike those of any other salt from the first one on.

    Raises QuestionError as `text` does.
    """
    if length < SALT_LENGTH:
        raise _too_short(length)
    digest = hashlib.blake2b(repr((seed, *salt)).encode(), digest_size=16).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "big"))
    drawn: list[int] = rng.integers(FIRST_ID, PAST_LAST_ID, length).tolist()
    return drawn


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz012345"


def draw(length: int, each: Sequence[str], seed: int, *salt: str | int) -> list[str]:
    """`length` words of `each`, unlike those of any other salt from the first ones on."""
    digest = hashlib.blake2b(repr((seed, *salt)).encode(), digest_size=16).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "big"))
    return [each[at] for at in rng.integers(0, len(each), length).tolist()]


def of(ask: Ask, seed: int, form: Form, words: Words | None = None) -> str | list[int]:
    """The prompt of one ask: its ready text, or one generated for its place in the cell.

    With `words`, a chat's text that has the ask's length together with its template.
    """
    if ask.ids is not None:
        return ask.ids
    if ask.text is not None:
        return ask.text
    if words is not None:
        return _of_words(ask, seed, words)
    if ask.blocks:
        return _of_blocks(ask, seed, form)
    make = ids if form == "ids" else text
    return make(ask.prompt, seed, ask.cell, ask.role, ask.shot, ask.index, ask.salt)


def _of_words(ask: Ask, seed: int, words: Words) -> str:
    size = ask.prompt - words.frame
    if size < SALT_LENGTH:
        raise _too_short(size)
    drawn = [word for block in ask.blocks for word in draw(BLOCK, words.each, seed, "block", block)]
    left = max(SALT_LENGTH, size - len(drawn)) if ask.blocks else size
    drawn += draw(left, words.each, seed, ask.cell, ask.role, ask.shot, ask.index, ask.salt)
    return words.joint.join(drawn[:size])


def _of_blocks(ask: Ask, seed: int, form: Form) -> str | list[int]:
    """Blocks that follow from their ids alone; what they leave is the ask's own."""
    left = max(SALT_LENGTH, ask.prompt - BLOCK * len(ask.blocks))
    if form == "ids":
        shared = [token for block in ask.blocks for token in ids(BLOCK, seed, "block", block)]
        return (shared + ids(left, seed, ask.cell, ask.index))[: ask.prompt]
    texts = "".join(text(BLOCK, seed, "block", block) for block in ask.blocks)
    return (texts + text(left, seed, ask.cell, ask.index))[: ask.prompt]


def _too_short(length: int) -> QuestionError:
    return QuestionError(
        f"a prompt of {length} tokens cannot be unlike every other",
        remedy=f"ask for at least {SALT_LENGTH} tokens",
    )


def greedy(lengths: Sequence[int], seed: int) -> dict[str, str]:
    """Probes for comparing greedy answers across arms, by their id `<length>/<seed>`."""
    return {f"{length}/{seed}": needle.echo(length, seed).text for length in lengths}
