from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from twolane.routing import EngineLoad, choose

IDLE = EngineLoad()
loads = st.lists(
    st.builds(
        EngineLoad,
        prompt_bytes=st.integers(0, 5),
        in_flight=st.integers(0, 5),
        weight=st.sampled_from([0.5, 1.0, 2.0]),
        usable=st.booleans(),
    ),
    max_size=6,
)


def test_least_prompt_bytes_first() -> None:
    busy = EngineLoad(prompt_bytes=10)
    assert choose([busy, EngineLoad(prompt_bytes=9, in_flight=50)], turn=0) == 1


def test_then_least_in_flight() -> None:
    assert choose([EngineLoad(in_flight=2), EngineLoad(in_flight=1)], turn=0) == 1


def test_equals_take_turns() -> None:
    assert Counter(choose([IDLE] * 3, turn) for turn in range(9)) == {0: 3, 1: 3, 2: 3}


def test_a_heavier_engine_gets_more() -> None:
    heavy, light = 0, 0
    for turn in range(30):
        pick = choose([EngineLoad(in_flight=heavy, weight=2), EngineLoad(in_flight=light)], turn)
        heavy, light = heavy + (pick == 0), light + (pick == 1)
    assert (heavy, light) == (20, 10)


def test_nothing_usable_is_none() -> None:
    assert choose([], turn=3) is None
    assert choose([EngineLoad(usable=False)], turn=0) is None
    assert choose([IDLE], turn=0, avoid=frozenset({0})) is None


@given(loads, st.integers(0, 100), st.frozensets(st.integers(0, 5)))
def test_the_choice_is_usable_and_none_is_better(
    engines: list[EngineLoad], turn: int, avoid: frozenset[int]
) -> None:
    pick = choose(engines, turn, avoid)
    assert pick == choose(engines, turn, avoid)
    allowed = [i for i, e in enumerate(engines) if e.usable and i not in avoid]
    assert (pick is None) == (not allowed)
    if pick is not None:
        assert pick in allowed
        best = min(engines[i].prompt_bytes / engines[i].weight for i in allowed)
        assert engines[pick].prompt_bytes / engines[pick].weight == best
