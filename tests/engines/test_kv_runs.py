"""The pool of KV blocks gives out each free block once, large requests in runs."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
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
        assert got == sorted(set(got))
        assert len(got) == n
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


def test_a_large_request_gets_the_longest_run() -> None:
    blocks, queue = pool(300)
    queue.popleft_n(300)
    queue.append_n([blocks[i] for i in (*range(0, 40, 2), *range(100, 150), *range(200, 260))])
    assert ids(queue.popleft_n(55)) == list(range(200, 255))
    assert ids(queue.popleft_n(52)) == [*range(100, 150), *range(255, 257)]


def test_a_small_request_gets_the_lowest_blocks() -> None:
    blocks, queue = pool(300)
    queue.popleft_n(100)
    queue.append_n([blocks[70], blocks[3]])
    assert ids([queue.popleft(), *queue.popleft_n(2)]) == [3, 70, 100]


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
