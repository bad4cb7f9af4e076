"""The rules' page and the catalogue itself."""

from __future__ import annotations

from pathlib import Path

from twolane.diagnosis.catalogue import FAMILIES, RULES
from twolane.diagnosis.handbook import handbook, moments

DOCS = Path(__file__).parents[2] / "docs" / "rules.md"
ADVICE = {"PROXY01", "PROXY02", "PROXY03", "PROXY04", "BENCH02"}
FROM_SILENCE = {"RUN19", "RUN22", "ENV18"}  # what a log does not say, or no rule knows


def test_the_page_in_docs_is_the_present_one() -> None:
    assert DOCS.read_text() == handbook(), "run scripts/rules"


def test_no_id_is_used_twice() -> None:
    assert len(RULES) == sum(len(family.RULES) for family in FAMILIES.values())


def test_every_rule_can_fire_or_is_known_as_advice() -> None:
    silent = {rule.id for rule in RULES.values() if not moments(rule)}
    assert silent == ADVICE | FROM_SILENCE


def test_what_is_confirmed_names_where() -> None:
    for rule in RULES.values():
        assert (rule.confirmed == "reported") == (not rule.seen), rule.id
