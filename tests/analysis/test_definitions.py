"""The version of the definitions: values on disk are believed only where it has not changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
import pytest

from twolane.analysis import measures
from twolane.analysis.stats import summarise
from twolane.clock import MS, NS
from twolane.records import (
    AnyCell,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    Request,
    Role,
    TraceCell,
)

CELLS: tuple[tuple[AnyCell, tuple[Role, ...]], ...] = (
    (GridCell(id="g", users=4, prompt=8, output=8, requests=90), ("warmup", "grid")),
    (InterferenceCell(id="i", victims=2, prompt=99, shots=2), ("victim", "aggressor")),
    (FreshCell(id="f", prompt=9, requests=3), ("fresh",)),
    (RampCell(id="r", prompt=64, users=2, turns=4), ("turn",)),
    (MixCell(id="m", prompt=64, share=0.5, rate=2.0), ("warmup", "short", "long")),
    (TraceCell(id="t", path="x", prompt=9, requests=9), ("trace",)),
    (NeedleCell(id="n", prompt=9), ("needle",)),
)

PINNED = {3: "534e74e578102a20"}


def requests(cell: AnyCell, roles: tuple[Role, ...]) -> Iterator[Request]:
    """Made-up ones: every field has a value, some fail, some are slow."""
    for i in range(90):
        role, send, shot, wait = roles[i % len(roles)], i * 300 * MS, 0, 20 + i % 7
        if isinstance(cell, InterferenceCell):
            if i >= 9:
                return
            # Two readers and whoever is fired at them, from 0.7 s on: a sleep, then two prompts.
            shot = i // 3
            role = "victim" if i % 3 else "aggressor" if shot else "null"
            send = shot * 100 * NS + (0 if i % 3 else 700 * MS)
            wait = wait if i % 3 else 400 + 300 * shot
        first = send + wait * MS
        gaps = [(10 + (i * k) % 13 + 200 * (k == 60)) * MS for k in range(1, 120)]
        yield Request(
            id=f"{i}", cell=cell.id, role=role, index=i // 2 % 4, user=i % 2,
            send_ns=send, due_ns=send - (i % 3) * MS, shot=shot, first_ns=first,
            last_ns=first + sum(gaps), end_ns=first + sum(gaps) + MS, gaps_ns=gaps,
            tokens=[2, *[1] * 119], output_tokens=121, prompt_tokens=64, cached_tokens=i % 5,
            history_prompt=16, history=32, needle="ok" if i % 9 else "wrong",
            error="planted" if i == 77 else None,
        )  # fmt: skip


def test_a_change_of_a_definition_raises_its_version() -> None:
    """Seen here and not raised, old values would be believed: raise measures.VERSION, pin anew."""
    digest = hashlib.sha256()
    for cell, roles in CELLS:
        values = summarise(cell, list(requests(cell, roles)), (2 * NS, 20 * NS))
        assert [value for value in values.values() if value is not None]
        plain = {name: None if v is None else f"{v:.9g}" for name, v in values.items()}
        digest.update(msgspec.json.encode(plain))
    assert {measures.VERSION: digest.hexdigest()[:16]} == PINNED


def test_every_kind_of_cell_is_pinned() -> None:
    kinds = {type(cell) for cell, _ in CELLS}
    assert kinds == set(AnyCell.__args__)


@pytest.mark.parametrize(("cell", "roles"), CELLS, ids=[cell.id for cell, _ in CELLS])
def test_the_made_up_requests_exercise_the_cell(cell: AnyCell, roles: tuple[Role, ...]) -> None:
    values = summarise(cell, list(requests(cell, roles)), (2 * NS, 20 * NS))
    known = sum(value is not None for value in values.values())
    assert known > len(values) / 3
