"""The top-level members of a large JSON object, found in small steps.

Rules of this file: pure, and never long at it. A decoder in C that reads 7 MB holds the
interpreter for 9 to 12 ms (a million token ids; text full of escapes), and every stream that is
relayed meanwhile stalls; a thread does not help, since such a decoder keeps the lock. So the scan
is a generator that gives control back after each slice. It frames by the rules that every JSON
parser shares (strings, escapes, brackets) and leaves the insides to the engine: what is not JSON
inside a value, the engine refuses.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import msgspec

from twolane.records import UNREADABLE

SLICE = 128 * 1024  # bytes looked at in one step; some hundred µs
_PROBE = 512  # most strings are short: look there before taking a slice
_NEAR = 64
_STEPS = 200  # brackets and strings in one step
_OPENING = (b"[", b"{")
_STRUCTURE = (b'"', b"[", b"]", b"{", b"}")

Raw = bytes | bytearray
Steps = Generator[None, None, int]
Spans = dict[str, tuple[int, int]]

_space = re.compile(rb"[ \t\r\n]*").match
_scalar = re.compile(rb"[^\s\",:\[\]{}]{1,400}").match
_unstructured = re.compile(rb'[^"\[\]{}]*').match


class NotAnObjectError(Exception):
    """The bytes are not one JSON object; the text says where they stop being one."""


def members(raw: Raw) -> Generator[None, None, Spans]:
    """Where each top-level value of `raw` begins and ends; the last of duplicate keys.

    Raises NotAnObjectError.
    """
    spans: Spans = {}
    at = _expect(raw, _skip_space(raw, 0), b"{")
    at = _skip_space(raw, at)
    if raw[at : at + 1] != b"}":
        while True:
            start = _expect(raw, at, b'"') - 1
            at = yield from _string(raw, start + 1)
            key = _decode_key(raw[start:at], start)
            start = _skip_space(raw, _expect(raw, _skip_space(raw, at), b":"))
            at = yield from _value(raw, start)
            spans[key] = (start, at)
            at = _skip_space(raw, at)
            if raw[at : at + 1] != b",":
                break
            at = _skip_space(raw, at + 1)
    at = _skip_space(raw, _expect(raw, at, b"}"))
    if at != len(raw):
        raise NotAnObjectError(f"something follows the object at byte {at}")
    return spans


def _skip_space(raw: Raw, at: int) -> int:
    found = _space(raw, at)
    return found.end() if found is not None else at


def _expect(raw: Raw, at: int, what: bytes) -> int:
    if raw[at : at + 1] != what:
        raise NotAnObjectError(f"expected {what.decode()} at byte {at}")
    return at + 1


def _decode_key(raw: Raw, at: int) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except UNREADABLE:
        raise NotAnObjectError(f"bad key at byte {at}") from None


def _value(raw: Raw, at: int) -> Steps:
    first = raw[at : at + 1]
    if first == b'"':
        return (yield from _string(raw, at + 1))
    if first in (b"[", b"{"):
        return (yield from _nest(raw, at + 1))
    found = _scalar(raw, at)
    if found is None:
        raise NotAnObjectError(f"expected a value at byte {at}")
    try:
        msgspec.json.decode(found.group())
    except UNREADABLE:
        raise NotAnObjectError(f"bad value at byte {at}") from None
    return found.end()


def _string(raw: Raw, at: int) -> Steps:
    """The position behind a string whose opening quote is before `at`."""
    end = raw.find(b'"', at, at + _PROBE)
    if end >= 0 and raw.find(b"\\", at, end) < 0:
        return end + 1
    size = _PROBE
    while at < len(raw):
        end = _whole_escapes(raw, at, at + size)
        quote = _closing_quote(raw, at, end)
        if quote >= 0:
            return quote + 1
        at, size = end, SLICE
        yield
    raise NotAnObjectError("a string does not end")


def _closing_quote(raw: Raw, at: int, end: int) -> int:
    """The first quote that is not escaped, or -1. Nothing is escaped at `at`."""
    quote = raw.find(b'"', at, end)
    if quote < 0 or raw.find(b"\\", at, quote) < 0:
        return quote
    # Same length, so that positions stay: first what escapes itself, then escaped quotes.
    piece = raw[at:end].replace(b"\\\\", b"..").replace(b'\\"', b"..")
    quote = piece.find(b'"')
    return at + quote if quote >= 0 else -1


def _whole_escapes(raw: Raw, at: int, end: int) -> int:
    """`end`, or one less where it would part a backslash from what it escapes. Nothing is
    escaped at `at`, so the backslashes before `end` pair up from their first one."""
    if end >= len(raw) or raw[end - 1] != 0x5C:
        return end
    piece = raw[at:end]
    return end - (len(piece) - len(piece.rstrip(b"\\"))) % 2


def _next_structure(raw: Raw, at: int) -> int:
    """The next bracket or quote, or where the slice ends without one.

    The expression is quick to start and slow to run (14 ns a byte), `find` the other way round.
    """
    found = _unstructured(raw, at, at + _NEAR)
    near = found.end() if found is not None else at
    if near < at + _NEAR:
        return near
    limit = min(len(raw), at + SLICE)
    for what in _STRUCTURE:
        position = raw.find(what, near, limit)
        limit = position if position >= 0 else limit
    return limit


def _nest(raw: Raw, at: int) -> Steps:
    """The position behind the array or object whose opening bracket is before `at`."""
    depth = 1
    steps = 0
    while depth:
        if at >= len(raw):
            raise NotAnObjectError("a bracket is not closed")
        at = _next_structure(raw, at)
        steps += 1
        what = raw[at : at + 1]
        if what not in _STRUCTURE or steps >= _STEPS:
            steps = 0
            yield
        if what == b'"':
            at = yield from _string(raw, at + 1)
        elif what in _STRUCTURE:
            depth += 1 if what in _OPENING else -1
            at += 1
    return at
