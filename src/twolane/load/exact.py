"""Prompts of exact length for any tokeniser: the server's own, through /tokenize.

Rules of this file: what asks and what is planted stays whole; only the haystack between is cut or
lengthened, in the same shares, so that the depths stay. Prompts become token ids, whose number
nothing can change on the way.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.client import HTTPException
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec

from twolane.errors import AnswerError, QuestionError
from twolane.gates import needle
from twolane.load.orders import Target
from twolane.load.workloads import Question
from twolane.records import UNREADABLE

Encode = Callable[[str], list[int]]

TIMEOUT_S: Final = 60.0
MOST_BYTES_A_TOKEN: Final = 6
"""Of filler, whose words have three to nine letters: text of so many bytes a token is enough in
every vocabulary; if it were not, more is added."""

KEPT: Final = re.compile(r"(\nRemember: [^\n]+\n|\nWhich value belongs to [\s\S]*\Z)")


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


_tokens = msgspec.json.Decoder(_Tokens).decode


def questions(asked: Sequence[Question], target: Target) -> list[Question]:
    """`asked`, its needle prompts as exactly as many ids as they say. Blocking.

    A server without /tokenize gets the text. Raises QuestionError for a prompt too short.
    """
    encode = tokeniser(target)
    if encode is None:
        return list(asked)
    return [
        replace(one, ids=fitted(one.prompt, one.tokens, encode)) if one.role == "needle" else one
        for one in asked
    ]


def fitted(text: str, tokens: int, encode: Encode) -> list[int]:
    """Ids of a needle prompt with as much of a haystack as makes `tokens` of them."""
    parts = KEPT.split(text)
    hay, kept = parts[0::2], [encode(part) for part in parts[1::2]]
    room = tokens - sum(map(len, kept))
    if room < needle.SALT_LENGTH:
        raise QuestionError(
            f"{tokens} tokens do not hold the needles and the question, which take "
            f"{tokens - room} by this model's tokeniser",
            remedy="ask for a longer prompt",
        )
    wanted = shared(room, list(map(len, hay)))
    filled = [_of_length(part, size, encode) for part, size in zip(hay, wanted, strict=True)]
    joined = [*filled[0]]
    for fact, straw in zip(kept, filled[1:], strict=True):
        joined += [*fact, *straw]
    return joined


def shared(room: int, lengths: Sequence[int]) -> list[int]:
    """`room` tokens in the shares of `lengths`."""
    ends = [room * so_far // sum(lengths) for so_far in accumulate(lengths, initial=0)]
    return [after - before for before, after in pairwise(ends)]


def _of_length(hay: str, tokens: int, encode: Encode) -> list[int]:
    """The first `tokens` ids of `hay`, with more filler after it where that is too short."""
    ids = encode(hay) if hay and tokens else []
    while len(ids) < tokens:
        more = encode(needle.filler(MOST_BYTES_A_TOKEN * (tokens - len(ids)) + 1, len(ids)))
        ids += more
    return ids[:tokens]


def tokeniser(target: Target) -> Encode | None:
    """What the server's /tokenize makes of a text; None where it has no such route.

    Raises AnswerError, as what it returns does when called, where that cannot be read.
    """
    return _route(target, lambda text: {"prompt": text, "add_special_tokens": False})


def chat_tokeniser(target: Target) -> Encode | None:
    """As `tokeniser`, of a chat whose one message is the text."""
    return _route(target, lambda text: {"messages": [{"role": "user", "content": text}]})


def _route(target: Target, form: Callable[[str], dict[str, Any]]) -> Encode | None:
    url = f"http://{target.host}:{target.port}/tokenize"

    def ask(text: str) -> list[int]:
        asked = msgspec.json.encode({"model": target.model} | form(text))
        request = urllib.request.Request(url, asked, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return _tokens(answer.read()).tokens

    def encode(text: str) -> list[int]:
        try:
            return ask(text)
        except (OSError, HTTPException, *UNREADABLE) as error:
            raise AnswerError(
                f"/tokenize cannot be read: {error}", place=url, remedy="is the server running?"
            ) from None

    try:
        if not ask("a"):
            return None  # a route of that name that expects other words
    except urllib.error.HTTPError:
        return None
    except (OSError, HTTPException, *UNREADABLE):
        encode("a")  # once more, and if that fails too, in words
    return encode
