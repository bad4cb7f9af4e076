"""A run is over when its devices are free, and that is proven."""

from __future__ import annotations

import os
from collections.abc import Collection

import pytest

from twolane import devices
from twolane.engines import release
from twolane.engines.release import SLACK_BYTES, Before
from twolane.errors import AnswerError, QuestionError

GIB = 1 << 30


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What GPU 3 says at each question: the first of these, the last one for ever."""
    says: list[int] = [GIB]

    def memory_used(gpus: Collection[int]) -> dict[int, int]:
        return {g: says.pop(0) if len(says) > 1 else says[0] for g in gpus}

    monkeypatch.setattr(devices, "memory_used", memory_used)
    monkeypatch.setattr(release, "_RETRY_S", 0.0)
    return says


async def test_memory_that_is_given_back_late_is_waited_for(used: list[int]) -> None:
    used[:] = [GIB, 80 * GIB, 40 * GIB, GIB + SLACK_BYTES]
    proof = await Before.read([3]).proof([])
    assert (proof["gpu3_memory_used_bytes"], proof["processes_left"]) == (GIB + SLACK_BYTES, 0)


async def test_a_gpu_that_stays_full_ends_the_run_with_its_number(used: list[int]) -> None:
    used[:] = [GIB, 80 * GIB]
    with pytest.raises(AnswerError, match=r"GPU 3 still has 80.0 GiB"):
        await Before.read([3]).proof([], patience_s=0.0)


async def test_a_process_that_lives_on_is_named() -> None:
    with pytest.raises(AnswerError, match=f"process {os.getpid()} still lives"):
        await Before.read([]).proof([os.getpid()], patience_s=0.0)


async def test_a_gpu_that_others_use_is_refused_before_anything_starts(used: list[int]) -> None:
    used[:] = [40 * GIB, 2 * GIB]
    await release.require_free([3])
    used[:] = [40 * GIB]
    with pytest.raises(QuestionError, match=r"GPU 3 has 40.0 GiB in use"):
        await release.require_free([3], patience_s=0.0)
