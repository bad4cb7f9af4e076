"""Every rule that reads logs: one text on which it fires, one near miss on which it does not."""

from __future__ import annotations

import io

import pytest
from tests.diagnosis.log_cases import FIRES, MISSES

from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.reading import PATTERNS, Pattern, Reading

READERS = sorted(rule.id for rule in RULES.values() if rule.log)
HEAD = "(EngineCore pid=71) {} 11-29 14:56:46 [core.py:1510] "


def fired(text: str, prefix: str = "") -> set[str]:
    reading = Reading("engine.log")
    lines = "".join(f"{prefix}{line}\n" for line in text.split("\n"))
    reading.read(io.BytesIO(lines.encode()))
    return {rule for rule, found in reading.matches.items() if found}


@pytest.mark.parametrize(
    ("rule", "level"),
    [(rule, level) for rule in READERS for level in ("ERROR", "WARNING")]
    + [(rule, "INFO") for rule in ("HYB07", "MEM05", "MEM07", "RUN10")],  # vLLM's levels
)
def test_fires_with_the_prefix_of_its_level(rule: str, level: str) -> None:
    assert rule in fired(FIRES[rule], HEAD.format(level))


@pytest.mark.parametrize("rule", READERS)
def test_fires_on_a_bare_line(rule: str) -> None:
    assert rule in fired(FIRES[rule])


@pytest.mark.parametrize("rule", READERS)
def test_does_not_fire_on_a_near_miss(rule: str) -> None:
    assert rule not in fired(MISSES[rule], HEAD.format("ERROR"))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: f"{p.rule.id}:{p.needs[:20]}")
def test_the_cheap_test_of_a_pattern_is_long_enough_to_be_rare(pattern: Pattern) -> None:
    assert pattern.needs == "" or len(pattern.needs) >= 4, pattern.regex.pattern


def test_every_case_belongs_to_a_rule() -> None:
    assert set(FIRES) == set(MISSES) == set(READERS)


@pytest.mark.parametrize("whose", ["the model's", "the models's"])
def test_the_older_spelling_of_a_context_that_does_not_fit_is_known_too(whose: str) -> None:
    """vLLM wrote "models's" until 0.15 at least."""
    assert "MEM01" in fired(FIRES["MEM01"].replace("the model's", whose))
