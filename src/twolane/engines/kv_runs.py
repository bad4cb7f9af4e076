"""A vLLM plugin: KV blocks are given out in runs, so that a transfer stays in few pieces.

vLLM keeps its free KV blocks in a queue, oldest first, as its prefix cache wants it. Once the pool
has been round, neighbours in the queue are no neighbours in memory, and NIXL needs one descriptor
for each block (`nixl_ascending.py` says what it can join). Here a request for many blocks gets the
longest runs of neighbours, ascending, and one for few the lowest free blocks, so that what is in
use keeps together and the rest stays whole.

What the prefix cache may still want is touched last: blocks without cached content come first, then
those of the half that was longest unused. So the cache keeps its younger half as before, and loses
its older half by place and no longer strictly by age. vLLM's simple KV offloading walks the queue
itself and cannot be used with this.

vLLM calls `register` in each of its processes. It does nothing unless VARIABLE is 1: an arm of a
campaign, or an engine of models.yaml, asks for it under `env`, for both engines of a pair.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

VARIABLE = "TWOLANE_KV_RUNS"
# Of vLLM's own tree, so that it stands in the engine's log.
HEARD = f"{VARIABLE}=1 took effect"
_LOGGER = logging.getLogger("vllm.twolane")
# Blocks that a request must ask for at once to be given runs: more than one that decodes asks for.
# A prompt's step asks for its tokens over the KV block size: 512, or 16 with large KV blocks.
LARGE = 2
LONG = 32  # a run of so many is worth taking, even for a request of many more


def register() -> None:
    """Give vLLM's block pool a queue of this kind, if VARIABLE is 1."""
    if os.environ.get(VARIABLE) == "1":
        module: Any = importlib.import_module("vllm.v1.core.block_pool")
        module.FreeKVCacheBlockQueue = FreeRuns


class FreeRuns:
    """The free blocks by place and age: what vLLM's block pool asks of `FreeKVCacheBlockQueue`.

    `blocks` holds every block of the pool, block i at index i, all free. vLLM puts back in front
    what its prefix cache has no use for, and at the end what it may find again. Asking for more
    than is free raises ValueError, as vLLM's own queue does.
    """

    def __init__(self, blocks: Sequence[Any]) -> None:
        self._blocks = blocks
        self._blank = np.ones(len(blocks), dtype=bool)  # free, without cached content
        self._lowest = 0  # no block below it is blank
        self._since = np.zeros(len(blocks), dtype=np.int64)  # free, with content; when: 1, 2, ...
        self._by_age: deque[tuple[int, int]] = deque()  # (id, since); what was taken stays in it
        self._clock = 0
        self._next = 0  # where the last large request ended: the next step of its prompt goes on
        self.num_free_blocks = len(blocks)
        _LOGGER.info("%s: %d KV blocks are given out in runs", HEARD, len(blocks))

    def popleft(self) -> Any:
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Any]:
        """`n` blocks: of the longest runs, ascending, if they are many, else the lowest."""
        if n > self.num_free_blocks:
            raise ValueError(f"{n} KV blocks wanted, {self.num_free_blocks} free")
        ids = self._runs(n) if n >= LARGE else [self._one() for _ in range(n)]
        self._take(ids)
        return [self._blocks[i] for i in ids]

    def remove(self, block: Any) -> None:
        """A free block is in use again: its content was found in the prefix cache."""
        i = block.block_id
        if not self._blank[i] and not self._since[i]:
            raise RuntimeError(f"KV block {i} is not free")
        self._take([i])

    def append(self, block: Any) -> None:
        self.append_n([block])

    def append_n(self, blocks: Sequence[Any]) -> None:
        """Blocks are free whose content may be found again, the first to be lost first."""
        for block in blocks:
            self._clock += 1
            self._since[block.block_id] = self._clock
            self._by_age.append((block.block_id, self._clock))
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[Any]) -> None:
        """Blocks are free whose content nobody can find."""
        if blocks:
            ids = [block.block_id for block in blocks]
            self._blank[ids] = True
            self._lowest = min(self._lowest, *ids)
            self.num_free_blocks += len(ids)

    def get_all_free_blocks(self) -> list[Any]:
        return [self._blocks[i] for i in np.flatnonzero(self._blank | (self._since > 0))]

    def _take(self, ids: Sequence[int]) -> None:
        self._blank[ids] = False
        self._since[ids] = 0
        self.num_free_blocks -= len(ids)
        if len(self._by_age) > 2 * len(self._blocks):
            self._by_age = deque(one for one in self._by_age if self._since[one[0]] == one[1])

    def _one(self) -> int:
        """The lowest blank block, else the one that was longest unused; taken at once."""
        step = int(self._blank[self._lowest :].argmax()) if self._lowest < len(self._blank) else 0
        self._lowest += step
        if self._lowest < len(self._blank) and self._blank[self._lowest]:
            self._blank[self._lowest] = False
            return self._lowest
        self._lowest = len(self._blank)
        while True:
            i, since = self._by_age.popleft()
            if self._since[i] == since:
                self._since[i] = 0
                return i

    def _runs(self, n: int) -> list[int]:
        """The longest runs of blank blocks, or of these and the older half of the others."""
        runs = _Runs.of(self._blank)
        if runs.lengths[runs.lengths >= min(n, LONG)].sum() < n:
            runs = _Runs.of(self._blank | self._older(n - int(self._blank.sum())))
        ids = runs.beginning(self._next, n) or runs.longest(n)
        self._next = ids[-1] + 1
        return ids

    def _older(self, least: int) -> Any:
        """Which blocks with content are the older half, or as many as are needed at `least`."""
        ages = self._since[self._since > 0]
        count = max(least, len(ages) // 2)
        if count <= 0:
            return np.zeros(len(self._blank), dtype=bool)
        youngest = np.partition(ages, count - 1)[count - 1]
        return (self._since > 0) & (self._since <= youngest)


@dataclass(frozen=True)
class _Runs:
    """Runs of neighbours: their first blocks and their lengths, int arrays of one size."""

    starts: Any
    lengths: Any

    @classmethod
    def of(cls, free: Any) -> _Runs:
        """The runs among the blocks that the bool array `free` marks."""
        edges = np.diff(free.astype(np.int8), prepend=0, append=0)
        starts = np.flatnonzero(edges == 1)
        return cls(starts, np.flatnonzero(edges == -1) - starts)

    def beginning(self, start: int, n: int) -> list[int]:
        """The first `n` blocks of the run that begins at `start`; none if it is not so long."""
        at = int(np.searchsorted(self.starts, start))
        there = at < len(self.starts) and self.starts[at] == start and self.lengths[at] >= n
        return list(range(start, start + n)) if there else []

    def longest(self, n: int) -> list[int]:
        """`n` blocks, ascending, of as few runs as hold them; of the last its beginning."""
        order = np.argsort(-self.lengths, kind="stable")
        held = np.cumsum(self.lengths[order])
        last = int(np.searchsorted(held, n))
        chosen = order[: last + 1]
        taken = self.lengths[chosen].copy()
        taken[-1] -= held[last] - n
        starts = self.starts[chosen]
        spans = sorted(zip(starts.tolist(), (starts + taken).tolist(), strict=True))
        return [i for start, end in spans for i in range(start, end)]
