"""A workload of one's own: JSON lines of prompts, or of a trace in Mooncake's format.

    {"timestamp": 1200, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 7]}
    {"prompt": "Why is the sky blue?", "output": 64}

`timestamp` is in milliseconds. A hash id stands for 512 tokens: lines whose ids begin alike share
that much of their prompts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Final

import msgspec

from twolane.errors import QuestionError
from twolane.records import UNREADABLE

BLOCK: Final = 512
"""Tokens that one hash id stands for, in Mooncake's published traces."""


class TraceLine(msgspec.Struct, frozen=True):
    """One request of a trace: of `input_length` generated tokens, or with a `prompt` of its own."""

    timestamp: float | None = None
    input_length: int = 0
    output_length: int | None = None
    hash_ids: tuple[int, ...] = ()
    prompt: str | None = None
    output: int | None = None

    @property
    def tokens(self) -> int:
        """Prompt tokens; the bytes of a prompt of its own, which no model makes more tokens of."""
        return self.input_length if self.prompt is None else len(self.prompt.encode())

    @property
    def answer(self) -> int:
        """Output tokens asked for."""
        return self.output_length or self.output or 64


_line = msgspec.json.Decoder(TraceLine).decode


def read_trace(path: str, limit: int | None = None) -> list[TraceLine]:
    """The first `limit` requests of the file. Raises QuestionError naming the line."""
    try:
        found = list(islice(_lines(path), limit))
    except (OSError, ValueError) as error:  # ValueError: a name that no file has
        why = error.strerror if isinstance(error, OSError) else error
        raise QuestionError(
            f"the trace cannot be read: {why}", place=path, remedy="name a JSONL file"
        ) from None
    if not found:
        raise QuestionError("the trace is empty", place=path, remedy="one request a line")
    return found


def _lines(path: str) -> Iterator[TraceLine]:
    if not S_ISREG(os.stat(path).st_mode):  # a device has no end, and a pipe may have no writer
        raise OSError(errno.EINVAL, "not a file", path)
    with Path(path).open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield _read(path, number, text)


def _read(path: str, number: int, text: bytes) -> TraceLine:
    try:
        line = _line(text)
    except UNREADABLE as error:
        raise QuestionError(
            f"not a request: {error}", place=f"{path}:{number}", remedy=_EXAMPLE
        ) from None
    if line.prompt is None and line.input_length < 1:
        raise QuestionError(
            "neither prompt nor input_length", place=f"{path}:{number}", remedy=_EXAMPLE
        )
    return line


_EXAMPLE: Final = 'write e.g. {"prompt": "...", "output": 64}, or a line of a Mooncake trace'
