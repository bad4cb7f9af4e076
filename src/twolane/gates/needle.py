"""Facts planted in a long prompt: does the model read back what stands there?

A prompt is a salt, a haystack of meaningless words with N facts planted in it, and a question
about one of them that ends in the middle of the answer's line, so that a model which only
continues text can answer it too:

    3f0c...  quemb tyh wqe ...
    Remember: Q7ZK4M2B=48201736
    ... ruo pwiv hemx
    Which value belongs to Q7ZK4M2B? Write that value and nothing else.
    Q7ZK4M2B=

Lengths are bytes of ASCII, which are tokens of the bundled model. Everything follows from the
seed: the same call gives the same prompts, and another seed gives prompts that share no prefix.
Facts are written in capitals and digits, the haystack in small letters, so that the haystack
cannot contain a fact by accident.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from twolane.errors import QuestionError

DEPTHS: Final = (0.05, 0.5, 0.95)

KEY_LENGTH: Final = 8
ANSWER_LENGTH: Final = 8
ANSWER_TOKENS: Final = ANSWER_LENGTH + 4
"""What to allow for an answer, in tokens: the digits, the end, and room for being wrong."""

CONTEXT_LENGTH: Final = 8
"""Bytes of context the bundled model matches, and so how far apart two facts must stay unlike."""

SALT_LENGTH: Final = 16
"""Bytes at the start of a prompt that are its own; no engine's KV blocks are smaller."""

# No letter that could be read as a digit: models are also asked who read text as we do.
_CAPITALS: Final = np.frombuffer(b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789", dtype=np.uint8)
_DIGITS: Final = np.frombuffer(b"0123456789", dtype=np.uint8)
_WORD: Final = re.compile(r"[0-9A-Za-z]+")

# Words of three to nine letters, drawn letter by letter: eight bytes of that have about 2**35
# values, so that a passage of eight bytes hardly ever returns by itself, even in a million.
_SHORTEST_WORD: Final = 3
_LONGEST_WORD: Final = 9

Miss = Literal["no answer", "wrong value", "another needle's value"]


@dataclass(frozen=True, slots=True)
class NeedlePrompt:
    """A prompt that asks for one planted fact, and what is needed to judge the answer.

    `depth` is where the fact stands, as a share of the haystack; `others` are the values of the
    facts that were not asked for.
    """

    text: str
    key: str
    answer: str
    depth: float
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NeedleVerdict:
    """Whether an answer was right, and how it was wrong (`None` when it was not)."""

    ok: bool
    reason: Miss | None


@dataclass(frozen=True, slots=True)
class EchoPrompt:
    """Plain filler that ends by quoting itself, so that its continuation is known.

    A model that continues a quotation goes on with what followed the quoted passage, `cycle`,
    and having arrived at the end of the prompt it starts over.
    """

    text: str
    cycle: str

    def continuation(self, length: int) -> str:
        """Return the `length` bytes that a faithful copy goes on with."""
        return (self.cycle * (length // len(self.cycle) + 1))[:length]


def make(length_tokens: int, seed: int, depths: Sequence[float] = DEPTHS) -> list[NeedlePrompt]:
    """Return one prompt per depth, each of exactly `length_tokens` bytes, from one haystack.

    All of them contain all facts; each asks for another one. `depths` are shares of the
    haystack, from 0, its beginning, to 1, its end.
    """
    _check_depths(depths)
    facts = draw_facts(len(depths), np.random.default_rng([seed, length_tokens]))
    lines = [f"\nRemember: {key}={answer}\n" for key, answer in facts]
    questions = [question(key) for key, _ in facts]

    hay_length = length_tokens - SALT_LENGTH - len("".join(lines)) - len(questions[0])
    if hay_length < 0:
        raise QuestionError(
            f"{length_tokens} tokens do not hold {len(depths)} needles and a question",
            remedy=f"ask for at least {length_tokens - hay_length} tokens, or for fewer needles",
        )
    haystack = plant(filler(hay_length, seed), lines, depths)
    answers = [answer for _, answer in facts]
    return [
        NeedlePrompt(
            text=salt(seed, length_tokens, index) + haystack + questions[index],
            key=key,
            answer=answer,
            depth=depths[index],
            others=tuple(answers[:index] + answers[index + 1 :]),
        )
        for index, (key, answer) in enumerate(facts)
    ]


class Asked(Protocol):
    """What is known of a question when its answer is judged."""

    @property
    def key(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def others(self) -> tuple[str, ...]: ...


def score(prompt: Asked, answer_text: str) -> NeedleVerdict:
    """Judge an answer by its first word, which must be the planted value exactly.

    A model that first repeats the key is forgiven; one that goes on after the value as well.
    """
    repeated = f"{prompt.key}="
    word = _WORD.search(answer_text.strip().removeprefix(repeated))
    if word is None:
        return NeedleVerdict(ok=False, reason="no answer")
    if word[0] == prompt.answer:
        return NeedleVerdict(ok=True, reason=None)
    if word[0] in prompt.others:
        return NeedleVerdict(ok=False, reason="another needle's value")
    return NeedleVerdict(ok=False, reason="wrong value")


def echo(length_tokens: int, seed: int, depth: float = 0.5) -> EchoPrompt:
    """Return a salted prompt of `length_tokens` bytes that ends by quoting itself at `depth`.

    The quotation is twice as long as the bundled model's context, so that model's greedy
    continuation is known for any number of tokens. (In a million tokens of filler, one context
    in some 30,000 stands in a second place by chance and may lead the copy astray.)
    """
    _check_depths([depth])
    quote_length = 2 * CONTEXT_LENGTH
    body_length = length_tokens - SALT_LENGTH - quote_length
    if body_length < quote_length:
        raise QuestionError(
            f"{length_tokens} tokens are too few to quote from",
            remedy=f"ask for at least {SALT_LENGTH + 2 * quote_length} tokens",
        )
    body = filler(body_length, seed)
    start = round(depth * (body_length - quote_length))
    quote = body[start : start + quote_length]
    return EchoPrompt(
        text=salt(seed, length_tokens) + body + quote,
        cycle=body[start + quote_length :] + quote,
    )


def filler(length: int, seed: int) -> str:
    """Return `length` bytes of meaningless words in small letters, the same for the same seed."""
    rng = np.random.default_rng(seed)
    text = rng.integers(ord("a"), ord("z") + 1, size=length, dtype=np.uint8)
    most_words = length // (_SHORTEST_WORD + 1) + 1
    words = rng.integers(_SHORTEST_WORD, _LONGEST_WORD + 1, size=most_words)
    spaces = np.cumsum(words + 1) - 1
    text[spaces[spaces < length]] = ord(" ")
    return text.tobytes().decode("ascii")


def salt(*parts: int) -> str:
    """Return SALT_LENGTH bytes that differ for different parts: hexadecimal digits, a space."""
    digest = hashlib.blake2b(repr(parts).encode("ascii"), digest_size=SALT_LENGTH // 2)
    return digest.hexdigest()[: SALT_LENGTH - 1] + " "


def question(key: str) -> str:
    return f"\nWhich value belongs to {key}? Write that value and nothing else.\n{key}="


def _check_depths(depths: Sequence[float]) -> None:
    """Refuse depths outside the haystack, and none at all."""
    if not depths:
        raise QuestionError("no depths were given", remedy="plant at least one needle")
    for depth in depths:
        if not 0.0 <= depth <= 1.0:
            raise QuestionError(
                f"depth {depth} is outside the haystack", remedy="give a share from 0 to 1"
            )


def draw_facts(count: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Draw `count` (key, answer) pairs, no two of which look alike through a short window."""
    while True:
        facts = [
            (_draw(_CAPITALS, KEY_LENGTH, rng), _draw(_DIGITS, ANSWER_LENGTH, rng))
            for _ in range(count)
        ]
        if _unlike(facts):
            return facts


def _draw(alphabet: npt.NDArray[np.uint8], length: int, rng: np.random.Generator) -> str:
    return rng.choice(alphabet, size=length).tobytes().decode("ascii")


def _unlike(facts: list[tuple[str, str]]) -> bool:
    """Tell whether every window of CONTEXT_LENGTH bytes of the facts is there only once.

    A model that looks at no more than that then has one place to go to at every byte.
    """
    lines = [f"{key}={answer}" for key, answer in facts]
    windows = [
        line[start : start + CONTEXT_LENGTH]
        for line in lines
        for start in range(len(line) - CONTEXT_LENGTH + 1)
    ]
    return len(set(windows)) == len(windows)


def plant(haystack: str, lines: list[str], depths: Sequence[float]) -> str:
    """Insert every line at its depth, measured in the haystack before anything was planted."""
    planted = []
    done = 0
    for depth, line in sorted(zip(depths, lines, strict=True)):
        place = round(depth * len(haystack))
        planted += [haystack[done:place], line]
        done = place
    return "".join([*planted, haystack[done:]])
