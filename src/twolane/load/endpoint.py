"""A server that somebody else started: where it is, and what it says of itself."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Final

import msgspec

from twolane import clock
from twolane.errors import AnswerError, QuestionError
from twolane.records import UNREADABLE
from twolane.wire import address

LIST_S: Final = 10.0
"""How long a server may take to say what it serves."""


@dataclass(frozen=True)
class Server:
    """One OpenAI-compatible endpoint, as it described itself in /v1/models."""

    host: str
    port: int
    model: str
    context: int | None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


def find(url: str, model: str | None = None) -> Server:
    """The server at `url`, asked for its model and context. Blocking.

    Raises QuestionError for a URL or a model that cannot be, AnswerError if nobody answers.
    """
    try:
        parts = address.split(url if "//" in url else f"http://{url}")
        port = parts.port or 80
    except ValueError as error:
        raise QuestionError(
            f"{url!r} is not the base URL of a server: {error}",
            remedy="write e.g. http://127.0.0.1:8000",
        ) from None
    if parts.scheme != "http" or not parts.hostname or parts.path.rstrip("/") not in ("", "/v1"):
        raise QuestionError(
            f"{url!r} is not the base URL of a server",
            remedy="write e.g. http://127.0.0.1:8000 (plain HTTP, no path but /v1)",
        )
    listed = _models(f"http://{parts.hostname}:{port}")
    names = [str(one.get("id")) for one in listed]
    chosen = model or (names[0] if names else None)
    if chosen is None or (names and chosen not in names):
        raise QuestionError(
            f"no model {model!r}" if model else "the server names no model",
            place=url,
            remedy=f"--model with one of: {', '.join(names)}" if names else "give --model",
        )
    about: dict[str, Any] = next((one for one in listed if one.get("id") == chosen), {})
    length = about.get("max_model_len")
    return Server(parts.hostname, port, chosen, length if isinstance(length, int) else None)


def _whole(answer: HTTPResponse) -> bytes:
    """The answer's body. Raises TimeoutError where it comes byte by byte, or never ends."""
    deadline = clock.now_ns() + round(LIST_S * clock.NS)
    parts = []
    while part := answer.read1():
        parts.append(part)
        if clock.now_ns() > deadline:
            raise TimeoutError(f"it did not end within {LIST_S:.0f} s")
    return b"".join(parts)


def _models(base: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{base}/v1/models", timeout=LIST_S) as answer:
            told = msgspec.json.decode(_whole(answer))
    except urllib.error.HTTPError:
        return []  # it answers, and has no such list
    except (OSError, HTTPException, *UNREADABLE) as error:
        raise AnswerError(
            f"/v1/models cannot be read: {error}", place=base, remedy="is the server running?"
        ) from None
    data = told.get("data", []) if isinstance(told, dict) else []
    return [one for one in data if isinstance(one, dict)]
