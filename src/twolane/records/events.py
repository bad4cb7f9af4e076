"""What happens in a campaign, as the live view and `twolane live` hear it."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of events.jsonl in the campaign's folder: what the live view shows.

    `step` is one of: begin, place, launch, ready, gate, cell, phase, stop, done, failed, note, end.
    begin and end are those of one `twolane run`; a campaign that was resumed has several.
    """

    t_ns: int
    run: str
    step: str
    text: str
    arm: str | None = None
    cell: str | None = None
    done: int | None = None  # of `total`, where the step counts
    total: int | None = None
    expect_s: float | None = None  # how long this step should take
    rates: list[float] | None = None  # victims' tokens per second over the last second
