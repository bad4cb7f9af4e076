"""A conversation that grows turn by turn, each turn asking for a planted fact.

The first turn is a salt, a haystack with one fact for every second turn, and a question; every
later one is a haystack with one fact of its own, and a question. Turns take it in turn to ask:
the first, third, ... for what stands in the first turn, so that the oldest tokens of the history
are needed; the second, fourth, ... for what they say themselves. No fact is asked for twice,
because the first answer would stand in the history. As in `needle`, lengths are bytes of ASCII,
which are tokens of the bundled model, and everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twolane.errors import QuestionError
from twolane.gates import needle

_TAG = 7001  # keeps a conversation's random numbers apart from a needle prompt's


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn adds to the history, and what its answer must begin with."""

    text: str
    key: str
    answer: str
    others: tuple[str, ...]


def lengths(prompt: int, turns: int) -> list[int]:
    """Prompt length of every turn, tokens: equal steps, the last one exactly `prompt`."""
    return [prompt * (turn + 1) // turns for turn in range(turns)]


def make(prompt: int, turns: int, answer: int, seed: int, user: int = 0) -> list[Turn]:
    """The turns of one conversation whose every answer has `answer` tokens.

    Raises QuestionError if a turn is too short for its facts and its question.
    """
    rng = np.random.default_rng([seed, user, _TAG])
    facts = needle.draw_facts(turns, rng)
    ends = lengths(prompt, turns)
    begins = [0, *(end + answer for end in ends[:-1])]
    made = []
    for turn, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        planted = facts[::2] if turn == 0 else [facts[turn]] if turn % 2 else []
        key, value = facts[turn]
        head = needle.salt(seed, user, _TAG) if turn == 0 else "\n"
        text = _text(end - begin, head, planted, key, seed=int(rng.integers(2**63)))
        others = tuple(other for _, other in facts if other != value)
        made.append(Turn(text, key, value, others))
    return made


def _text(length: int, head: str, planted: list[tuple[str, str]], key: str, *, seed: int) -> str:
    lines = [f"\nRemember: {k}={value}\n" for k, value in planted]
    question = needle.question(key)
    hay = length - len(head) - len("".join(lines)) - len(question)
    if hay < 0:
        raise QuestionError(
            f"a turn of {length} new tokens does not hold {len(lines)} facts and a question",
            remedy=f"make every turn {-hay} tokens longer, or take fewer turns",
        )
    depths = [(i + 0.5) / len(lines) for i in range(len(lines))]
    return head + needle.plant(needle.filler(hay, seed), lines, depths) + question
