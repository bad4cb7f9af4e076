"""All rules, by id, in the order of their families. To add one, add a row to its family's file."""

from __future__ import annotations

from twolane.diagnosis.rule import Rule
from twolane.diagnosis.rules import (
    arguments,
    attention,
    client,
    connector,
    environment,
    hybrid,
    memory,
    own,
    pair,
    parallel,
    ports,
    running,
    speculation,
    speed,
    tokens,
    transfers,
)

FAMILIES = {
    "connector": connector,
    "hybrid": hybrid,
    "pair": pair,
    "ports": ports,
    "parallel": parallel,
    "tokens": tokens,
    "memory": memory,
    "attention": attention,
    "speculation": speculation,
    "arguments": arguments,
    "environment": environment,
    "own": own,
    "transfers": transfers,
    "running": running,
    "speed": speed,
    "client": client,
}
RULES: dict[str, Rule] = {rule.id: rule for f in FAMILIES.values() for rule in f.RULES}
