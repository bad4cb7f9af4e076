"""What a check or a post-mortem says: findings, worst first, and the one that is the cause.

Rules of this file: structs, their order and their two renderings (JSON and text). No rule and no
log format is known here.
"""

from __future__ import annotations

import msgspec

from twolane.records import Finding

WORST_FIRST: dict[str, int] = {"error": 0, "warn": 1, "info": 2}
# Ranks: a cause; what a dead or unreachable peer looks like from here; what follows or merely costs
# speed; what that in turn explains; a wrapper around another error.
CAUSE, SYMPTOM, AFTERMATH, EXPLAINED, WRAPPER = 0, 1, 2, 3, 9


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` is the rule to act on first; it is findings[0] where there is one."""

    cause: str | None
    findings: list[Finding]


def in_order(findings: list[Finding]) -> list[Finding]:
    """Causes before their consequences, errors before warnings; ties keep their order."""
    return sorted(findings, key=lambda f: (f.rank, WORST_FIRST[f.severity]))


def to_json(answer: Diagnosis | list[Finding]) -> str:
    """Indented JSON: `{"cause", "findings"}` of a diagnosis, `{"findings"}` of a check."""
    body = answer if isinstance(answer, Diagnosis) else {"findings": answer}
    plain = msgspec.to_builtins(body)
    for finding in plain["findings"]:  # readers get every field, also where it is empty
        finding.setdefault("value", "")
        finding.setdefault("evidence", [])
    return msgspec.json.format(msgspec.json.encode(plain), indent=1).decode()


def exit_code(findings: list[Finding]) -> int:
    """0 where nothing is wrong (remarks do not count), else 1."""
    return int(any(wrong(finding) for finding in findings))


def wrong(finding: Finding) -> bool:
    """Whether it tells of something wrong: no remark, or a wrapper around an unseen error."""
    return finding.severity != "info" or finding.rank == WRAPPER


def to_text(findings: list[Finding], cause: str | None = None) -> str:
    """For a terminal: one block a finding, the cause first and marked."""
    if not findings:
        return "nothing found"
    return "\n".join(block(f, f.rule == cause and i == 0) for i, f in enumerate(findings))


def block(finding: Finding, cause: bool) -> str:
    head = f"{'cause' if cause else finding.severity} {finding.rule}: {finding.title}"
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    lines = [f"{finding.where}: {head}{times}"]
    lines += [f"  value: {finding.value}"] if finding.value else []
    lines += [f"  | {line}" for line in finding.evidence]
    lines += [f"  so: {finding.consequence}", f"  fix: {finding.fix}"]
    return "\n".join([*lines, f"  source: {finding.source} ({finding.certainty})"])
