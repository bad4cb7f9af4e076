"""Server-sent events: bytes in, payloads out.

Rules of this file: framing is by bytes and by lines as in the WHATWG specification (LF, CRLF or
CR, split anywhere), nothing is decoded, nothing is rescanned: a payload that arrives in a
thousand pieces costs what it weighs. `event`, `id` and `retry` fields are dropped, because no
OpenAI-compatible server puts anything there that `data` does not say.
"""

from __future__ import annotations

from collections.abc import Callable

_BOM = b"\xef\xbb\xbf"


class SseParser:
    """Frames one stream.

    `on_comment` receives each comment line without its colon and without one leading space, as
    soon as the line ends, before the events that follow it in the same chunk are returned.
    """

    def __init__(self, on_comment: Callable[[bytes], None] | None = None) -> None:
        self._on_comment = on_comment
        self._line: list[bytes] = []  # pieces of the unfinished line
        self._line_size = 0
        self._data: list[bytes] = []  # data lines of the unfinished event
        self._data_size = 0
        self._after_cr = False
        self._at_start = True
        self._between_events = True  # known to be, with nothing to remember

    def alone(self, chunk: bytes) -> bytes | None:
        """The payload of `chunk` if it is exactly one event of one line, as nearly every read of a
        token stream is, and follows a whole one; it then need not be fed."""
        if (
            self._between_events
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n")
            and b"\r" not in chunk
        ):
            self._at_start = False
            return chunk[6:-2]
        return None

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads of the events that `chunk` completes, data lines joined by a line feed."""
        if (payload := self.alone(chunk)) is not None:
            return [payload]
        chunk = self._with_line_feeds(chunk)
        *lines, rest = chunk.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._end_line(self._take_line(line), events)
        if rest:
            self._line.append(rest)
            self._line_size += len(rest)
        self._between_events = not (self._line or self._data or self._at_start or self._after_cr)
        return events

    def pending(self) -> int:
        """Bytes held back: the unfinished line and the unfinished event's data."""
        return self._line_size + self._data_size

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" not in chunk:
            return chunk
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_line(self, last: bytes) -> bytes:
        if not self._line:
            line = last
        else:
            line = b"".join((*self._line, last))
            self._line.clear()
            self._line_size = 0
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        return line

    def _end_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            self._end_event(events)
        elif line.startswith(b"data:"):
            self._keep(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line.startswith(b":"):
            if self._on_comment is not None:
                self._on_comment(line[1:].removeprefix(b" "))
        elif line == b"data":
            self._keep(b"")

    def _keep(self, value: bytes) -> None:
        self._data.append(value)
        self._data_size += len(value)

    def _end_event(self, events: list[bytes]) -> None:
        if self._data:
            events.append(b"\n".join(self._data))
            self._data.clear()
            self._data_size = 0
