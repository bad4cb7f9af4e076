"""Chat prompts of exact length: words that are a token each, inside the server's own template.

A chat takes no token ids. What its template adds, and which words are a token wherever they stand,
is asked of the server's /tokenize once, before anything is measured.

Rules of this file: what was found is believed only if it holds for texts drawn at random, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mode
from string import ascii_lowercase
from typing import Final

from twolane.errors import QuestionError
from twolane.gates import needle
from twolane.load import exact, prompts
from twolane.load.orders import Target, Words
from twolane.load.workloads import Question

Count = Callable[[str], int]
"""Tokens of a chat whose one message is this text."""

FEWEST: Final = 26
"""Sixteen words out of so many have 75 bits: no two prompts begin alike."""

TRIED: Final = (1, 2, 17, 100, 333)
"""Lengths, in words, of the texts that are drawn to try what was found."""

_COMMON: Final = (
    "the and for are but not you all can her was one our out day get has him his how man new now "
    "old see two way who boy did its let put say she too use able also back been best both call "
    "came case city come days does done down each even fact feel find five food form four from "
    "full game gave girl give goes gone good hand hard have head hear help here high home hope "
    "hour idea just keep kind knew know land last late left less life like line list live long "
    "look lost made main make many mind more most move much must name near need next nine once "
    "only open over page part past plan play read real rest room said same seen self send side "
    "some soon stay such sure take talk tell than that them then they this time took town tree "
    "turn upon very walk wall want water week well went were what when will wind with word work "
    "year your"
)
COMMON: Final = tuple(_COMMON.split())


def find(target: Target) -> Words | None:
    """What chat prompts for this server can be made of; None where it has no /tokenize for chats,
    or no text is as long as its parts. Blocking. Raises AnswerError if it cannot be read."""
    encode = exact.chat_tokeniser(target)
    if encode is None:
        return None

    def count(text: str) -> int:
        return len(encode(text))

    for each, joint in ((COMMON, " "), (tuple(ascii_lowercase), "")):
        found = _tried(each, joint, count) or _tried(_single(each, joint, count), joint, count)
        if found is not None:
            return found
    return None


def _tried(each: tuple[str, ...], joint: str, count: Count) -> Words | None:
    if len(each) < FEWEST:
        return None
    frame = _frame(each, joint, count)
    return None if frame is None else Words(each, joint, frame)


def _single(each: Sequence[str], joint: str, count: Count) -> tuple[str, ...]:
    """Those that are a token at the begin and behind another."""
    alone = {word: count(word) for word in each}
    usual = mode(alone.values())
    return tuple(
        word for word in each if alone[word] == usual and count(joint.join([word] * 5)) == usual + 4
    )


def _frame(each: Sequence[str], joint: str, count: Count) -> int | None:
    """Tokens that the template adds, if that is the same whatever it frames."""
    drawn = (prompts.draw(size, each, 0, "frame", size) for size in TRIED)
    frames = {count(joint.join(some)) - len(some) for some in drawn}
    return frames.pop() if len(frames) == 1 else None


def questions(asked: Sequence[Question], target: Target) -> list[Question]:
    """`asked`, its needle prompts as exactly as many tokens as they say. Blocking.

    Raises QuestionError for a prompt too short.
    """
    encode, words = exact.chat_tokeniser(target), target.words
    if encode is None or words is None:
        return list(asked)
    return [
        replace(one, prompt=fitted(one.prompt, one.tokens, words, lambda text: len(encode(text))))
        if one.role == "needle"
        else one
        for one in asked
    ]


def fitted(text: str, tokens: int, words: Words, count: Count) -> str:
    """A needle prompt whose haystack is words, in the same shares, so that it has `tokens`."""
    parts = exact.KEPT.split(text)
    lengths = [len(hay) for hay in parts[0::2]]
    room = tokens
    for _ in range(3):  # at first the planted facts are taken for words; then a word is a token
        made = _joined(parts, exact.shared(max(room, 0), lengths), words)
        over = count(made) - tokens
        if over == 0:
            return made
        room -= over
    raise QuestionError(
        f"{tokens} tokens do not hold the needles and the question by this model's tokeniser",
        remedy="ask for a longer prompt, or leave out --chat",
    )


def _joined(parts: Sequence[str], sizes: Sequence[int], words: Words) -> str:
    """The salt, the facts and the question of `parts`, and so many words before each of them."""
    own = parts[0][: needle.SALT_LENGTH]
    hays = [
        words.joint.join(prompts.draw(size, words.each, number, own))
        for number, size in enumerate(sizes)
    ]
    planted = [*parts[1::2], ""]
    return f"{own}\n" + "".join(hay + fact for hay, fact in zip(hays, planted, strict=True))
