"""What all engines held together, at the moments of a window."""

from pathlib import Path

import pytest

from twolane.engines import metrics
from twolane.engines.sampler import Sampler
from twolane.errors import EngineError

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@pytest.mark.parametrize(
    ("values", "held"), [({RUNNING: 3, WAITING: 2}, 5), ({RUNNING: 3}, None), ({}, None)]
)
def test_an_engine_holds_what_runs_and_what_waits(
    values: dict[str, float], held: float | None
) -> None:
    assert metrics.in_flight(values) == held


async def test_a_moment_counts_only_if_every_engine_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [{RUNNING: 3.0, WAITING: 1.0}, {RUNNING: 2.0, WAITING: 0.0}, {}, {}]

    def scrape(url: str) -> dict[str, float]:
        answer = answers.pop(0)
        if not answer:
            raise EngineError("gone")
        return answer

    monkeypatch.setattr(metrics, "scrape", scrape)
    sampler = Sampler(tmp_path / "metrics.jsonl")
    async with sampler.every_second({"a": "http://a", "b": "http://b"}):
        await sampler.take("begin")
        await sampler.take("end")
    sampler.close()
    assert sampler.in_flight((0, 1 << 62)) == [6]
    assert sampler.in_flight((0, 1)) == sampler.in_flight(None) == []
