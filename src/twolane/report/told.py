"""The shapes of what `twolane explain` tells, as its JSON has them.

Rules of this file: plain data. Names end in their unit; what is not known is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from twolane.analysis.changes import Change, Moved
from twolane.records import Finding


@dataclass(frozen=True)
class CodeTold:
    """Why a point enters no verdict; `arm` and `block` are those of its run."""

    code: str
    means: str
    why: str
    value: float | None
    limit: float | None
    remedy: str


@dataclass(frozen=True)
class LedgerTold:
    """One request's first token, or the request with the median one of `requests` alike."""

    who: str
    request: str
    requests: int
    ttft_ms: float
    parts_ms: dict[str, float]
    unexplained_ms: float
    unexplained_share: float
    median_unexplained_share: float
    finding: bool
    below_zero: list[str]
    tokens_an_event: float | None = None  # of all `requests`
    late_servers: int | None = None  # API servers of the engine, if they could not keep up


@dataclass(frozen=True)
class LegTold:
    engine: str
    doing: str
    request: str
    role: str
    prompt_tokens: int
    seconds: float
    covers: float  # share of the stall or wait


@dataclass(frozen=True)
class TransfersTold:
    count: int
    bytes: float
    descriptors: float
    seconds: float
    posting_s: float
    bytes_s: float | None
    posting_us_per_descriptor: float | None
    link_share: float | None  # of what the link can do


@dataclass(frozen=True)
class SpanTold:
    """What one engine counted between two of its samples; `start_s` since the run's first."""

    engine: str
    start_s: float
    seconds: float
    iterations: int | None
    tokens: int | None
    running: int | None
    waiting: int | None
    covers: float
    transfers: TransfersTold | None


@dataclass(frozen=True)
class StepTold:
    """One iteration of an engine, by its own log."""

    engine: str
    iteration: int
    prompt_tokens: int
    answer_tokens: int
    milliseconds: float
    covers: float


@dataclass(frozen=True)
class StallTold:
    request: str
    reader: int
    shot: int
    null: bool
    milliseconds: float
    threshold_ms: float
    phase: str
    after_send_s: float
    engine: str
    legs: list[LegTold]
    spans: list[SpanTold]
    iterations: list[StepTold]


@dataclass(frozen=True)
class MovedTold:
    """Transfers of a cell against the link: together, and by the span in which they ended."""

    link: str
    direction: str
    link_bytes_s: float | None
    total: TransfersTold
    spans: list[SpanTold]


@dataclass(frozen=True)
class DraftedTold:
    """Speculative decoding in a cell, by the engines' counters and by the lines of their logs;
    shares accepted are by position in a draft. `differ` if both are known and tell apart."""

    tokens_a_step: float | None
    accepted_shares: list[float]
    log_tokens_a_step: float | None
    log_tokens_a_step_least: float | None
    log_tokens_a_step_most: float | None
    log_accepted_shares: list[float]
    log_lines: int
    log_covers: float | None  # share of what was drafted in the cell
    differ: bool | None


@dataclass(frozen=True)
class CellTold:
    run: str
    arm: str
    block: int
    cell: str
    figures: dict[str, float | None]
    codes: list[CodeTold]
    ledgers: list[LedgerTold]
    stalls: list[StallTold]
    stalls_in_all: int
    transfers: MovedTold | None
    findings: list[Finding]
    others_cpu_share: float | None = None  # of the host's CPU time meanwhile
    lost_to_others_share: float | None = None  # of the worst-off engine's cores, at most
    drafted: DraftedTold | None = None


@dataclass(frozen=True)
class RequestTold:
    run: str
    arm: str
    block: int
    cell: str
    request: str
    role: str
    shot: int
    engine: str
    status: int
    error: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int
    e2e_ms: float | None
    worst_gap_ms: float | None
    ledger: LedgerTold | None
    beside: list[LegTold]  # other requests on its engines while it waited for its first token
    spans: list[SpanTold]  # its engines' own counts meanwhile
    stalls: list[StallTold]
    codes: list[CodeTold]  # of its cell


@dataclass(frozen=True)
class RunTold:
    run: str
    campaign: str
    arm: str
    block: int
    status: str
    error: str | None
    cells: list[CellTold]
    findings: list[Finding]


@dataclass(frozen=True)
class AgainstTold:
    """What changed from `before` to `after`; `figures` of cells that both runs have."""

    before: str
    after: str
    changes: list[Change]
    figures: list[Moved]
