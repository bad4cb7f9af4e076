"""The pool of KV blocks gives out each free block once, large requests in runs."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import logging
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twolane.engines import kv_runs
from twolane.engines.kv_runs import FreeRuns


def pool(count: int) -> tuple[list[Any], FreeRuns]:
    blocks = [SimpleNamespace(block_id=i) for i in range(count)]
    return blocks, FreeRuns(blocks)


def ids(blocks: list[Any]) -> list[int]:
    return [block.block_id for block in blocks]


class Pool(RuleBasedStateMachine):
    """Whatever is taken, found again and freed, the queue agrees with a plain set."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.queue = pool(200)
        self.free = set(range(200))

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(self.free)))
        got = ids(self.queue.popleft_n(n))
        assert len(set(got)) == len(got) == n
        assert n < kv_runs.LARGE or got == sorted(got)
        assert set(got) <= self.free
        self.free -= set(got)

    @precondition(lambda self: len(self.free) < 200)
    @rule(data=st.data(), front=st.booleans())
    def give_back(self, data: st.DataObject, front: bool) -> None:
        used = sorted(set(range(200)) - self.free)
        back = data.draw(st.lists(st.sampled_from(used), unique=True))
        put = self.queue.prepend_n if front else self.queue.append_n
        put([self.blocks[i] for i in back])
        self.free |= set(back)

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def find_again(self, data: st.DataObject) -> None:
        i = data.draw(st.sampled_from(sorted(self.free)))
        self.queue.remove(self.blocks[i])
        self.free.remove(i)

    @invariant()
    def it_knows_what_is_free(self) -> None:
        assert self.queue.num_free_blocks == len(self.free)
        assert set(ids(self.queue.get_all_free_blocks())) == self.free


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPool = Pool.TestCase


def test_a_large_request_gets_the_longest_runs() -> None:
    blocks, queue = pool(300)
    queue.popleft_n(300)
    queue.prepend_n([blocks[i] for i in (*range(0, 40, 2), *range(100, 150), *range(200, 260))])
    assert ids(queue.popleft_n(55)) == list(range(200, 255))
    assert ids(queue.popleft_n(52)) == [*range(100, 150), *range(255, 257)]


def test_the_steps_of_one_prompt_follow_each_other() -> None:
    blocks, queue = pool(300)
    queue.popleft_n(300)
    queue.prepend_n([blocks[i] for i in (*range(150), *range(151, 290))])
    assert ids([*queue.popleft_n(40), *queue.popleft_n(40)]) == list(range(80))


def test_a_small_request_gets_the_lowest_blocks_without_content() -> None:
    blocks, queue = pool(300)
    queue.popleft_n(100)
    queue.append_n([blocks[1]])
    queue.prepend_n([blocks[70], blocks[3]])
    assert ids([queue.popleft() for _ in range(3)]) == [3, 70, 100]


def test_content_is_lost_last_and_the_oldest_first() -> None:
    blocks, queue = pool(100)
    queue.popleft_n(100)
    queue.append_n([blocks[i] for i in (9, 8, 7, 50, 51)])
    assert ids([queue.popleft(), queue.popleft()]) == [9, 8]
    queue.remove(blocks[7])
    assert queue.popleft().block_id == 50


def test_the_younger_half_of_what_was_kept_stays() -> None:
    blocks, queue = pool(400)
    queue.popleft_n(400)
    for start in (300, 200, 100, 0):  # the oldest is the last in memory
        queue.append_n([blocks[i] for i in reversed(range(start, start + 100))])
    assert ids(queue.popleft_n(150)) == list(range(200, 350))
    assert set(ids(queue.get_all_free_blocks())) == {*range(200), *range(350, 400)}


def test_singles_without_content_do_not_break_up_a_long_request() -> None:
    blocks, queue = pool(300)
    queue.popleft_n(300)
    queue.prepend_n([blocks[i] for i in range(0, 100, 2)])
    queue.append_n([blocks[i] for i in range(100, 300)])
    assert ids(queue.popleft_n(40)) == list(range(100, 140))


def test_more_than_is_free_is_refused() -> None:
    _, queue = pool(3)
    with pytest.raises(ValueError, match="4 KV blocks wanted, 3 free"):
        queue.popleft_n(4)


def test_a_block_in_use_is_not_taken_out_again() -> None:
    blocks, queue = pool(3)
    queue.popleft()
    with pytest.raises(RuntimeError, match="KV block 0 is not free"):
        queue.remove(blocks[0])


@pytest.mark.parametrize(("value", "put"), [("1", True), ("0", False), ("", False)])
def test_the_pool_of_vllm_gets_it_where_the_variable_says_so(
    monkeypatch: pytest.MonkeyPatch, value: str, put: bool
) -> None:
    module = SimpleNamespace(FreeKVCacheBlockQueue=None)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    monkeypatch.setenv(kv_runs.VARIABLE, value)
    kv_runs.register()
    assert (module.FreeKVCacheBlockQueue is FreeRuns) == put


def test_it_answers_all_that_vllms_pool_asks() -> None:
    """Read from the installed vLLM: a call that FreeRuns lacks would fail under load."""
    import vllm

    source = Path(vllm.__file__).parent / "v1/core/block_pool.py"
    asked = set(re.findall(r"free_block_queue\.(\w+)", source.read_text()))
    assert asked >= {"popleft_n", "append_n", "remove", "num_free_blocks"}
    assert asked <= {*dir(FreeRuns), "num_free_blocks"}


def test_vllm_finds_the_plugin() -> None:
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [p.load() for p in points if p.name == "twolane_kv_runs"] == [kv_runs.register]


# --------------------------------------------------------------- in vLLM's own pool of blocks


class Request:
    def __init__(self, hashes: list[Any]) -> None:
        self.request_id, self.block_hashes = "any", hashes


@pytest.fixture
def blocks_of_vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes vLLM's pool, of 4,000 blocks, on the queue that it is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, at its import
        from vllm.v1.core import block_pool

    def made(queue: Any) -> Any:
        monkeypatch.setattr(block_pool, "FreeKVCacheBlockQueue", queue)
        return block_pool.BlockPool(4000, True, 16)

    return made


def prefilled(pool: Any, text: str, count: int) -> tuple[int, list[Any]]:
    """`count` blocks of a prompt, and how many of them the prefix cache had."""
    from vllm.v1.core.kv_cache_utils import BlockHash

    hashes = [BlockHash(f"{text}/{i}".encode()) for i in range(count)]
    hits = itertools.takewhile(bool, (pool.get_cached_block(h, [0]) for h in hashes[:-1]))
    blocks = [hit[0] for hit in hits]
    known = len(blocks)
    pool.touch(blocks)
    blocks += pool.get_new_blocks(count - known)
    pool.cache_full_blocks(Request(hashes), blocks, known, count, 16, 0)
    return known, blocks


def test_the_prefix_cache_finds_growing_conversations_again(blocks_of_vllm: Any) -> None:
    pool = blocks_of_vllm(FreeRuns)
    reader = pool.get_new_blocks(8)
    for turn, user in itertools.product(range(1, 8), "abc"):
        known, blocks = prefilled(pool, user, 50 * turn)
        assert known == 50 * (turn - 1)
        pool.free_blocks(reversed(blocks))
        reader += pool.get_new_blocks(1)


def test_a_long_prompt_stays_in_few_pieces_once_the_pools_have_aged(blocks_of_vllm: Any) -> None:
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

    def most(queue: Any) -> int:
        prefill, decode, found = blocks_of_vllm(queue), blocks_of_vllm(queue), 0
        active: list[list[Any]] = []
        for turn in range(60):
            many = 1500 if turn % 6 == 5 else 40 + 7 * (turn % 5)
            p, d = (prefilled(pool, f"{turn}", many)[1] for pool in (prefill, decode))
            both = [(a.block_id, b.block_id) for a, b in zip(p, d, strict=True)]
            broken = sum(b != (a[0] + 1, a[1] + 1) for a, b in itertools.pairwise(both))
            found = max(found, broken) if many == 1500 and turn > 20 else found
            prefill.free_blocks(reversed(p))
            active.append(d)
            for blocks in active:
                blocks.extend(decode.get_new_blocks(3))
            if len(active) > 8:
                decode.free_blocks(reversed(active.pop(turn % 8)))
            if many == 1500:
                decode.free_blocks(reversed(active.pop()))
        return found

    assert most(FreeRuns) < 40
    assert most(FreeKVCacheBlockQueue) > 300


def test_the_engines_log_tells_that_it_took_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="vllm.twolane"):
        pool(3)
    assert [record.getMessage() for record in caplog.records] == [
        f"{kv_runs.HEARD}: 3 KV blocks are given out in runs"
    ]
