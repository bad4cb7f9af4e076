"""Campaigns that cannot prove their answers, so that no point of them enters a verdict.

Rules of this file: to measure such points again changes nothing, so what is said to do is what
would prove the answers: real weights, or a gate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from twolane.analysis.arms import dummy_weights
from twolane.analysis.results import Run
from twolane.report.facts import Facts

NEEDLE = "NEEDLE"


def made_up(facts: Facts) -> bool:
    """Whether the engines of some run made their weights up."""
    return any(dummy_weights(run.meta.engines) for run in facts.results.runs)


def remedy(facts: Facts, codes: Collection[str]) -> str:
    """What would give a verdict where the code NEEDLE is there by the campaign's own plan."""
    return of_runs(facts.results.runs, codes)


def of_runs(runs: Iterable[Run], codes: Collection[str]) -> str:
    """The same of some runs."""
    metas = [run.meta for run in runs]
    if NEEDLE not in codes:
        return ""
    if any(dummy_weights(meta.engines) for meta in metas):
        return "real weights are needed for a verdict"
    if any(meta.config.get("gates") == [] for meta in metas):
        return "add gates to the campaign, as in `gates: [needle 2000]`"
    return ""
