"""The table before real processes: twolane's own proxy, and a router that is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from twolane.errors import AnswerError, QuestionError
from twolane.proxy.conformance.play import Verdict, play
from twolane.proxy.conformance.table import rows

TWOLANE = [
    *(sys.executable, "-m", "twolane", "proxy"),
    *("--prefill", "{prefill}", "--decode", "{decode}", "--port", "{port}"),
]
CHOSEN = ("a good", "decode answers 400", "n = 2", "between the legs", "smuggled", "two requests")

# No prefill at all: all requests go to the decode engine as they are.
PASSES_ON = """
import asyncio, sys
async def serve(reader, writer):
    other, out = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    async def pump(a, b):
        while data := await a.read(65536):
            b.write(data)
        b.close()
    await asyncio.gather(pump(reader, out), pump(other, writer))
async def main():
    await (await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(main())
"""


async def test_twolane_passes(tmp_path: Path) -> None:
    table = [row for row in rows() if row.name.startswith(CHOSEN) or CHOSEN[3] in row.name]
    told: list[Verdict] = []
    outcome = await play(TWOLANE, table, tmp_path / "log", background=8, told=told.append)
    assert outcome.passed, outcome
    assert (outcome.restarts, told) == (0, outcome.verdicts)


async def test_a_router_that_does_not_split_is_found_out(tmp_path: Path) -> None:
    script = tmp_path / "router.py"
    script.write_text(PASSES_ON)
    argv = [sys.executable, str(script), "{port}", "{decode_port}"]
    table = [row for row in rows() if row.name in {"a good request", "headers reach both engines"}]
    outcome = await play(argv, table, tmp_path / "log")
    good, headers = outcome.verdicts
    assert good.passed
    assert headers.complaints == ["P did not get authorization, traceparent, x-request-id"]


async def test_a_router_that_does_not_start_is_named(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('bad flag')", "{port}"]
    with pytest.raises(AnswerError, match="no right answer"):
        await play(argv, rows(), tmp_path / "log")
    assert "bad flag" in (tmp_path / "log").read_text()


async def test_a_command_without_a_port_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match=r"no \{port\}"):
        await play(["router"], rows(), tmp_path / "log")
