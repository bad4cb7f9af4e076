"""What a campaign is about to do, and how long that should take, before anything starts.

Rules of this file: whatever can refuse a campaign refuses it here, so that `--dry-run` and the
real run say the same. Nothing is started and nothing on disk is changed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from twolane import devices, earlier, plan, resume
from twolane.analysis import stats
from twolane.config import Campaign, parse_cell
from twolane.config.source import nearest
from twolane.engines import installed
from twolane.errors import Faults, QuestionError
from twolane.inspection import doubts, preflight_campaign
from twolane.pace import CPU, GPU, Pace, Span, Speed, clock_text
from twolane.plan import PlannedRun
from twolane.records import AnyCell
from twolane.report.codes import CODES
from twolane.resume import Left

_NAMED = 3  # folders that a line names

CALIBRATION_S = 10.0
"""What the client's own calibration takes, and the report at the end."""


@dataclass(frozen=True)
class Schedule:
    """The runs that are left to do, in order, and what is known beforehand.

    `folder` is the one to go on in, None for a new one; `total` counts the campaign's runs, done
    or not; `pace` has seen `measured_in`, an earlier folder of the same campaign, if there is one,
    and `learnt_from`, folders of other campaigns of its model on this host.
    `obstacle` is why this host cannot run it; `notes` are what a person should know before.
    """

    campaign: Campaign
    left: Left
    folder: Path | None
    total: int
    pace: Pace
    measured_in: Path | None
    obstacle: QuestionError | None = None
    notes: tuple[str, ...] = ()
    learnt_from: tuple[Path, ...] = ()

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        return self.left.runs

    def span(self, run: PlannedRun) -> Span:
        """How long this run should take, and between what."""
        return self.pace.run_span_s(run.arm.name, self.campaign.gates, self.campaign.cells)

    def seconds(self, run: PlannedRun) -> float:
        """How long this run should take."""
        return self.span(run).expect

    def exceeds(self, gone_s: float, run: PlannedRun) -> bool:
        """Whether `run`, begun after so many seconds, would end after the campaign's budget.

        Not the first one: a budget in which nothing fits would measure nothing for ever.
        """
        budget = self.campaign.time_budget_s
        first = run is self.runs[0]
        return budget is not None and not first and gone_s + self.seconds(run) > budget

    @property
    def lasts(self) -> Span:
        """How long all that is left should take."""
        calibration = CALIBRATION_S if self.runs else 0.0
        start = Span(calibration, calibration, calibration)
        return sum(map(self.span, self.runs), start)

    @property
    def total_s(self) -> float:
        return self.lasts.expect

    @property
    def basis(self) -> str:
        """Where the expected times come from."""
        if self.measured_in is not None:
            return f"as long as it took in {self.measured_in}"
        if self.learnt_from:
            named = ", ".join(str(folder) for folder in self.learnt_from[-_NAMED:])
            return f"as this model took here in {named}; what was not seen there is a guess"
        return "a first guess: nothing of this model has been measured here yet"


def prepare(
    campaign: Campaign,
    results: Path,
    *,
    continued: bool = False,
    blocks: Collection[int] = (),
    arms: Collection[str] = (),
    redo: Collection[str] = (),
) -> Schedule:
    """The schedule of `campaign`; of `blocks` (from 0) and `arms` alone if any are named.

    Raises QuestionError if preflight refuses. What only this host lacks is the schedule's
    `obstacle`: a campaign may be planned on another host than the one it is for.
    """
    planned = plan.runs(campaign)
    faults = Faults()
    with faults.kept():
        _refuse(campaign, blocks, arms, redo)
    with faults.kept():
        preflight_campaign(campaign)
    faults.refuse()
    kind = campaign.models.node.platform
    obstacle = None
    try:
        installed.require(kind, (p.layout for p in planned))
        devices.require((p.layout for p in planned), kind, results)
    except QuestionError as lacking:
        obstacle = lacking
    newest = resume.latest_folder(results, campaign.name)
    folder = newest if continued else None
    on = partial(plan.on_groups, campaign)
    if redo and folder is None:
        raise QuestionError(
            f"no results of {campaign.name} here: there is nothing to do again",
            place=str(results),
            remedy="say with --out where its results lie, or leave out --redo",
        )
    asked = campaign.resolved()
    left = resume.left_over(planned, folder, redo, on, asked) if folder else Left(planned)
    if blocks or arms:
        left = left.only(blocks, arms)
    pace, learnt_from, measured_in = _paced(campaign, results, newest)
    notes = [f"nothing to resume under {results}: a new campaign"] * (continued and not folder)
    if left.elsewhere and left.runs:
        notes.append(_elsewhere(left.elsewhere))
    notes += doubts(campaign)
    return Schedule(
        campaign, left, folder, len(planned), pace, measured_in, obstacle, tuple(notes),
        learnt_from,
    )  # fmt: skip


def _paced(
    campaign: Campaign, results: Path, newest: Path | None
) -> tuple[Pace, tuple[Path, ...], Path | None]:
    """What is known of how long steps take: the pace, other campaigns that it has learnt from, and
    `newest` if it holds a run of this one that came to its end."""
    others = [one for one in earlier.of_model(campaign, results) if one != newest]
    seen = Pace(())
    learnt_from = []
    for folder in others:
        before = seen.seen
        seen.learn(earlier.events(folder))
        if seen.seen > before:
            learnt_from.append(folder)
    speed = _speed(campaign).taught(_cells_that_took(seen))
    pace = Pace((*campaign.gates, *campaign.cells), speed)
    for folder in learnt_from:
        pace.learn(earlier.events(folder))
    before = pace.seen
    if newest is not None:
        pace.learn(earlier.events(newest))
    return pace, tuple(learnt_from), newest if pace.seen > before else None


def _cells_that_took(seen: Pace) -> Iterator[tuple[AnyCell, float]]:
    for key, took in seen.took.items():
        kind, _, cell = key.partition(":")
        if kind in ("cell", "gate") and not cell.startswith("trace"):
            with contextlib.suppress(QuestionError):
                yield parse_cell(cell), stats.median(took) or 0.0


def _refuse(
    campaign: Campaign, blocks: Collection[int], arms: Collection[str], redo: Collection[str]
) -> None:
    faults = Faults()
    for beyond in sorted(b + 1 for b in blocks if b >= campaign.blocks):
        remedy = f"the campaign has {campaign.blocks} block(s), counted from 1"
        faults.add(QuestionError(f"no block {beyond}", place=str(campaign.path), remedy=remedy))
    names = [arm.name for arm in campaign.arms]
    for arm in sorted(set(arms) - set(names)):
        remedy = nearest(arm, names)
        faults.add(QuestionError(f"no arm {arm!r}", place=str(campaign.path), remedy=remedy))
    for code in sorted(set(redo) - CODES.keys()):
        remedy = nearest(code, list(CODES))
        faults.add(QuestionError(f"no code {code!r}", place="--redo", remedy=remedy))
    faults.refuse()


def _elsewhere(count: int) -> str:
    return (
        f"{count} of the runs here were measured on other devices: what is left goes to those that "
        "the campaign names, and the confounds tell the difference"
    )


def launch_s(campaign: Campaign, results: Path, arm: str) -> float:
    """How long the engines of `arm` should take to be up: as long as they took the last time."""
    pace, _, _ = _paced(campaign, results, resume.latest_folder(results, campaign.name))
    return pace.expect_s(arm, "launch:") or 0.0


def _speed(campaign: Campaign) -> Speed:
    """A first guess at how fast one engine is: on a GPU by the model's size.

    An H200 was seen to read 128K tokens of an 8B model at 11,000 a second, and a million of the
    needle model, which is all overhead, at 120,000.
    """
    if campaign.models.node.platform == "cpu":
        return CPU
    try:
        config = json.loads((Path(campaign.model.path) / "config.json").read_bytes())
        weights: float = 12 * config["num_hidden_layers"] * config["hidden_size"] ** 2
    except (OSError, ValueError, KeyError, TypeError):
        return GPU
    return replace(GPU, prefill_tok_s=min(120_000.0, GPU.prefill_tok_s * 8e9 / max(1, weights)))


# ------------------------------------------------------------------------------------- shown


def as_json(schedule: Schedule) -> bytes:
    """The schedule for a machine: every run with its place, cells and expected seconds."""
    campaign = schedule.campaign
    answer: dict[str, Any] = {
        "campaign": campaign.name,
        "folder": str(schedule.folder) if schedule.folder else None,
        "runs_total": schedule.total,
        "runs_left": len(schedule.runs),
        "expect_s": round(schedule.total_s),
        "expect_from_s": round(schedule.lasts.low),
        "expect_to_s": round(schedule.lasts.high),
        "basis": schedule.basis,
        "obstacle": str(schedule.obstacle) if schedule.obstacle else None,
        "notes": schedule.notes,
        "gates": [gate.id for gate in campaign.gates],
        "runs": [_run(schedule, run) for run in schedule.runs],
    }
    return msgspec.json.encode(answer)


def _run(schedule: Schedule, run: PlannedRun) -> dict[str, Any]:
    arm, pace = run.arm.name, schedule.pace
    return {
        "order": run.order + 1,
        "block": run.block + 1,
        "arm": arm,
        "factor": run.arm.factor,
        "key": run.key,
        "engines": [
            {"name": e.name, "role": e.role, "group": e.group, "devices": e.devices}
            for e in run.layout.engines
        ],
        "cells": [
            {"cell": cell.id, "expect_s": round(pace.expect_s(arm, f"cell:{cell.id}") or 0.0, 1)}
            for cell in schedule.campaign.cells
        ],
        "expect_s": round(schedule.seconds(run)),
        "expect_from_s": round(schedule.span(run).low),
        "expect_to_s": round(schedule.span(run).high),
        "goes_on_from": str(schedule.left.carried[run.key].run)
        if run.key in schedule.left.carried
        else None,
    }


def as_text(schedule: Schedule) -> str:
    """The schedule for a person: one line a run, then the cells that each goes through."""
    campaign, runs = schedule.campaign, schedule.runs
    lines = [f"{campaign.name}: {len(runs)} of {schedule.total} runs to do"]
    if schedule.folder:
        lines[0] += f", going on in {schedule.folder}"
    lines += [f"note: {note}" for note in schedule.notes]
    wide = max((len(run.arm.name) for run in runs), default=0)
    for run in runs:
        lines.append(
            f"  run {run.order + 1:>2}  block {run.block + 1}  {run.arm.name:<{wide}}  "
            f"{_places(run)}  about {clock_text(schedule.seconds(run))}"
        )
        if run.key in schedule.left.carried:
            lines.append(f"          {schedule.left.carried[run.key]}")
    lines.append("each run: " + ", ".join(c.id for c in (*campaign.gates, *campaign.cells)))
    lasts = schedule.lasts
    lines.append(
        f"about {clock_text(lasts.expect)} in all, between {clock_text(lasts.low)} and "
        f"{clock_text(lasts.high)} ({schedule.basis})"
    )
    budget = campaign.time_budget_s
    if budget is not None and schedule.total_s > budget:
        lines.append(f"more than the time budget of {clock_text(budget)}: --resume does the rest")
    return "\n".join(lines)


def _places(run: PlannedRun) -> str:
    roles = {"prefill": " prefill", "decode": " decode", "both": ""}
    return ", ".join(f"{e.group} {list(e.devices)}{roles[e.role]}" for e in run.layout.engines)
