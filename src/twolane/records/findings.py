"""What preflight and post-mortem find."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warn", "info"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, where, why it matters and what to do.

    `where` is `file:line:col`, an engine's name with the option, or a log's name and line;
    `evidence` is verbatim. `certainty`: `executed` on vLLM 0.32, read in its `source`, `reported`.
    """

    rule: str
    severity: Severity
    where: str
    title: str
    consequence: str
    fix: str
    source: str
    certainty: Literal["executed", "source", "reported"]
    value: str = ""
    evidence: list[str] = []
    count: int = 1
    rank: int = 0  # 0 is a cause; see diagnosis/findings.py


class PostMortem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What logs and metrics said of a cell (`about` is its id) or of the end of a run (empty)."""

    about: str = ""
    cause: str | None = None
    findings: list[Finding] = []


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """findings.json: what was known before the engines started, and what was learnt after."""

    preflight: list[Finding] = []
    postmortems: list[PostMortem] = []
