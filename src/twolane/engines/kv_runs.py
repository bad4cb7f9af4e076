"""A vLLM plugin: KV blocks are given out in runs, so that a transfer stays in few pieces.

vLLM keeps its free KV blocks in a queue, oldest first, as its prefix cache wants it. Once the pool
has been round, neighbours in the queue are no neighbours in memory, and NIXL needs one descriptor
for each block (`nixl_ascending.py` says what it can join). Here a free block's place is its
address: a large request gets the longest runs there are, ascending, a small one the lowest free
blocks, so that what is in use keeps together and the rest stays whole.

The price: the prefix cache loses low addresses first instead of what was longest unused. In a pool
that is far from full that hardly matters; where prompts share prefixes and the pool is tight it
does. vLLM's simple KV offloading walks the queue itself and cannot be used with this.

vLLM calls `register` in each of its processes. It does nothing unless VARIABLE is 1: an arm of a
campaign, or an engine of models.yaml, asks for it under `env`, for both engines of a pair.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

VARIABLE = "TWOLANE_KV_RUNS"
# Blocks that a request must ask for at once to be given long runs. A step of a prompt asks for
# hundreds or thousands, a request that decodes for one.
LARGE = 32


def register() -> None:
    """Give vLLM's block pool a queue of this kind, if VARIABLE is 1."""
    if os.environ.get(VARIABLE) == "1":
        module: Any = importlib.import_module("vllm.v1.core.block_pool")
        module.FreeKVCacheBlockQueue = FreeRuns


class FreeRuns:
    """The free blocks by address: what vLLM's block pool asks of `FreeKVCacheBlockQueue`.

    `blocks` holds every block of the pool, block i at index i, all free. Asking for more than is
    free raises ValueError, as vLLM's own queue does.
    """

    def __init__(self, blocks: Sequence[Any]) -> None:
        self._blocks = blocks
        self._free = np.ones(len(blocks), dtype=bool)
        self._lowest = 0  # no block below it is free
        self.num_free_blocks = len(blocks)

    def popleft(self) -> Any:
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Any]:
        """`n` blocks, ascending: the lowest, or those of the longest runs if they are many."""
        if n > self.num_free_blocks:
            raise ValueError(f"{n} KV blocks wanted, {self.num_free_blocks} free")
        ids = self._longest_runs(n) if n >= LARGE else self._lowest_blocks(n)
        self._free[ids] = False
        self.num_free_blocks -= n
        return [self._blocks[i] for i in ids]

    def remove(self, block: Any) -> None:
        """A free block is in use again: its content was found in the prefix cache."""
        if not self._free[block.block_id]:
            raise RuntimeError(f"KV block {block.block_id} is not free")
        self._free[block.block_id] = False
        self.num_free_blocks -= 1

    def append(self, block: Any) -> None:
        self.append_n([block])

    def append_n(self, blocks: Sequence[Any]) -> None:
        if not blocks:
            return
        ids = [block.block_id for block in blocks]
        self._free[ids] = True
        self._lowest = min(self._lowest, *ids)
        self.num_free_blocks += len(ids)

    prepend_n = append_n  # there is no front: an address is where it is

    def get_all_free_blocks(self) -> list[Any]:
        return [self._blocks[i] for i in np.flatnonzero(self._free)]

    def _lowest_blocks(self, n: int) -> list[int]:
        ids: list[int] = []
        for _ in range(n):
            self._lowest += int(self._free[self._lowest :].argmax())
            ids.append(self._lowest)
            self._lowest += 1
        return ids

    def _longest_runs(self, n: int) -> list[int]:
        free = np.flatnonzero(self._free)
        starts = np.flatnonzero(np.diff(free, prepend=-2) != 1)
        lengths = np.diff(starts, append=len(free))
        by_length = np.argsort(-lengths, kind="stable")
        enough = int(np.searchsorted(np.cumsum(lengths[by_length]), n)) + 1
        chosen = np.sort(by_length[:enough])
        ids = np.concatenate([free[starts[i] : starts[i] + lengths[i]] for i in chosen])
        return [int(i) for i in ids[:n]]
