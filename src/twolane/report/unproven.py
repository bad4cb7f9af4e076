"""Campaigns that cannot prove their answers, so that no point of them enters a verdict.

Rules of this file: to measure such points again changes nothing, so what is said to do is what
would prove the answers: real weights, or a gate.
"""

from __future__ import annotations

from collections.abc import Collection

from twolane.analysis.arms import dummy_weights
from twolane.report.facts import Facts

NEEDLE = "NEEDLE"


def made_up(facts: Facts) -> bool:
    """Whether the engines of some run made their weights up."""
    return any(dummy_weights(run.meta.engines) for run in facts.results.runs)


def remedy(facts: Facts, codes: Collection[str]) -> str:
    """What would give a verdict where the code NEEDLE is there by the campaign's own plan."""
    if NEEDLE not in codes:
        return ""
    if made_up(facts):
        return "real weights are needed for a verdict"
    if any(run.meta.config.get("gates") == [] for run in facts.results.runs):
        return "add gates to the campaign, as in `gates: [needle 2000]`"
    return ""
