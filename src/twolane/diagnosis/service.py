"""An engine under load in figures, whether they came from its log or from two metric scrapes.

Rules of this file: a plain record and the ratios that follow from it; the thresholds are the
rules'. Rates are tokens a second, times seconds. None means that the source does not say.
"""

from __future__ import annotations

from statistics import median

import msgspec

PREFILLING = 100.0  # prompt tokens/s of an interval that are a long prefill and not a last block


class Interval(msgspec.Struct, frozen=True):
    """One stats line: averages over a log interval (10 s)."""

    prompt_tok_s: float
    output_tok_s: float
    running: int
    waiting: int
    preemptions: int = 0
    kv_used: float = 0.0
    external_hit: float | None = None
    fetching: int = 0


class Service(msgspec.Struct, kw_only=True):
    """What one engine did."""

    where: str
    device: str = ""  # GPU or CPU
    consumer: bool | None = None  # a decode engine
    budget: int | None = None
    intervals: list[Interval] = []
    preemptions: int = 0
    transfers: int = 0
    transfer_bytes: float = 0.0
    transfer_s: float = 0.0
    post_s: float = 0.0
    descriptors: float = 0.0
    failed: int = 0
    expired: int = 0
    late: int = 0
    drafted: float = 0.0
    accepted: float = 0.0
    local_tokens: float | None = None  # prompt tokens that this engine computed
    external_tokens: float | None = None
    prompt_tokens: float | None = None
    cache_hits: float | None = None
    cache_queries: float | None = None
    requests: float | None = None
    stuck_kv: int = 0  # requests that waited for KV at both scrapes, with no token in between
    evidence: dict[str, str] = {}  # a line that shows it, by topic

    @property
    def bytes_s(self) -> float | None:
        """Mean rate of one rank's transfers."""
        return self.transfer_bytes / self.transfer_s if self.transfer_s > 0 else None

    @property
    def posting(self) -> float | None:
        """Share of the transfer time that went into posting descriptors."""
        return self.post_s / self.transfer_s if self.transfer_s > 0 else None

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def external_hits(self) -> list[float]:
        return [i.external_hit for i in self.intervals if i.external_hit is not None]

    def stall(self) -> tuple[float, float, float] | None:
        """Output a second of one stream in quiet intervals, beside prefills, and the prefill rate.

        None unless both kinds of interval were seen. Preempting intervals count as neither.
        """
        calm = [i for i in self.intervals if not i.preemptions]
        quiet = [i.output_tok_s / i.running for i in calm if i.prompt_tok_s < 1 and i.running]
        busy = [i for i in calm if i.prompt_tok_s >= PREFILLING and i.running > 1]
        if not quiet or not busy:
            return None
        beside = median(i.output_tok_s / i.running for i in busy)
        return median(quiet), beside, median(i.prompt_tok_s for i in busy)

    def silent_run(self) -> int:
        """The longest run of intervals with running requests and not one token."""
        best = now = 0
        for i in self.intervals:
            dead = i.running > 0 and i.prompt_tok_s == 0 and i.output_tok_s == 0
            now = now + 1 if dead else 0
            best = max(best, now)
        return best

    def stuck_fetches(self) -> int:
        """The longest run of intervals with requests waiting for KV and no other sign of life."""
        best = now = 0
        for i in self.intervals:
            dead = i.fetching > 0 and i.output_tok_s == 0 and i.prompt_tok_s == 0
            now = now + 1 if dead else 0
            best = max(best, now)
        return best
