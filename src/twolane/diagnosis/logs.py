"""Engine logs, cut into the lines that a rule could care about, at the speed of memory.

Rules of this file: bytes in, lines out; it knows vLLM's line formats and no rule. A line is
skipped only if it is certain that no rule reads it: empty, DEBUG, or INFO whose message starts
with none of the TELLING words. That test is one regular expression anchored at newlines, so a
healthy log of gigabytes costs a memchr and a few characters per line.

Formats: `(EngineCore pid=12) ERROR 11-29 14:56:46 [core.py:1510] text` on every line of a
message, with or without colours, `\\r\\n`, progress bars overwritten by `\\r`, lines of uvicorn and
of dying interpreters without prefix, several processes interleaved, a last line cut short.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
NEWLINE = 10
CHUNK = 4 << 20  # large enough that the work per chunk vanishes, small enough to stay in cache
TAIL = 64 << 10  # kept of the chunk before, so that a line can be read with the lines before it
LONGEST = 1 << 20  # a longer line is cut there
EAGER_CHUNKS = 2  # read whole before steady figures are sampled
SAMPLED = 16  # then every 16th chunk's are read; lines that tell of failures always are

COLOUR = rb"(?:\x1b\[[0-9;]*m)*"
END_OF_COLOUR = COLOUR + rb"(?:(?<=m) )?"
WHO = rb"(?:\((?P<process>[A-Za-z_0-9 ().:-]{1,80}?) pid=(?P<pid>\d+)\) ?)?"
PROCESS = COLOUR + WHO + END_OF_COLOUR
STAMPED = rb"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) "
PLACE = rb"(?:\.\d+ )?\[(?P<place>[^\]\n]{1,120})\] ?"
PREFIX = re.compile(PROCESS + rb"(?:" + STAMPED + PLACE + rb")?")

TELLING = (
    rb"Setting attention block size|No available shared memory|Auto-fit max_model_len"
    rb"|Remote engine at |Initial free memory|Chunked prefill is enabled|Initializing NIXL Sch"
    rb"|init engine \(|\[shutdown\] API server: shutdown tr|non-default args"
    rb"|.{0,40}GPU KV cache size|.{0,40}CPU KV cache size"
)
STEADY = rb"Engine \d|\d++ Engines Agg|KV Transfer metrics|SpecDecoding metrics"
ALL_WELL = b"0, Num KV expired reqs=0, Num notifs after expiry=0"
# The first capital P of a stats line is in "Preemptions" if it has any, else in GPU or CPU.
FAILING = (
    rb"(?:Engine \d|\d++ Engines Agg)[^P\n]*+Preemptions: "
    rb"|KV Transfer metrics: N[^N\n]*+Num failed transfers="
    rb"(?!" + ALL_WELL + rb")"
)


def interesting(telling: bytes) -> re.Pattern[bytes]:
    """Matches the newline before a line worth reading. Possessive, so that no line is re-read."""
    process = rb"(?:\((?:[\w.:-]++|[^\n]{1,80}?) pid=\d++\) ?)?+"
    info = (
        rb"INFO(?::(?!\s++Application startup)| .{14}+ [^\]\n]*+\] (?!" + telling + rb"))"
        rb"|DEBUG .{14}+ [^\]\n]*+\] "
    )
    coloured = COLOUR + process + END_OF_COLOUR + rb"(?:" + info + rb")"
    return re.compile(
        rb"\n(?!" + process + rb"(?:" + info + rb")|\r?\n|(?=\x1b)" + coloured + rb")"
    )


NO_FIGURE = interesting(TELLING)
EVERY_FIGURE = interesting(TELLING + rb"|" + STEADY)
FAILURES_ONLY = interesting(TELLING + rb"|" + FAILING)


class Line(msgspec.Struct, frozen=True):
    """One line without its prefix. `number` counts from 1; `start` is its place in the chunk."""

    text: str
    process: str
    level: str
    stamp: str
    number: int
    start: int


class Chunk:
    """Some megabytes of a log, beginning after a newline, with the end of what came before."""

    def __init__(self, data: bytes, start: int, first: int, sampled: bool) -> None:
        self.data = data  # tail of the chunk before, then this chunk; data[start] is its first byte
        self.start = start
        self.first = first
        self.pattern = EVERY_FIGURE if sampled else FAILURES_ONLY if self.failing() else NO_FIGURE
        self._counted = (start, first)  # a place and the number of the line that begins there

    def failing(self) -> bool:
        """Whether some stats line tells of a failure: counting in bytes is faster than reading."""
        steady = self.data.count(b"Num failed transfers=" + ALL_WELL)
        return b" Preemptions: " in self.data or steady < self.data.count(b"Num failed transfers=")

    def starts(self, most: int | None = None) -> list[int]:
        """Where the lines worth reading begin; the byte before data[start] is a newline."""
        found = islice(self.pattern.finditer(self.data, self.start - 1), most)
        return [at for match in found if (at := match.end()) < len(self.data)]

    def telling(self, start: int) -> bool:
        """Whether the line at `start` is worth reading."""
        return self.pattern.match(self.data, start - 1) is not None

    def raw(self, start: int) -> bytes:
        end = self.data.find(b"\n", start, start + LONGEST)
        return self.data[start : end if end >= 0 else start + LONGEST]

    def line_starts(self) -> IntArray:
        """Where every line of this chunk begins."""
        body = np.frombuffer(self.data, np.uint8)[self.start :]
        ends = np.flatnonzero(body == NEWLINE) + self.start + 1
        return np.concatenate(([self.start], ends))

    def body(self) -> bytes:
        return self.data[self.start :]

    def line(self, start: int) -> Line:
        """The line at `start`; cheapest in ascending order, since lines are counted on the way."""
        place, number = self._counted if start >= self._counted[0] else (self.start, self.first)
        number += self.data.count(b"\n", place, start)
        self._counted = (start, number)
        return split(self.raw(start), number, start)

    def before(self, line: Line, most: int) -> list[str]:
        """Up to `most` texts that the same process wrote before `line`, oldest first."""
        texts: list[str] = []
        at = line.start - 1
        for _ in range(most * 4):
            if at <= 0 or len(texts) == most:
                break
            begin = self.data.rfind(b"\n", 0, at) + 1
            other = split(self.data[begin : min(at, begin + LONGEST)], 0, begin)
            if other.process == line.process:
                texts.append(other.text)
            at = begin - 1
        return texts[::-1]


def split(raw: bytes, number: int, start: int) -> Line:
    """One raw line: its prefix apart, and of an overwritten progress bar only what remained."""
    raw = raw.rstrip(b"\r").rsplit(b"\r", 1)[-1]
    match = PREFIX.match(raw)
    assert match is not None  # every part of PREFIX is optional
    process = f"{match['process'].decode()} pid={match['pid'].decode()}" if match["process"] else ""
    text = raw[match.end() :].decode("utf-8", "replace")
    level, stamp = ((match[k] or b"").decode() for k in ("level", "stamp"))
    return Line(text, process, level, stamp, number, start)


def chunks(stream: BinaryIO, size: int = CHUNK) -> Iterator[Chunk]:
    """The log in pieces of about `size` bytes that end at newlines; memory stays bounded."""
    tail, carry, first, index = b"\n", b"", 1, 0
    while True:
        block = stream.read(size)
        start, data = len(tail), b"".join((tail, carry, block))
        whole = not block or len(data) - start >= size + LONGEST
        cut = len(data) if whole else data.rfind(b"\n") + 1  # the tail ends with one
        data, carry = data[:cut], data[cut:]
        if len(data) > start:
            sampled = index < EAGER_CHUNKS or index % SAMPLED == 0
            yield Chunk(data, start, first, sampled)
            first += data.count(b"\n", start)
            index += 1
            tail = data[max(start - 1, len(data) - TAIL) :] if data.endswith(b"\n") else b"\n"
        if not block:
            return
