"""Cutting logs: what is skipped, what is kept, prefixes, chunks and line numbers."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.diagnosis.logs import EAGER_CHUNKS, Line, chunks, split

HEAD = "(Worker_TP0 pid=3811) {} 11-29 14:56:46 [core.py:1510] "


def kept(text: str, size: int = 1 << 20) -> list[Line]:
    stream = io.BytesIO(text.encode())
    return [chunk.line(start) for chunk in chunks(stream, size) for start in chunk.starts()]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\r",
        'INFO:     127.0.0.1:3 - "GET /health HTTP/1.1" 200 OK',
        '(APIServer pid=9) INFO:     127.0.0.1:3 - "GET /health HTTP/1.1" 200 OK',
        HEAD.format("INFO") + "Using FLASH_ATTN backend.",
        HEAD.format("DEBUG") + "ERROR in a debug line",
        "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m INFO 11-29 14:56:46 [core.py:1] Starting",
        "INFO 11-29 14:56:46 [core.py:1] Starting",
    ],
)
def test_skips_what_no_rule_reads(line: str) -> None:
    assert kept(line + "\n") == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (HEAD.format("ERROR") + "boom", "boom"),
        (HEAD.format("WARNING") + "hm", "hm"),
        (
            HEAD.format("INFO") + "Auto-fit max_model_len: reduced",
            "Auto-fit max_model_len: reduced",
        ),
        ("INFO:     Application startup complete.", "INFO:     Application startup complete."),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("(APIServer pid=9290)     raise RuntimeError(", "    raise RuntimeError("),
        ("\x1b[0;36m(EngineCore pid=7)\x1b[0;0m ERROR 11-29 14:56:46 [core.py:1] x", "x"),
        ("Loading: 10%\rLoading: 99%\rdone", "done"),
        ("ERROR 11-29 14:56:46.123 [core.py:1] x", "ERROR 11-29 14:56:46.123 [core.py:1] x"),
    ],
)
def test_keeps_what_a_rule_could_read(line: str, text: str) -> None:
    assert [found.text for found in kept(line + "\n")] == [text]


def test_a_prefix_is_taken_apart() -> None:
    line = split((HEAD.format("ERROR") + "boom\r").encode(), 7, 0)
    assert line == Line("boom", "Worker_TP0 pid=3811", "ERROR", "11-29 14:56:46", 7, 0)


@given(
    st.lists(st.sampled_from(["boom", "", "x" * 50, 'INFO:     "GET"', "boom\r"]), max_size=30),
    st.integers(1, 64),
    st.booleans(),
)
def test_chunks_lose_and_double_nothing(lines: list[str], size: int, complete: bool) -> None:
    text = "\n".join(lines) + ("\n" if complete else "")
    expected = [
        (number, line.rstrip("\r"))
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("INFO:")
    ]
    assert [(found.number, found.text) for found in kept(text, size)] == expected


def test_the_lines_before_are_those_of_the_same_process() -> None:
    one, other = HEAD.format("ERROR"), HEAD.format("ERROR").replace("TP0 pid=3811", "TP1 pid=3812")
    text = f"{one}a\n{other}b\n{one}c\n{other}d\n{one}e\n"
    (chunk,) = chunks(io.BytesIO(text.encode()))
    last = chunk.line(chunk.starts()[-1])
    assert chunk.before(last, 2) == ["a", "c"]


def test_steady_figures_are_sampled_and_failures_never() -> None:
    steady = HEAD.format("INFO") + (
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 9.0 tokens/s, "
        "Running: 8 reqs, Waiting: 0 reqs{}, GPU KV cache usage: 12.0%\n"
    )
    transfer = HEAD.format("INFO") + (
        "KV Transfer metrics: Num successful transfers=3, Avg xfer time (ms)=1, Num failed "
        "transfers={}, Num KV expired reqs=0, Num notifs after expiry=0\n"
    )
    block = steady.format("") + transfer.format(0)
    text = block * (EAGER_CHUNKS + 2)
    rare = text + steady.format(", Preemptions: 3") + transfer.format(1)
    assert len(kept(rare, len(block))) - len(kept(text, len(block))) == 2
    assert len(kept(text, len(block))) < 2 * (EAGER_CHUNKS + 2)


def test_transfer_lines_of_an_older_engine_are_sampled_too() -> None:
    older = HEAD.format("INFO") + (
        "KV Transfer metrics: Num successful transfers=3, Avg number of descriptors=9.0\n"
    )
    assert len(kept(older * 9, len(older))) < 9
