"""docs/campaign.md names every key that the files may have, with the defaults they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane.config import models, parse_cell, shapes
from twolane.config.source import Shape

DOC = (Path(__file__).parents[2] / "docs/campaign.md").read_text()
SHAPES = [
    shapes.CampaignShape, shapes.ArmShape, shapes.SloShape,
    models.NodeShape, models.LayoutShape, models.ModelShape, models.ModelsShape,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.__name__)
def test_every_key_is_named(shape: type[Shape]) -> None:
    missing = [key for key in shape.model_fields if f"`{key}`" not in DOC]
    assert missing == []


def test_defaults_are_those_of_the_code() -> None:
    rows = [line.split("|")[1:-1] for line in DOC.splitlines() if line.startswith("| `")]
    told = {row[0].strip(" `"): row[2].strip(" `") for row in rows if len(row) == 3}
    fields = shapes.CampaignShape.model_fields
    assert told.keys() == fields.keys()
    for key in ("blocks", "order", "swap_groups", "seed", "margin", "start_timeout_s"):
        assert told[key] == str(fields[key].default).lower(), key


def test_every_cell_in_the_table_is_one() -> None:
    _, _, table = DOC.partition("| cell | is |")
    cells = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    kinds = [parse_cell(cell).__class__ for cell in cells[:7] if not cell.startswith("trace")]
    assert len(set(kinds)) == 6
