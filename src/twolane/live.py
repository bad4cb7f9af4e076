"""What is running now, for the person who waits: a live picture, or plain lines in a pipe.

Rules of this file: it is told Events and shows them, and keeps no other account of a campaign.
`Progress` is what is known from the events so far, without a terminal and with time as a
parameter; `LiveView` puts it on a console. Nothing imports this file but the command line.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from twolane import journal
from twolane.clock import NS, now_ns
from twolane.errors import QuestionError
from twolane.pace import clock_text
from twolane.records import Event

_BAR_WIDTH = 32
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_ENDINGS = ("done", "failed")
_LOOK_S = 0.25


@dataclass
class Step:
    """One step of a run: since when, until when, and what was last said of it."""

    name: str
    text: str
    began_ns: int
    ended_ns: int | None = None
    detail: str = ""
    done: int | None = None
    total: int | None = None
    expect_s: float | None = None

    def seconds(self, now: int) -> float:
        return ((self.ended_ns or now) - self.began_ns) / NS


@dataclass
class RunView:
    """One run: its steps so far, its victims' rates, and how it ended."""

    id: str
    arm: str
    began_ns: int
    steps: list[Step] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    fastest: float = 0.0  # of any rate seen in this run: the bars' full length
    number: int = 1  # among the campaign's runs, from 1
    ended_ns: int | None = None
    ending: str = ""
    why: str = ""

    def seconds(self, now: int) -> float:
        return ((self.ended_ns or now) - self.began_ns) / NS


class Progress:
    """A campaign as its events tell it. `total` is the number of runs, if it is known."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total
        self.runs: dict[str, RunView] = {}
        self.notes: list[str] = []
        self.began_ns: int | None = None
        self.done_before = 0  # runs that this part of the campaign has not to do
        self.earlier: frozenset[str] = frozenset()  # runs of the parts before, on any clock
        self.expect_s: float | None = None  # from then on
        self.over = ""  # how it ended
        self.last_ns = 0

    @property
    def current(self) -> RunView | None:
        return next(reversed(self.runs.values()), None)

    def apply(self, event: Event) -> None:
        """Take one event in. `total` of a `place` event is the planned number of runs."""
        self.began_ns = self.began_ns or event.t_ns
        before, self.last_ns = self.last_ns, event.t_ns
        if event.step == "begin":
            self._cut_short(before)
            self._begin(event)
        elif event.step == "end":
            self._cut_short(event.t_ns)
            self.over = event.text
        elif event.step == "note":
            self.notes.append(event.text)
        else:
            self._of_run(event)

    def _begin(self, event: Event) -> None:
        """A campaign that goes on begins anew: its clock, and its count of what is left."""
        self.began_ns, self.expect_s, self.over = event.t_ns, event.expect_s, ""
        self.done_before, self.total = event.done or 0, event.total or self.total
        self.earlier = frozenset(self.runs)

    def _cut_short(self, now: int) -> None:
        """Runs that have no end of their own got none: whoever drove them is gone."""
        for run in self.runs.values():
            if run.ended_ns is None:
                self._close(run, now)
                run.ended_ns, run.ending, run.rates = max(now, run.began_ns), "cut", []

    def _of_run(self, event: Event) -> None:
        run = self._run(event)
        if event.step in _ENDINGS:
            self._end(run, event)
        elif event.step == "phase":
            self._phase(run, event)
        else:
            self._step(run, event)

    def _run(self, event: Event) -> RunView:
        if event.step == "place" and event.total is not None:
            self.total = event.total
        if event.run not in self.runs:
            run = RunView(event.run, event.arm or event.run, event.t_ns)
            known = event.done is not None and event.step == "place"
            run.number = 1 + (event.done or 0) if known else len(self.runs) + 1
            self.runs[event.run] = run
        return self.runs[event.run]

    def _end(self, run: RunView, event: Event) -> None:
        self._close(run, event.t_ns)
        run.ended_ns, run.ending, run.rates = event.t_ns, event.step, []
        run.why = event.text if event.step == "failed" else ""

    def _phase(self, run: RunView, event: Event) -> None:
        if event.rates:
            run.rates = event.rates
            run.fastest = max(run.fastest, *event.rates)
        if run.steps:
            step = run.steps[-1]
            step.detail, step.done, step.total = event.text, event.done, event.total

    def _step(self, run: RunView, event: Event) -> None:
        """`ready` tells of the launch that goes on; every other step begins anew."""
        if event.step == "ready" and run.steps and run.steps[-1].name == "launch":
            run.steps[-1].detail = event.text
            return
        self._close(run, event.t_ns)
        run.rates = []
        step = Step(event.step, event.text, event.t_ns, expect_s=event.expect_s)
        step.done, step.total = event.done, event.total
        run.steps.append(step)

    @staticmethod
    def _close(run: RunView, now: int) -> None:
        if run.steps and run.steps[-1].ended_ns is None:
            run.steps[-1].ended_ns = now

    def left_s(self, now: int) -> float | None:
        """Seconds until the campaign ends: by its finished runs, before them by its forecast."""
        began = self.began_ns or 0
        here = [run for run in self.runs.values() if run.id not in self.earlier]
        finished = [run for run in here if run.ending == "done"]
        if not finished or self.total is None:
            return None if self.expect_s is None else max(0.0, self.expect_s - (now - began) / NS)
        mean = sum(run.seconds(now) for run in finished) / len(finished)
        ended = self.done_before + sum(run.ended_ns is not None for run in here)
        open_s = sum(run.seconds(now) for run in self.runs.values() if run.ended_ns is None)
        return max(0.0, mean * (self.total - ended) - open_s)


# ----------------------------------------------------------------------------------- in words


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """A bar of `share` (0 ... 1) of `width` characters, to an eighth of a character."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)


def _place(progress: Progress, run: RunView) -> str:
    return f"run {run.number} of {progress.total}" if progress.total else f"run {run.number}"


def plain_line(progress: Progress, event: Event) -> str:
    """One line for a pipe: seconds since the start, which run, which step, what."""
    since = (event.t_ns - (progress.began_ns or event.t_ns)) / NS
    run = progress.runs.get(event.run)
    where = f"{_place(progress, run)} {run.arm}: " if run else ""
    counts = event.step not in ("place", "begin") and event.done is not None and event.total
    count = f" ({event.done} of {event.total})" if counts else ""
    expected = f", about {clock_text(event.expect_s)}" if event.expect_s else ""
    step = event.step if event.text == event.step else f"{event.step}: {event.text}"
    took = f" after {clock_text(run.seconds(event.t_ns))}" if run and run.ending else ""
    return f"{since:7.1f} s  {where}{step}{count}{expected}{took}"


# ---------------------------------------------------------------------------------- a picture


def picture(progress: Progress, now: int) -> RenderableType:
    """The campaign now: finished runs, the present run's steps, its readers' rates."""
    parts: list[RenderableType] = []
    for run in progress.runs.values():
        parts.append(_heading(progress, run, now))
        if run.ended_ns is None:
            parts.append(_steps(run, now))
            parts.extend(_rates(run))
    parts.extend(Text(f"  note: {note}", style="yellow") for note in progress.notes[-3:])
    parts.append(_clock(progress, now))
    return Group(*parts)


def _heading(progress: Progress, run: RunView, now: int) -> Text:
    signs = {
        "": ("▸", "bold cyan"),
        "done": ("✓", "green"),
        "failed": ("✗", "bold red"),
        "cut": ("✂", "yellow"),
    }
    sign, style = signs[run.ending]
    took = clock_text(run.seconds(now))
    text = Text.assemble(
        (f"{sign} ", style), (f"{_place(progress, run)}  ", "dim"), (run.arm, "bold"), f"  {took}"
    )
    if run.why:
        text.append(f"\n    {run.why.splitlines()[0]}", "red")
    return text


def _steps(run: RunView, now: int) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=4)
    table.add_column(min_width=7)
    table.add_column(ratio=1)
    table.add_column(justify="right", min_width=7)
    for step in run.steps:
        is_open = step.ended_ns is None
        took = clock_text(step.seconds(now))
        if is_open and step.expect_s:
            took += f" of about {clock_text(step.expect_s)}"
        style = "bold" if is_open else "dim"
        sign = "   ▸" if is_open else "   ✓"
        table.add_row(sign, step.name, _said(step), took, style=style)
    return table


def _said(step: Step) -> Text:
    text = Text(step.text)
    if step.detail:
        text.append(f"  {step.detail}", "cyan" if step.ended_ns is None else "")
    if step.done is not None and step.total:
        text.append(f"  {step.done}/{step.total}")
    return text


def _rates(run: RunView) -> list[RenderableType]:
    """One bar a stream; its full length is the fastest rate that this run has shown."""
    full = run.fastest or 1.0
    interference = bool(run.steps) and run.steps[-1].text.startswith("interference")
    name = "reader" if interference else "users"
    return [
        Text.assemble(
            (f"      {name} {number:<3}", "dim"),
            (bar(rate / full), "red" if rate < 0.5 * full else "blue"),
            f" {rate:6.1f} tokens/s",
        )
        for number, rate in enumerate(run.rates, 1)
    ]


def _clock(progress: Progress, now: int) -> Text:
    now = progress.last_ns if progress.over else now
    since = (now - (progress.began_ns or now)) / NS
    if progress.over:
        return Text(f"  {progress.over} after {clock_text(since)}", style="dim")
    text = Text(f"  {clock_text(since)} so far", style="dim")
    left = progress.left_s(now)
    if left is not None and left > 0:
        text.append(f", about {clock_text(left)} left")
    elif left is None and progress.total:
        text.append(", time left is known after the first run")
    return text


class LiveView:
    """Shows a campaign's events: give it to `campaign.run` as `told`, inside a `with`.

    `runs` is how many runs are planned. On a terminal the picture is redrawn in place four times
    a second; elsewhere every new step is one plain line.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        runs: int | None = None,
        progress: Progress | None = None,
        now: Callable[[], int] = now_ns,
    ) -> None:
        self._console = console or Console()
        self._progress = progress or Progress(runs)
        self._now = now
        self._last = ("", "", "")
        self._live = (
            Live(
                console=self._console,
                refresh_per_second=4,
                get_renderable=lambda: picture(self._progress, self._now()),
            )
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        self._progress.apply(event)
        said = (event.run, event.step, event.text)
        if self._live is None and said != self._last:
            line = plain_line(self._progress, event)
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._last = said


# ------------------------------------------------------------------- from another terminal


def follow(folder: Path, console: Console, *, sleep: Callable[[float], None] = time.sleep) -> str:
    """Show the campaign in `folder` as it goes on; return how it ended once nobody writes it.

    Empty where it was cut without an end. Raises QuestionError if no campaign lies there.
    """
    path = folder / journal.FILE
    if not path.is_file():
        raise QuestionError(
            "no campaign lies here", place=str(folder), remedy=_campaigns_below(folder)
        )
    writing = True
    progress = Progress()

    def now() -> int:
        return now_ns() if writing else progress.last_ns

    with LiveView(console, progress=progress, now=now) as view, path.open("rb") as file:
        while writing:
            writing = journal.is_written(folder)  # asked first: what came before it is then read
            _read_on(file, view)
            if writing:
                sleep(_LOOK_S)
    # Campaigns of 0.1.0's first days had no end of their own.
    whole = len(progress.runs) == progress.total and progress.current
    return progress.over or (progress.current.ending if whole and progress.current else "")


def _read_on(file: BinaryIO, view: Callable[[Event], None]) -> None:
    """Every event that has been written since; half a line is left for the next time."""
    while (line := file.readline()).endswith(b"\n"):
        # A line that a crash tore is no event, and the next one is whole.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            view(_event(line))
    file.seek(-len(line), os.SEEK_CUR)


_event = msgspec.json.Decoder(Event).decode


def _campaigns_below(folder: Path) -> str:
    found = sorted((p.parent for p in folder.glob(f"*/{journal.FILE}")), key=lambda p: p.name)
    named = ", ".join(str(p) for p in found)
    return f"name one of {named}" if found else "name a campaign's folder, e.g. results/demo"
