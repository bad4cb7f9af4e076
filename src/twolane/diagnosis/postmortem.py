"""Logs and metric scrapes -> what happened and why, the cause first.

The cause is the finding of the lowest rank (a cause; what a dead or unreachable peer looks like;
what follows from it; a wrapper), the earliest one among equals. What the command lines alone would
have told joins where something did go wrong. Remarks are shown beside a finding, never alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from twolane.diagnosis import figures
from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.deployment import Deployment, Engine
from twolane.diagnosis.findings import (
    SYMPTOM,
    WORST_FIRST,
    WRAPPER,
    Diagnosis,
    wrong,
)
from twolane.diagnosis.preflight import check
from twolane.diagnosis.reading import Reading
from twolane.diagnosis.rule import Context, Match, Rule
from twolane.diagnosis.service import Service
from twolane.errors import QuestionError
from twolane.records import Finding, Severity

MOST_EVIDENCE = 5
LONGEST_LINE = 600


class Dated(msgspec.Struct, frozen=True):
    """A finding and when it was first seen: stamp, order of its log, line."""

    finding: Finding
    at: tuple[str, int, int]

    @property
    def key(self) -> tuple[bool, int, int, tuple[str, int, int]]:
        """Remarks last: beside something wrong they are never its cause."""
        finding = self.finding
        return not wrong(finding), finding.rank, WORST_FIRST[finding.severity], self.at


def diagnose(
    paths: Sequence[Path],
    deployment: Deployment | None = None,
    before: Path | None = None,
    after: Path | None = None,
    served: Sequence[Service] = (),
) -> Diagnosis:
    """What the logs of one or several engines, and two scrapes of one of them, say went wrong.

    `served` adds figures that are at hand already (figures.from_metrics of two samples).
    Raises QuestionError where a file cannot be read.
    """
    readings = [read(path, deployment) for path in paths]
    services = [*(reading.service for reading in readings), *served]
    if before is not None and after is not None:
        services.append(scraped(before, after))
    for service in services:
        if deployment is not None and deployment.platform == "cpu":
            service.device = "CPU"
    return concluded(readings, services, deployment)


def concluded(
    readings: list[Reading], services: list[Service], deployment: Deployment | None
) -> Diagnosis:
    found = [*from_logs(readings, deployment), *from_figures(services)]
    found += from_silence(readings, {d.finding.rule for d in found if d.finding.rank <= SYMPTOM})
    dated = merged(found)
    if not any(wrong(d.finding) for d in dated):
        return Diagnosis(cause=None, findings=[])
    dated = merged([*dated, *from_command_lines(deployment)])
    findings = [d.finding for d in sorted(dated, key=lambda d: d.key)]
    known = findings[0].rank != WRAPPER  # a wrapper is never the cause, only a sign of one
    return Diagnosis(cause=findings[0].rule if known else None, findings=findings)


# ------------------------------------------------------------------------------------- sources


def read(path: Path, deployment: Deployment | None) -> Reading:
    engine = owner(path, deployment)
    role = {"decode": True, "prefill": False}.get(engine.role) if engine else None
    reading = Reading(path.name, role)
    try:
        with path.open("rb", buffering=0) as stream:
            reading.read(stream)
    except OSError as error:
        raise unreadable(path, error) from error
    return reading


def unreadable(path: Path, error: Exception) -> QuestionError:
    return QuestionError(f"cannot be read: {error}", place=str(path), remedy="name a readable file")


def owner(path: Path, deployment: Deployment | None) -> Engine | None:
    """The engine whose log `path` is, by its name in the file's name."""
    engines = deployment.engines if deployment else []
    named = [engine for engine in engines if engine.name and engine.name in path.stem]
    return max(named, key=lambda engine: len(engine.name), default=None)


def scraped(before: Path, after: Path) -> Service:
    values = []
    for path in (before, after):
        try:
            values.append(figures.read_scrape(path.read_text(errors="replace"), str(path)))
        except OSError as error:
            raise unreadable(path, error) from error
    return figures.from_metrics(values[0], values[1], after.name)


# ------------------------------------------------------------------------------------ findings


def from_logs(readings: list[Reading], deployment: Deployment | None) -> Iterator[Dated]:
    for order, reading in enumerate(readings):
        context = Context(deployment, reading.matches)
        for name, found in reading.matches.items():
            if found and not reading.matches.keys() & set(RULES[name].unless):
                stamp, number = reading.first[name]
                finding = from_matches(RULES[name], found, reading.counts[name], context)
                yield Dated(finding, (stamp, order, number))


def from_matches(rule: Rule, found: list[Match], count: int, context: Context) -> Finding:
    said = list(dict.fromkeys(g for m in found for g in m.groups[:1] if g))
    told = rule.tell(found, context) if rule.tell else ""
    lines = list(dict.fromkeys(m.line.strip()[:LONGEST_LINE] for m in found))
    return finding_of(
        rule,
        where(found[0]),
        value=", ".join(said),
        fix=told,
        evidence=lines[:MOST_EVIDENCE],
        count=count,
        severity=rule.log_severity,
    )


def where(match: Match) -> str:
    process = f" ({match.process})" if match.process else ""
    return f"{match.log}:{match.number}{process}"


def finding_of(
    rule: Rule,
    where: str,
    *,
    value: str,
    fix: str,
    evidence: list[str],
    count: int = 1,
    severity: Severity | None = None,
) -> Finding:
    return Finding(
        rule=rule.id,
        severity=severity or rule.severity,
        where=where,
        title=rule.title,
        value=value,
        consequence=rule.so,
        fix=fix or rule.fix,
        source=rule.source,
        certainty=rule.confirmed,
        evidence=evidence,
        count=count,
        rank=rule.rank,
    )


def from_figures(services: list[Service]) -> Iterator[Dated]:
    for order, service in enumerate(services):
        for rule in RULES.values():
            for hit in rule.load(service) if rule.load else ():
                line = service.evidence.get(hit.at) or service.evidence.get("scrape", "")
                finding = finding_of(
                    rule, service.where, value=hit.value, fix=hit.fix, evidence=[line]
                )
                yield Dated(finding, ("~", order, 0))  # after everything that has a stamp


def from_silence(readings: list[Reading], causes: set[str]) -> list[Dated]:
    """Engines that ended in an error that no rule knows, without a word, or never got ready."""
    found: list[Dated] = []
    for order, reading in enumerate(readings if not causes else []):
        ended = bool(reading.matches.keys() & {"RUN12", "RUN13"}) or not reading.ready
        match, rule = reading.raised, RULES["RUN22"]
        if match is None or not ended:
            match, rule = (None if reading.ready else reading.hangs), RULES["RUN19"]
        if match is None and (wrapped := reading.matches.get("RUN12")):
            match, rule = wrapped[0], RULES["RUN27"]  # vLLM saw the end before its exit code: '{}'
        if match is not None:
            lines = [text.strip() for text in (*match.before[-3:], match.line)]
            finding = finding_of(rule, where(match), value=match.line, fix="", evidence=lines)
            found.append(Dated(finding, ("~", order, match.number)))
    return found


def from_command_lines(deployment: Deployment | None) -> list[Dated]:
    """What preflight would have said, after what the logs did say."""
    found = check(deployment) if deployment is not None else []
    return [Dated(finding, ("~~", 0, i)) for i, finding in enumerate(found)]


def merged(found: list[Dated]) -> list[Dated]:
    """One finding a rule: the earliest, with the evidence and the count of all."""
    by_rule: dict[str, list[Dated]] = {}
    for dated in found:
        by_rule.setdefault(dated.finding.rule, []).append(dated)
    return [together(sorted(same, key=lambda d: d.at)) for same in by_rule.values()]


def together(same: list[Dated]) -> Dated:
    first = same[0].finding
    if len(same) == 1:
        return same[0]
    evidence = list(dict.fromkeys(line for d in same for line in d.finding.evidence))
    places = exact(list(dict.fromkeys(d.finding.where for d in same)))
    values = list(dict.fromkeys(d.finding.value for d in same if d.finding.value))
    joined = msgspec.structs.replace(
        first,
        where=", ".join(places),
        value=", ".join(values),
        evidence=evidence[:MOST_EVIDENCE],
        count=max(d.finding.count for d in same),
    )
    return Dated(joined, same[0].at)


def exact(places: list[str]) -> list[str]:
    """`places` without the names of files of which a line is named."""
    return [p for p in places if not any(other.startswith(p + ":") for other in places)]
