"""Parts of one campaign, told from those of another by the first setting that differs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twolane.analysis.sameness import Difference, differences, missing, planned, said_only
from twolane.records import RunMeta

META = RunMeta(
    id="r", campaign="c", arm="a", model="m", layout="l", context=8192, block=0, order=0, seed=1,
    started_at="2026-01-02T03:04:05Z", boot="b", config={}, config_hash="5eed",
    versions={"twolane": "1"}, host={}, cells=[],
)  # fmt: skip


def meta(**config: Any) -> RunMeta:
    return msgspec.structs.replace(META, config=config)


def arms(**engine: Any) -> dict[str, Any]:
    known = {"name": "e", "role": "both", "group": "G", "devices": [0], "tp": 1, "args": ["--a"]}
    return {"x": {"factor": "x", "name": "l", "engines": [known | engine]}}


def found(here: RunMeta, there: RunMeta) -> list[Difference]:
    return list(differences(planned(here), planned(there)))


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        ({"arms": arms(devices=[0])}, {"arms": arms(devices=[7], place="f:1")}, []),
        ({"model": {"content": "sha256:1"}}, {"model": {}}, []),
        ({"seed": 1}, {"seed": 2}, [Difference("seed", "1", "2")]),
        ({"greedy": [1, 2]}, {"greedy": [2]}, [Difference("greedy", "[1]", "[2]")]),
        (
            {"arms": arms(tp=2)},
            {"arms": arms()},
            [Difference("arms.x.engines.0.tp", "2", "1")],
        ),
        (
            {"cells": [{"id": "fresh 8"}]},
            {"cells": [{"id": "fresh 9"}]},
            [Difference("cells", '["fresh 8"]', '["fresh 9"]')],
        ),
        (
            {"node": {"groups": {"G": [0, 1]}}},
            {"node": {"groups": {"G": [0]}}},
            [Difference("node.groups.G", "2", "1")],
        ),
    ],
)
def test_what_differs_is_named_with_both_values(
    here: dict[str, Any], there: dict[str, Any], told: list[Difference]
) -> None:
    assert found(meta(**here), meta(**there)) == told


def test_what_is_missing_was_planned_and_is_not_done() -> None:
    done = [meta(arms={"a": {}, "b": {}}, blocks=2)]
    assert missing(done) == [("b", 0), ("a", 1), ("b", 1)]
    assert missing([]) == []
    assert len(missing([meta(arms={"a": {}}, blocks=10**15)])) == 999


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
SETTINGS = st.dictionaries(
    st.sampled_from(["model", "node", "arms", "gates", "cells", "blocks", "seed", "slos"]), ANYTHING
)


@example({"gates": [None, None]}, {"gates": [{}, {}]})
@given(SETTINGS, SETTINGS)
def test_an_edited_file_may_say_anything(here: dict[str, Any], there: dict[str, Any]) -> None:
    one, other = meta(**here), meta(**there)
    assert found(one, one) == []
    assert {d.setting for d in found(one, other)} == {d.setting for d in found(other, one)}
    list(differences(said_only(one), said_only(other)))
    missing([one, other])
