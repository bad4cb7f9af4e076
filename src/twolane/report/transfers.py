"""The KV transfer behind a split's worst pause: what moved, how long posting took, what helps.

Rules of this file: transfers are the receiving engine's own counters, read by samples; a pause and
a transfer are only laid beside each other where one transfer alone ended then.
"""

from __future__ import annotations

from twolane.analysis import stats
from twolane.analysis.results import Run
from twolane.analysis.work import Transfers, total, work
from twolane.clock import MS
from twolane.records import InterferenceCell, Request
from twolane.report.facts import Facts
from twolane.report.metrics import number, spoken

MOST = 0.5  # of the pause: posting for longer than this share is what makes it
IN_RUNS = "TWOLANE_KV_RUNS"


def told(moved: Transfers) -> str:
    """`1.02 GB in 125,000 descriptors, 0.78 s, of which ... posting for 0.71 s`."""
    return (
        f"{_amount(moved)} in {moved.descriptors:,.0f} descriptor{'s' * (moved.descriptors != 1)}, "
        f"{number(moved.xfer_s)} s, "
        f"of which the decode engine was posting for {number(moved.post_s)} s"
    )


def _amount(moved: Transfers) -> str:
    size = moved.moved_bytes / 1e9
    return spoken(size, "GB") if size >= 1 else spoken(size * 1e3, "MB")


def cause(facts: Facts, cell: InterferenceCell) -> str:
    """Of the first clean run of a split whose worst pause is mostly posting, a line each: what
    coincides, what moved, what helps; else empty."""
    for run in facts.results.runs:
        arm = facts.layouts.get(run.arm)
        if arm is None or not arm.split or facts.codes(run, cell) or _in_runs(run):
            continue
        if found := _explained(run, cell):
            pause_ms, moved = found
            pieces = f"{moved.descriptors:,.0f} piece{'s' * (moved.descriptors != 1)}"
            return "\n".join(
                [
                    f"one coincides with the {spoken(pause_ms, 'ms')} pause of {run.arm} in block "
                    f"{run.block + 1}",
                    f"It moved {_amount(moved)} in {pieces} (descriptors) and took "
                    f"{number(moved.xfer_s)} s, {number(moved.post_s)} s of it for posting by the "
                    "decode engine",
                    f"{IN_RUNS}=1 in both engines\u2019 environment joins the pieces",
                ]
            )
    return ""


def _in_runs(run: Run) -> bool:
    return any(engine.env.get(IN_RUNS) == "1" for engine in run.meta.engines)


def _explained(run: Run, cell: InterferenceCell) -> tuple[float, Transfers] | None:
    """The run's worst pause in ms with the one transfer that ended in or right after it."""
    requests = list(run.requests("victim", "aggressor", "null", cell=cell.id))
    hits = [(gap.length_ns, gap, one.request) for one in stats.victims(requests) if not one.null
            for gap in stats.gaps(one.request) if gap.overlaps(one.phases.hit)]  # fmt: skip
    if not hits:
        return None
    length, gap, reader = max(hits, key=lambda hit: hit[0])
    moved = _moved(run, requests, reader, (gap.start_ns, gap.end_ns))
    if moved is None or moved.count != 1 or moved.post_s * 1e9 <= MOST * length:
        return None
    return length / MS, moved


def _moved(
    run: Run, requests: list[Request], reader: Request, window: tuple[int, int]
) -> Transfers | None:
    done = work(run, requests)
    return total(done.during(done.engine_of(reader), window))
