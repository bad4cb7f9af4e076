"""What a rule is. Read one family in rules/ next to this: a rule is five lines of data there.

A rule may know a mistake before start-up (`engine`, `pair` or `together`: small pure functions
that yield Hits), in a log (`log`: regular expressions), and in figures (`load`: over what the
stats lines or two metric scrapes say). What a log says may reword the fix (`tell`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from twolane.diagnosis.deployment import Deployment, Side
from twolane.diagnosis.findings import CAUSE
from twolane.diagnosis.service import Service
from twolane.records import Severity


class Hit(msgspec.Struct, frozen=True):
    """Where a preflight rule fires: `at` is an option's spelling or a variable's name."""

    value: str
    at: str = ""
    fix: str = ""  # replaces the rule's where the values allow a better one
    side: str = ""  # engine's name, where the rule did not get just one
    so: str = ""  # replaces the rule's consequence


class Match(msgspec.Struct, frozen=True):
    """What one log said to one rule: captured groups, the line, the lines before it, its place."""

    groups: tuple[str, ...]
    line: str
    before: tuple[str, ...]
    log: str
    number: int
    process: str


Tell = Callable[[list[Match], "Context"], str]


class Context(msgspec.Struct, frozen=True):
    """What else is known while a log's finding is worded: the engines, and what each log said."""

    deployment: Deployment | None
    matches: dict[str, list[Match]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`confirmed` says how, and `seen` in which file of vLLM 0.32.0, the rule was verified."""

    id: str
    title: str
    severity: Severity
    so: str
    fix: str
    source: str
    confirmed: Literal["executed", "source", "reported"] = "reported"
    seen: str = ""
    when: str = ""  # the condition in words, for docs/rules.md
    rank: int = CAUSE
    log: tuple[str, ...] = ()
    log_severity: Severity | None = None  # where a log line alone weighs less than the check
    over_lines: str = ""  # a pattern may span two lines; the second one has this in it
    starting: bool = False  # means nothing while the engine still starts
    unless: tuple[str, ...] = ()  # says nothing where one of these fired
    engine: Callable[[Side], Iterable[Hit]] | None = None
    pair: Callable[[Side, Side], Iterable[Hit]] | None = None
    together: Callable[[Deployment, list[Side]], Iterable[Hit]] | None = None
    load: Callable[[Service], Iterable[Hit]] | None = None
    tell: Tell | None = None
