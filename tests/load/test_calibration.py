"""What the client adds is told apart from what the server did."""

from itertools import pairwise

import pytest

from twolane.clock import MS
from twolane.config import parse_cell
from twolane.load.calibration import calibrate, resolution
from twolane.records import Request


def stream(id_: str, *arrivals_ms: float) -> Request:
    times = [round(t * MS) for t in arrivals_ms]
    return Request(
        id=id_, cell="c", role="victim", index=0, send_ns=0, due_ns=0, first_ns=times[0],
        last_ns=times[-1], gaps_ns=[b - a for a, b in pairwise(times)],
        output_tokens=len(times),
    )  # fmt: skip


def test_a_stall_of_the_server_is_not_the_clients() -> None:
    written = {"a": [10 * MS, 30 * MS, 530 * MS]}
    found = resolution("c", [stream("a", 11, 31, 531)], written)
    assert found is not None
    assert (found.stall_ms, found.late_p50_ms, found.events) == (0, 1, 3)


def test_a_stall_of_the_client_is_the_smallest_that_it_resolves() -> None:
    written = {"a": [10 * MS, 30 * MS, 50 * MS], "b": [10 * MS, 30 * MS]}
    found = resolution("c", [stream("a", 11, 31, 86), stream("b", 13, 31)], written)
    assert found is not None
    assert found.stall_ms == 35
    assert "resolved here: 35.0 ms" in str(found)


def test_streams_of_one_event_say_nothing() -> None:
    assert resolution("c", [stream("a", 11)], {"a": [10 * MS]}) is None


@pytest.mark.parametrize(
    "text", ["interference victims=2 prompt=60k", "c8 in64 out256 n80", "mix rate=20 60s"]
)
async def test_each_kind_is_calibrated_as_it_will_be_driven(text: str) -> None:
    found = await calibrate([parse_cell(text)])
    assert found is not None
    assert found.events > 50
    assert found.late_p50_ms > 0


async def test_a_cell_of_single_requests_needs_none() -> None:
    assert await calibrate([parse_cell("needle 1k"), parse_cell("fresh 1k")]) is None
