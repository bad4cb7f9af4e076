"""The golden engine keeps to its pace, runs as a program, and tells its account."""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
from tests import golden_engine
from tests.golden_engine import Pace, serve

ASKED = {
    "prompt": "abc",
    "max_tokens": 6,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


async def answer(port: int, asked: dict[str, object]) -> list[dict[str, object]]:
    """The events of one answer, read by an independent client."""
    url = f"http://127.0.0.1:{port}/v1/completions"
    headers = {"X-Request-Id": "one"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=asked, headers=headers) as response,
    ):
        text = await response.text()
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


async def test_it_writes_when_it_says() -> None:
    async with serve(Pace(ttft_s=0.05, gap_s=0.02, stalls={2: 0.1})) as (engine, port):
        events = await answer(port, ASKED)
    account = engine.by_id("one")
    since = [(written - account.received_ns) / 1e6 for written in account.written_ns]
    due = [50, 70, 190, 210, 230, 250]  # a late event does not shift those after it
    # Never early; how late is a matter of who else is on this host.
    assert all(when > planned - 1 for when, planned in zip(since, due, strict=True))
    assert since[-1] < 250 + 2000
    assert account.tokens == [1] * 6
    assert account.ended
    assert not account.left
    assert len(events) == 7


async def test_it_bursts_and_counts_several_tokens() -> None:
    async with serve(Pace(tokens_per_event=2, burst=3)) as (engine, port):
        events = await answer(port, ASKED)
    account = engine.by_id("one")
    assert account.tokens == [2, 2, 2]
    assert len(set(account.written_ns)) == 1
    assert [e["usage"]["completion_tokens"] for e in events] == [2, 4, 6, 6]  # type: ignore[index]


async def test_it_runs_as_a_program_and_tells_its_account() -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(golden_engine.__file__)),
        "--gap-ms",
        "1",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        port = int(await program.stdout.readline())
        await answer(port, ASKED)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/log") as response,
        ):
            (account,) = await response.json()
    finally:
        program.kill()
        await program.wait()
    assert account["tokens"] == [1] * 6
