"""How many tokens came in an event: whether an engine's API server keeps up with its scheduler.

vLLM's API server, one process unless `--api-server-count` says more, hands on every stream's tokens
of every step. Where it falls behind, tokens of a stream that wait for it are merged into one event
(`RequestOutputCollector`, v1/engine/output_processor.py), and a first token waits as long: the
ledger has that time in the engine's rest. On two H200s the decode engine of a split gave 1.7 tokens
an event among 256 users and 1.0 with four API servers (docs/results/h200-two-servers).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from twolane.analysis.arms import flags
from twolane.analysis.results import Run
from twolane.records import Request

MERGED: Final = 1.1
"""Tokens an event from which a server is said to fall behind: one event in ten held two."""
BY_DESIGN: Final = ("--speculative-config", "-sc", "--spec-", "--stream-interval")
"""vLLM's options that put several tokens into an event however fast its server is."""
LEAST: Final = 20
"""Answers that must be seen: what a lone stream waits for may be what one long prompt left."""
SERVERS: Final = ("--api-server-count", "-asc")
_COUNT: Final = re.compile("[0-9]{1,4}")


class Delivered:
    """Answers, their tokens and their events, counted."""

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self.answers = self.tokens = self.events = 0
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        """An answer without a list of counts had one token an event; a list that does not hold the
        answer's tokens tells nothing."""
        if request.tokens and sum(request.tokens) != request.output_tokens:
            return
        self.answers += 1
        self.tokens += request.output_tokens
        self.events += len(request.tokens) or request.output_tokens

    @property
    def tokens_an_event(self) -> float | None:
        return self.tokens / self.events if self.events else None


def fell_behind(run: Run, delivered: Delivered) -> float | None:
    """Tokens an event, where they tell of an API server that could not keep up; else None."""
    rate = delivered.tokens_an_event
    if rate is None or rate < MERGED or delivered.answers < LEAST:
        return None
    return None if any(_by_design(engine.argv) for engine in run.meta.engines) else rate


def servers(run: Run) -> int:
    """API servers of an engine that answers clients, the fewest of any; vLLM's default is one."""
    answering = [flags(engine.argv) for engine in run.meta.engines if engine.role != "prefill"]
    return min((_count(given) for given in answering), default=1)


def _count(given: Mapping[str, str]) -> int:
    found = next((given[name] for name in SERVERS if name in given), "")
    return max(1, int(found)) if _COUNT.fullmatch(found) else 1


def _by_design(argv: list[str]) -> bool:
    return any(name.startswith(BY_DESIGN) for name in flags(argv))
