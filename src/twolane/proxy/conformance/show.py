"""Verdicts for people: a line a row as it ends, and a summary."""

from __future__ import annotations

import sys

from twolane.proxy.conformance.play import Outcome, Verdict


def line(verdict: Verdict) -> None:
    """One row of the table, at once: some rows take long."""
    mark = "ok  " if verdict.passed else "FAIL"
    text = f"{mark} {verdict.row:52} {verdict.client_saw:28} {verdict.engines_ended}\n"
    sys.stdout.write(text + "".join(f"       {what}\n" for what in verdict.complaints))
    sys.stdout.flush()


def nothing(_: Verdict) -> None:
    """For readers of JSON, who get the whole at the end."""


def summary(outcome: Outcome) -> str:
    """How many rows passed, and what happened to the router and to its other users."""
    good = sum(verdict.passed for verdict in outcome.verdicts)
    parts = [f"{good} of {len(outcome.verdicts)} rows passed"]
    if outcome.restarts:
        parts.append(f"the router had to be started anew {outcome.restarts} times")
    if outcome.background:
        wrong = len(outcome.background_wrong)
        served = outcome.background_streams
        parts.append(f"{served} background streams served, {wrong} wrong")
    return "; ".join([*parts, *outcome.background_wrong[:5]])
