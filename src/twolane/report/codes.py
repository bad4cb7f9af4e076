"""What each reason code means and what to do about it, in words; the rules are in `gates`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[str, str]] = {
    "INFLIGHT": "fewer requests in flight than asked for",
    "LITTLE": "throughput x time does not give the requests in flight",
    "CACHE": "another share of cached prompt tokens than the generator made",
    "RESET": "a prefix cache was not reset",
    "DEGENERATE": "not really split: the decode engine computed prompts, or transfers failed",
    "LENGTH": "output lengths differ from what was asked",
    "CLIENT": "the client's own delay is larger than the effect",
    "BUSY": "other programs used this host's CPU time during the cell",
    "NEEDLE": "answers wrong or unproven: no passed gate, or greedy text that differs between arms",
    "FAILED": "requests failed",
    "PREEMPT": "an engine preempted requests in the window",
    "UNSTEADY": "rate or in-flight drifts through the window",
    "DAMAGED": "its files are not what the run wrote: lines doubled, lost or edited since",
}
"""In the order of docs/how-we-measure.md."""

REMEDIES: Final[Mapping[str, str]] = {
    "INFLIGHT": "look for a limit on connections or on requests in the client or the router",
    "LITTLE": "the cell needs more waves, n of at least 4 times its users",
    "CACHE": "see that nobody else uses the engines, and that caches are emptied between cells",
    "RESET": "start the engines with VLLM_SERVER_DEV_MODE=1, or the cell anew",
    "DEGENERATE": "read the engines' logs with `twolane diagnose`: the KV did not come over",
    "LENGTH": "see why answers ended early: context, stop words, errors",
    "CLIENT": "use more load workers or a quieter machine",
    "BUSY": "close other programs, then: {again}",
    "NEEDLE": "do not trust these figures before needles are found here: see the gate's answers",
    "FAILED": "read the first error and the engines' logs with `twolane diagnose`",
    "PREEMPT": "give the engine more KV memory, or fewer users",
    "UNSTEADY": "make the window longer: a larger n, or more seconds, in the cell's line",
    "DAMAGED": "take the files from where they were copied, or: {again}",
}


LITTLE: Final = "LITTLE"  # the one code that measuring again does not cure


def remedy(code: str, again: str) -> str:
    """What to do about a code; `again` is the command that measures its point anew."""
    return REMEDIES.get(code, "").replace("{again}", again)


def means(code: str) -> str:
    return CODES.get(code, "a code this version does not know")
