"""Greedy texts as a run keeps them, to be compared between arms."""

from __future__ import annotations

from typing import Any

import pytest

from twolane.campaign import _continuation
from twolane.records import Request


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ({"text": "xyz"}, "xyz"),
        ({"text": ""}, ""),
        ({"text": None}, ""),
        ({"text": "xy", "error": "connection lost"}, "error: connection lost"),
        ({"error": "HTTP 500"}, "error: HTTP 500"),
    ],
)
def test_an_empty_answer_is_an_answer_and_a_failed_one_its_error(
    answer: dict[str, Any], kept: str
) -> None:
    request = Request(id="r", cell="greedy", role="greedy", index=0, send_ns=0, due_ns=0, **answer)
    assert _continuation(request) == kept
