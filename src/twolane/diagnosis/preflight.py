"""Engines that are about to start -> findings. Pure: everything it knows is in its arguments.

Every rule of the catalogue that has a check is asked: of each engine alone, of each prefill and
decode pair, and of all engines together. One rule speaks once per engine and value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.deployment import Deployment, Side, pairs
from twolane.diagnosis.findings import in_order
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.vllm_facts import facts
from twolane.records import Finding

Places = Mapping[tuple[str, str], str]


def check(deployment: Deployment, places: Places | None = None) -> list[Finding]:
    """What is wrong with `deployment`, worst first.

    `places` maps (engine name, option's canonical spelling or variable's name) to the
    `file:line:col` that set it; where it has nothing, a finding names the engine.
    """
    sides = [Side(engine, deployment) for engine in deployment.engines]
    found: dict[tuple[str, str, str], Finding] = {}
    for rule in RULES.values():
        for hit, side in asked(rule, deployment, sides):
            finding = worded(rule, hit, side, places or {})
            found.setdefault((rule.id, finding.where, finding.value), finding)
    return in_order(unless(list(found.values())))


def asked(rule: Rule, deployment: Deployment, sides: list[Side]) -> Iterator[tuple[Hit, Side]]:
    named = {side.name: side for side in sides}
    for side in sides if rule.engine else []:
        for hit in rule.engine(side) if rule.engine else ():
            yield hit, side
    for prefill, decode in pairs(sides) if rule.pair else ():
        for hit in rule.pair(prefill, decode) if rule.pair else ():
            yield hit, named.get(hit.side, decode)
    for hit in rule.together(deployment, sides) if rule.together else ():
        yield hit, named.get(hit.side, sides[0])


def unless(findings: list[Finding]) -> list[Finding]:
    fired = {finding.rule for finding in findings}
    return [f for f in findings if not fired & set(RULES[f.rule].unless)]


def worded(rule: Rule, hit: Hit, side: Side, places: Places) -> Finding:
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        where=place(side, hit.at, places),
        title=rule.title,
        value=hit.value,
        consequence=hit.so or rule.so,
        fix=hit.fix or rule.fix,
        source=rule.source,
        certainty=rule.confirmed,
        rank=rule.rank,
    )


def place(side: Side, at: str, places: Places) -> str:
    """`file:line:col` of what is wrong, or the engine and the option."""
    option = facts().options.get(at)
    spelt = side.args.spelt.get(at)
    names = [*option.names, *([spelt] if spelt else [])] if option else [at]
    for name in names:
        if (side.name, name) in places:
            return places[side.name, name]
    shown = spelt or (option.names[0] if option else at)
    return f"{side.name}: {shown}" if shown else side.name
