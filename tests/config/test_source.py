"""YAML that no campaign is: refused, at once, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane.config import source
from twolane.errors import ConfigError

FILE = Path("campaign.yaml")


def nested_aliases(levels: int) -> str:
    """Every line stands for ten times the line before."""
    lines = [f"a0: &a0 [{','.join('x' * 10)}]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_aliases_that_stand_for_a_billion_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="aliases stand for more than 100,000 values") as refused:
        source.parse(nested_aliases(9), FILE)
    assert refused.value.place == "campaign.yaml:1:1"


def test_aliases_of_ordinary_size_are_what_they_stand_for() -> None:
    file = source.parse(nested_aliases(3), FILE)
    assert file.data["a2"] == [[["x"] * 10] * 10] * 10
