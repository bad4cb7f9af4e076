"""The plugin posts the same pairs of blocks, in ascending order, where it is asked to."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.engines import nixl_ascending


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for NIXL's agent class: it hands back what it was asked to move."""

    class Agent:
        def make_prepped_xfer(self, op: str, a: int, mine: Any, b: int, theirs: Any, *,
                              notif_msg: bytes) -> tuple[Any, ...]:  # fmt: skip
            return op, a, list(mine), b, list(theirs), notif_msg

    api = ModuleType("nixl_cu13._api")
    api.nixl_agent = Agent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nixl_cu13", ModuleType("nixl_cu13"))
    monkeypatch.setitem(sys.modules, "nixl_cu13._api", api)
    monkeypatch.setattr(nixl_ascending, "_BINDINGS", ("nixl_cu13._api",))
    return Agent()


@pytest.mark.parametrize(
    ("value", "mine", "theirs"),
    [("1", [7, 8, 9], [4, 5, 6]), ("0", [9, 8, 7], [6, 5, 4]), (None, [9, 8, 7], [6, 5, 4])],
)
def test_blocks_are_posted_ascending_where_the_variable_says_so(
    agent: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    value: str | None,
    mine: list[int],
    theirs: list[int],
) -> None:
    monkeypatch.delenv(nixl_ascending.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(nixl_ascending.VARIABLE, value)
    with caplog.at_level(logging.INFO, logger="vllm.twolane"):
        nixl_ascending.register()
    assert (nixl_ascending.HEARD in caplog.text) == (value == "1")
    moved = agent.make_prepped_xfer("READ", 1, [9, 8, 7], 2, [6, 5, 4], notif_msg=b"x")
    assert moved == ("READ", 1, mine, 2, theirs, b"x")


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), unique_by=lambda p: p[0]))
def test_the_pairs_stay_the_same(pairs: list[tuple[int, int]]) -> None:
    mine, theirs = [p[0] for p in pairs], np.array([p[1] for p in pairs], dtype=int)
    a, b = nixl_ascending.ascending(mine, theirs)
    assert list(zip(a, b, strict=True)) == sorted(pairs)


def test_vllm_finds_the_plugin() -> None:
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    found = [p.load() for p in points if p.name == "twolane_nixl_ascending"]
    assert found == [nixl_ascending.register]
