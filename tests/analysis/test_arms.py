"""What an arm is made of, from run.json alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.synthetic import make

from twolane.analysis.arms import arms, budget_of
from twolane.analysis.results import load


def test_kind_budget_and_devices(tmp_path: Path) -> None:
    found = arms(load(make(tmp_path / "r", blocks=2)).runs)
    assert [(a.name, a.kind, a.budget, a.devices) for a in found.values()] == [
        ("copies_2048", "copies", 2048, 2),
        ("copies_256", "copies", 256, 2),
        ("split_1p1d", "split", 2048, 2),
    ]
    assert found["copies_2048"].others == found["copies_256"].others
    assert found["copies_2048"].others != found["split_1p1d"].others


@pytest.mark.parametrize(
    ("argv", "budget"),
    [
        (["--max-num-batched-tokens", "256"], 256),
        (["--max-num-batched-tokens=512", "--port", "1"], 512),
        (["--max-num-batched-tokens"], None),
        (["--port", "8000"], None),
        ([], None),
    ],
)
def test_budget_in_either_spelling(argv: list[str], budget: int | None) -> None:
    assert budget_of(argv) == budget
