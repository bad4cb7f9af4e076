"""Answers that the proxy gives in its own name, in OpenAI's shape.

Rules of this file: no text here names an engine, an address or a handoff's content; those belong
in the log. An upstream's error keeps its status, and its message if it was OpenAI-shaped.
"""

from __future__ import annotations

import re
from http import HTTPStatus

import msgspec

from twolane.records import UNREADABLE

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
_RETRY_AFTER_S = 1
_MAX_MESSAGE = 2000
_TYPES_OF_MEMBERS = re.compile(r"\d+ validation errors?:")


class ErrorBody(msgspec.Struct):
    """The object under `error`. vLLM gives `code` as a number, OpenAI as a string."""

    message: str = ""
    type: str | None = None
    param: str | int | None = None
    code: str | int | None = None


class _Envelope(msgspec.Struct):
    error: ErrorBody


class RefusalError(Exception):
    """The request cannot be served: what the client is told, and why, for the log."""

    def __init__(
        self, status: int, message: str, *, why: str = "", kind: str | None = None
    ) -> None:
        super().__init__(why or message)
        self.status = status
        self.error = ErrorBody(message, kind or error_type(status), None, status)
        self.again = False  # whether the engines may be asked once more
        self.retry_after_s: int | str | None = _RETRY_AFTER_S if status in (429, 503) else None

    @property
    def body(self) -> bytes:
        return error_body(self.error)


def error_body(error: ErrorBody) -> bytes:
    return msgspec.json.encode(_Envelope(error))


def error_type(status: int) -> str:
    return _TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError")


def from_upstream(status: int, body: bytes, retry_after: str | None) -> RefusalError:
    """An engine's error answer as ours: same status, same message where it can be trusted. What
    is neither 200 nor the status of an error is a bad gateway."""
    if not 400 <= status < 600:
        return RefusalError(502, _message(status, b""), why="the engine answered so")
    refusal = RefusalError(status, _message(status, body), why="the engine answered so")
    given = _openai_error(body)
    if given is not None:
        refusal.error.type = given.type or refusal.error.type
        refusal.error.param = given.param
        refusal.error.code = given.code if given.code is not None else status
    if retry_after is not None:
        refusal.retry_after_s = retry_after
    return refusal


def from_error(answer: bytes | None) -> RefusalError | None:
    """An error that came with status 200, as the status that it names; None where it is none."""
    given = _openai_error(answer or b"")
    if given is None:
        return None
    named = given.code if isinstance(given.code, int) else 0
    return from_upstream(named if 400 <= named < 600 else 500, answer or b"", None)


def of_form(answer: bytes) -> bool:
    """Whether vLLM 0.32 refused a request before it looked for a handoff in it: for a member's
    type, or for the one rule between members that P is not asked with."""
    given = _openai_error(answer)
    if given is None:
        return False
    return given.param == "stream_options" or _TYPES_OF_MEMBERS.match(given.message) is not None


def _message(status: int, body: bytes) -> str:
    given = _openai_error(body)
    if given is not None and given.message:
        return given.message[:_MAX_MESSAGE]
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "unknown status"
    return f"the engine answered {status} ({phrase})"


def _openai_error(body: bytes) -> ErrorBody | None:
    try:
        return msgspec.json.decode(body, type=_Envelope).error
    except UNREADABLE:
        return None
