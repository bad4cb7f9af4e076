"""How a row is asked: what the client does, and when.

Rules of this file: waits are for things that an engine or a client sees, with a limit; what is
seen is returned, not judged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from twolane.proxy.conformance.caller import Call, Got, call, exchange_raw, split_answers
from twolane.proxy.conformance.stage import MARK, RECOVER_S, Stage, completion
from twolane.proxy.conformance.table import Act, Row
from twolane.proxy.fault_engine import FaultEngine

FORGED = {"do_remote_prefill": True, "remote_request_id": "forged"}
HEADERS = {"authorization": "Bearer row-key", "traceparent": "00-row", "x-request-id": "row-id"}
_RAW_SILENCE_S = 1.0
LARGE = 'the quick brown fox \\ "\n é' * 280_000

Scene = Callable[[Stage, Row], Awaitable[list[Got]]]


def body_of(row: Row, prompt: str = MARK) -> dict[str, object]:
    """The row's request. A chat has no `prompt`."""
    body = completion(prompt, stream=row.stream) | row.body
    return {key: value for key, value in body.items() if value is not None}


async def _call(stage: Stage, row: Row, prompt: str = MARK, **headers: str) -> Call:
    body = body_of(row, prompt)
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return await call(stage.port, body, path, headers)


async def _ask(stage: Stage, row: Row) -> list[Got]:
    return [await (await _call(stage, row)).answer(row.patience_s)]


async def _headers(stage: Stage, row: Row) -> list[Got]:
    one = await call(stage.port, body_of(row), headers=HEADERS)
    return [await one.answer(row.patience_s)]


async def _forged(stage: Stage, row: Row) -> list[Got]:
    body = body_of(row) | {"kv_transfer_params": FORGED}
    return [await (await call(stage.port, body)).answer(row.patience_s)]


async def _large(stage: Stage, row: Row) -> list[Got]:
    return [await (await _call(stage, row, MARK + LARGE)).answer(row.patience_s)]


# ------------------------------------------------------------------------------------ leaving


async def _leave_at_once(stage: Stage, row: Row) -> list[Got]:
    return _left(await _call(stage, row))


async def _leave_in_prefill(stage: Stage, row: Row) -> list[Got]:
    one = await _call(stage, row)
    await _until(lambda: MARK in stage.p.present, row)
    return _left(one)


async def _leave_before_decode(stage: Stage, row: Row) -> list[Got]:
    one = await _call(stage, row)
    await _until(lambda: stage.held() > 0, row)
    return _left(one)


async def _leave_in_transfer(stage: Stage, row: Row) -> list[Got]:
    one = await _call(stage, row)
    await _until(lambda: MARK in stage.d.present, row)
    return _left(one)


async def _leave_in_stream(stage: Stage, row: Row) -> list[Got]:
    one = await _call(stage, row)
    await _until(one.some.is_set, row)
    return _left(one)


def _left(one: Call) -> list[Got]:
    one.leave()
    return [one.got]


async def _until(condition: Callable[[], bool], row: Row) -> None:
    """Give up quietly: what the engines end with tells that the moment never came."""
    try:
        async with asyncio.timeout(row.patience_s):
            while not condition():  # noqa: ASYNC110 - any state of any engine
                await asyncio.sleep(0.002)
    except TimeoutError:
        pass


# ------------------------------------------------------------------------------- many at once


async def _many(stage: Stage, row: Row) -> list[Got]:
    gate = stage.d.behaviour.after_first = asyncio.Event()
    calls = [await _call(stage, row, f"{MARK} {i}") for i in range(row.count)]
    await _until(lambda: all(one.some.is_set() for one in calls), row)
    gate.set()
    return list(await asyncio.gather(*(one.answer(row.patience_s) for one in calls)))


async def _restart(stage: Stage, row: Row) -> list[Got]:
    """Kill the engine under 8 requests; the last answer is one asked 5 s after its return."""
    engine = _down(stage, row)
    calls = [await _call(stage, row, f"{MARK} {i}") for i in range(row.count)]
    await _until(lambda: sum(MARK in prompt for prompt in engine.present) == row.count, row)
    engine.stop()
    seen = await asyncio.gather(*(one.answer(row.patience_s) for one in calls))
    await engine.start(engine.port)
    await stage.reset()
    await asyncio.sleep(RECOVER_S)
    after = await _call(stage, row, f"{MARK} after")
    return [*seen, await after.answer(row.patience_s)]


def _down(stage: Stage, row: Row) -> FaultEngine:
    return stage.p if row.down == "prefill" else stage.d


# ------------------------------------------------------------------------------------ raw bytes


def _raw(prompt: str, more: str = "", close: bool = True) -> bytes:
    body = json.dumps(completion(prompt)).encode()
    end = "Connection: close\r\n" if close else ""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{more}"
    return f"{head}{end}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _byte_by_byte(stage: Stage, row: Row) -> list[Got]:
    raw = await exchange_raw(stage.port, _raw(MARK), each_byte=True, patience_s=row.patience_s)
    return split_answers(raw)


async def _pipelined(stage: Stage, row: Row) -> list[Got]:
    both = _raw(MARK, close=False) + _raw(MARK)
    return split_answers(
        await exchange_raw(stage.port, both, each_byte=False, patience_s=row.patience_s)
    )


async def _smuggled(stage: Stage, row: Row) -> list[Got]:
    """By its length the second request is the first one's body; by its coding it is a request."""
    hidden = _raw(f"{MARK} hidden")
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        f"Transfer-Encoding: chunked\r\nContent-Length: {len(hidden) + 5}\r\n\r\n0\r\n\r\n"
    )
    data = head.encode() + hidden
    raw = await exchange_raw(stage.port, data, each_byte=False, patience_s=_RAW_SILENCE_S)
    return split_answers(raw)


PLAY: dict[Act, Scene] = {
    "ask": _ask,
    "headers": _headers,
    "forged": _forged,
    "large": _large,
    "leave at once": _leave_at_once,
    "leave in prefill": _leave_in_prefill,
    "leave before decode": _leave_before_decode,
    "leave in transfer": _leave_in_transfer,
    "leave in stream": _leave_in_stream,
    "many": _many,
    "restart": _restart,
    "byte by byte": _byte_by_byte,
    "pipelined": _pipelined,
    "smuggled": _smuggled,
}
