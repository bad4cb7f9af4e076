"""The one clock.

Rules of this file: every duration in twolane is a difference of two readings of `now_ns` on one
host. Wall time is for naming runs and never enters arithmetic. Readings of different hosts are
never subtracted; `boot_id` tells whether two readings share a clock.
"""

import time
from datetime import UTC, datetime
from pathlib import Path

NS = 1_000_000_000
MS = 1_000_000


def now_ns() -> int:
    """Nanoseconds of CLOCK_MONOTONIC, which all processes of one booted host share."""
    return time.monotonic_ns()


def wall() -> datetime:
    """Present UTC time, for names and for the reader; never for durations."""
    return datetime.now(UTC)


def boot_id() -> str:
    """Identity of this boot of this host: two stamps may be subtracted only if theirs agree."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
