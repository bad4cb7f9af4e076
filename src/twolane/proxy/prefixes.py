"""What a decode engine is believed to hold of the prompts that it has served.

vLLM keeps a prompt's KV in blocks, each known by a hash of its tokens and of the block before it,
and gives the least recently used away when it needs room. Here the same is kept of the prompt as
the client wrote it, since a proxy has no tokens: pieces of 512 bytes, chained, the least recently
served forgotten first. What an engine has generated is not known here, so that a conversation's
last answer counts as not held.

Rules of this file: pure. A belief can be wrong (the engine has used the room for others, was
emptied, has another template) and costs time then, never an answer: the engine computes what it
does not hold. So it is checked against what the engine reports, and an engine that was believed
wrongly is believed less often, whatever the cause.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import msgspec

from twolane.proxy.body import LARGE, Body, Value

PIECE = 512  # bytes, about a CPU engine's block of 128 tokens; 1 to 8 blocks of a GPU's
# Pieces known of one engine: 32 MiB of prompts, about 8 million tokens, in some 9 MiB of memory.
MOST = 65_536
_STEP = 512  # pieces hashed at once, some 200 µs; then other streams have their turn
_MOST_DOUBTS = 8
# What else decides which tokens a prompt becomes, or which cache they are looked for in
# (vllm/entrypoints/openai, 0.32).
_TOKENS_BY = (
    *("model", "cache_salt", "add_special_tokens", "truncate_prompt_tokens", "truncation_side"),
    *("tools", "tool_choice", "documents", "reasoning_effort", "chat_template", "suffix"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    *("media_io_kwargs", "mm_processor_kwargs", "response_format", "vllm_xargs"),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a chain: each value stands for a piece and all before it."""

    chain: Sequence[int]
    whole: float  # its length in pieces, with the unfinished one at its end
    size: int  # bytes that it takes of its body

    def bytes_without(self, pieces: int) -> float:
        """Bytes of its body that are left where the first `pieces` are held."""
        return self.size * (1 - pieces / self.whole) if pieces else self.size


def chained(body: Body) -> Generator[None, None, Prompt | None]:
    """The prompt of a body, a little at each step; None where it has none of a whole piece.

    Messages, and lists of token ids, count in one canonical form, whatever the client's spaces,
    escapes and order of keys; over 512 KiB as they came, since decoding them would hold up every
    stream.
    """
    name = "messages" if "messages" in body.members else "prompt"
    raw = body.members.get(name)
    if raw is None:
        return None
    size = memoryview(raw).nbytes
    text = memoryview(raw) if size > LARGE else _canonical(raw)
    end = len(text) - 1  # less the closing quote or bracket, which a longer prompt lacks there
    if end < PIECE:
        return None
    known = hash((name, *(bytes(memoryview(body.members.get(key, b""))) for key in _TOKENS_BY)))
    chain = []
    for at in range(0, end - PIECE + 1, PIECE):
        known = hash((known, bytes(text[at : at + PIECE])))
        chain.append(known)
        if len(chain) % _STEP == 0:
            yield
    return Prompt(chain, end / PIECE, size)


def _canonical(raw: Value) -> memoryview:
    """What cannot be decoded, as it came: to refuse it is for the engine."""
    try:
        return memoryview(msgspec.json.encode(msgspec.json.decode(raw), order="sorted"))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return memoryview(raw)


class Prefixes:
    """Of one engine. A piece is known only while every piece before it is."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, None] = OrderedDict()  # the least recently served first
        self._doubts = 0  # how often in a row it was believed wrongly
        self._pass = 0  # so many beliefs are not acted upon

    def __len__(self) -> int:
        return len(self._known)

    def held(self, chain: Sequence[int]) -> int:
        """How many pieces of the chain it should hold, from the first on."""
        return bisect_left(chain, True, key=lambda piece: piece not in self._known)

    def served(self, chain: Sequence[int], most: int = MOST) -> None:
        """It has this prompt now, and has room for `most` pieces. The end is forgotten first."""
        for piece in reversed(chain):
            self._known[piece] = None
            self._known.move_to_end(piece)
        while len(self._known) > most:
            self._known.popitem(last=False)

    def doubted(self) -> bool:
        """Whether this belief is not to be acted upon: after one that was wrong, one is passed
        over, after two in a row three, up to 255."""
        if not self._pass:
            return False
        self._pass -= 1
        return True

    def confirmed(self) -> None:
        """It held what was believed."""
        self._doubts = 0

    def refuted(self, chain: Sequence[int], had: int) -> None:
        """It held only `had` pieces of the chain; so what it served before the next one it has
        lost as well."""
        self._doubts = min(self._doubts + 1, _MOST_DOUBTS)
        self._pass = 2**self._doubts - 1
        lost = chain[had] if had < len(chain) else None
        while lost in self._known:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Another process, or one with an empty cache."""
        self._known.clear()
        self._doubts = self._pass = 0
