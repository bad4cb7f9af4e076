"""Proof that a run gave its devices back: no process of it, and the GPUs' memory as it was.

A driver frees the memory of a killed process a moment after it is gone, so it is asked again for
a while. What was found is kept in run.json; what is still held ends the run with an error, since
the next one would start on a device that is not free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import psutil

from twolane import devices
from twolane.clock import NS, now_ns
from twolane.errors import AnswerError, QuestionError

SLACK_BYTES: Final = 512 << 20
"""A driver's own bookkeeping may grow by some 100 MB a process that it has served."""

PATIENCE_S: Final = 20.0
_RETRY_S = 0.5


@dataclass(frozen=True)
class Before:
    """The devices' memory in use, by GPU, before a run; empty for cores."""

    used_bytes: dict[int, int]

    @classmethod
    def read(cls, gpus: Collection[int]) -> Before:
        return cls(devices.memory_used(gpus))

    async def proof(
        self, pids: Iterable[int], *, patience_s: float = PATIENCE_S
    ) -> dict[str, float]:
        """Figures by name once all is free: processes of `pids` left, each GPU's memory in use.

        Raises AnswerError, with the GPU and its bytes, if it is not within `patience_s`.
        """
        began = now_ns()
        while True:
            left = [pid for pid in pids if psutil.pid_exists(pid)]
            used = devices.memory_used(self.used_bytes)
            held = {g: b for g, b in used.items() if b > self.used_bytes[g] + SLACK_BYTES}
            waited = (now_ns() - began) / NS
            if not held and not left:
                figures = {f"gpu{g}_memory_used_bytes": float(b) for g, b in used.items()}
                return {"processes_left": 0.0, "waited_s": round(waited, 2), **figures}
            if waited > patience_s:
                raise _not_free(held, left)
            await asyncio.sleep(_RETRY_S)


OTHERS_BYTES: Final = 4 << 30
"""A desktop on a GPU holds a GiB or two; an engine that wants 0.9 of it does not start beside 4."""


async def require_free(gpus: Collection[int], *, patience_s: float = PATIENCE_S) -> None:
    """Raises QuestionError if one of `gpus` is in use, unless that ends within `patience_s`."""
    began = now_ns()
    while True:
        held = {g: b for g, b in devices.memory_used(gpus).items() if b > OTHERS_BYTES}
        if not held:
            return
        if (now_ns() - began) / NS > patience_s:
            gpu, used = next(iter(held.items()))
            raise QuestionError(
                f"GPU {gpu} has {used / devices.GIB:.1f} GiB in use before a run began",
                place="node.groups",
                remedy="find the holder with `nvidia-smi` and end it, or name other GPUs",
            )
        await asyncio.sleep(_RETRY_S)


def _not_free(held: dict[int, int], left: list[int]) -> AnswerError:
    said = [f"GPU {g} still has {b / devices.GIB:.1f} GiB in use" for g, b in held.items()]
    said += [f"process {pid} still lives" for pid in left]
    return AnswerError(
        f"devices are not free after the run: {'; '.join(said)}",
        place="node.groups",
        remedy="find the holder with `nvidia-smi` and end it, then run again with --resume",
    )
