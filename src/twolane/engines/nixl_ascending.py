"""A vLLM plugin: KV blocks are handed to NIXL in ascending order, so that it can join them.

NIXL makes one descriptor of neighbouring blocks where the next index is one more on both sides
(`nixlAgent::makeXferReq`). vLLM gives the blocks in the order of the tokens. From a fresh pool they
ascend; but vLLM frees a request's blocks last one first (`single_type_kv_cache_manager.py`,
`free`), and takes free blocks from the front of that queue: from the second round of the pool on
they descend, on both sides alike, and nothing can be joined. A million tokens in blocks of 16 are
then 125,000 descriptors instead of 2, posted by the thread that also runs the model.

The pairs of blocks are the same in any order, so the order may be chosen: by local index. Where the
two pools are in pieces (many requests decode at once, and each takes a block now and then), what is
left in pieces stays in pieces.

vLLM calls `register` in each of its processes. It does nothing unless VARIABLE is 1: an arm of a
campaign, or an engine of models.yaml, asks for it under `env`.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import numpy as np

VARIABLE = "TWOLANE_NIXL_ASCENDING"
# Of vLLM's own tree, so that it stands in the engine's log.
HEARD = f"{VARIABLE}=1 took effect"
_LOGGER = logging.getLogger("vllm.twolane")
_BINDINGS = ("nixl_cu13._api", "nixl_cu12._api")


def register() -> None:
    """Make every NIXL agent of this process sort what it is asked to move, if VARIABLE is 1."""
    if os.environ.get(VARIABLE) != "1":
        return
    for name in _BINDINGS:
        try:
            api = importlib.import_module(name)
        except ImportError:
            continue
        api.nixl_agent.make_prepped_xfer = _sorting(api.nixl_agent.make_prepped_xfer)
        _LOGGER.info("%s: NIXL gets KV blocks in ascending order", HEARD)


def _sorting(make: Any) -> Any:
    def make_prepped_xfer(self: Any, operation: str, *sides: Any, **named: Any) -> Any:
        local, mine, remote, theirs, *rest = sides
        mine, theirs = ascending(mine, theirs)
        return make(self, operation, local, mine, remote, theirs, *rest, **named)

    return make_prepped_xfer


def ascending(mine: Any, theirs: Any) -> tuple[Any, Any]:
    """The same pairs of blocks, ascending by the local one.

    `mine` and `theirs` hold one index each per pair: lists or int arrays of the same length.
    """
    # Stable: timsort takes ascending and descending runs as they are, so this is linear here.
    order = np.argsort(np.asarray(mine), kind="stable")
    return np.asarray(mine)[order], np.asarray(theirs)[order]
