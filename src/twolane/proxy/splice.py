"""The middle of a stream: an engine's chunks to the client, past the parser.

Where an engine's answer and ours are framed alike (chunked), a read that is nothing but whole
chunks can be written to the client as it is: the parser would stand at the same place before and
after. Whatever else comes (the end, half a chunk, something that is no chunk) goes to the parser
with every byte of its read.

Rules of this file: bytes are neither kept nor changed, but for the last two reads, in which an
engine reports its times. Little memory is touched for an event: among thousands of streams what
an event costs beyond the kernel is what it misses in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twolane import clock
from twolane.wire.http1 import ClientConnection, Payload, ResponseSink

_HEAD_BYTES = 8  # of a chunk: FFFFFF and a line break
_HEX = frozenset(b"0123456789abcdefABCDEF")
_sizes: dict[bytes, int] = {}  # by head: there are few lengths, and parsing one costs as much as
_SIZES_KNOWN = 4096  # ... all the rest


class Listener(Protocol):
    """Who wants to know what went by: a `Relay`."""

    def on_chunks(self, data: bytes) -> None:
        """Whole chunks, with their framing."""

    def on_read(self) -> None:
        """All of a read has been parsed and told."""


def chunk_size(head: bytes) -> int:
    """Bytes in the chunk that `head` announces; 0 where that is not plain hexadecimal."""
    known = _sizes.get(head)
    if known is None:
        known = int(head, 16) if head and _HEX.issuperset(head) else 0
        if len(_sizes) < _SIZES_KNOWN:
            _sizes[head] = known
    return known


def whole_chunks(data: bytes) -> bool:
    """Whether `data` is one or more whole chunks, none of them the last one of an answer."""
    at, size = 0, len(data)
    while at < size:
        line_end = data.find(b"\r\n", at, at + _HEAD_BYTES)
        chunk = chunk_size(data[at:line_end]) if line_end > 0 else 0
        at = line_end + 4 + chunk
        if not chunk or at > size or data[at - 2 : at] != b"\r\n":
            return False
    return size > 0


def without_framing(chunks: bytes) -> bytes:
    """The payload of whole chunks."""
    pieces = []
    at = 0
    while at < len(chunks):
        line_end = chunks.index(b"\r\n", at)
        start = line_end + 2
        at = start + chunk_size(chunks[at:line_end]) + 2
        pieces.append(chunks[start : at - 2])
    return b"".join(pieces)


class SplicedConnection(ClientConnection):
    """A connection to an engine that passes whole chunks on to `onward` while that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.onward: Callable[[bytes], None] | None = None
        self.passed_ns = 0  # when the last read was passed on
        self._listener: Listener | None = None
        self._between = False  # no byte of a chunk is in the parser
        self._last = self._before = b""  # reads that were passed on

    def send(self, head: bytes, body: Payload, sink: ResponseSink) -> int:
        self.part()
        return super().send(head, body, sink)

    def follow(self, listener: Listener) -> None:
        """From now on `listener` hears what comes in answer to what was sent."""
        self._listener = listener

    def splice(self, onward: Callable[[bytes], None]) -> None:
        """From the next whole chunk on, to `onward`; the listener is told of the last ones."""
        self.onward = onward

    def part(self) -> None:
        """Everything to the parser again, and nobody listens."""
        self._tell()
        self.onward = self._listener = None

    def data_received(self, data: bytes) -> None:
        onward = self.onward
        if onward is not None and self._between and whole_chunks(data):
            onward(data)
            self._before, self._last = self._last, data
            self.passed_ns = clock.now_ns()
            return
        self._tell()
        listener = self._listener
        super().data_received(data)
        self._between = self._between and data.endswith(b"\n")
        if listener is not None:
            listener.on_read()

    def _tell(self) -> None:
        if self._last and self._listener is not None:
            self._listener.on_chunks(self._before + self._last)
        self._before = self._last = b""

    def on_chunk_header(self) -> None:
        self._between = False

    def on_chunk_complete(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        self._between = False
        super().on_message_complete()
