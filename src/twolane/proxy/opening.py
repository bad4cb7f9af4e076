"""The beginning of a generated stream: everything until its first token.

An engine's head proves nothing: vLLM sends 200 before its scheduler has the request, and what
follows may be an error, nothing at all, or the page of some other server. Only a choice shows that
the engine works on this request, which at a decode engine means that it has the handoff's blocks.

Rules of this file: pure. What must be kept from the client until then, `leg` keeps.
"""

from __future__ import annotations

import msgspec

from twolane.records import UNREADABLE
from twolane.wire.sse import SseParser

_NULL = msgspec.Raw(b"null")


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] = []
    error: msgspec.Raw = _NULL


_decode = msgspec.json.Decoder(_Event).decode


def shows_choice(choices: list[msgspec.Raw]) -> bool:
    """Whether one of an answer's `choices` is one: an object."""
    return any(bytes(choice).startswith(b"{") for choice in choices)


class Opening:
    """What a stream has shown so far."""

    def __init__(self) -> None:
        self.taken = False  # an event with a choice
        self.error: bytes | None = None  # the first event that tells of an error
        self.strange = False  # an event that a token should have stood before
        self.kept_alive = False  # a comment: the engine wants its client to hear something
        self._parser = SseParser(self._heard)

    def _heard(self, _: bytes) -> None:
        self.kept_alive = True

    def feed(self, data: bytes) -> None:
        """The next bytes of the stream, however cut."""
        for event in self._parser.feed(data):
            if self._shows_choice(event):
                self.taken = True
                return
            self.strange = True

    def _shows_choice(self, event: bytes) -> bool:
        try:
            read = _decode(event)
        except UNREADABLE:
            return False
        if self.error is None and bytes(read.error) != b"null":
            self.error = event
        return shows_choice(read.choices)
