"""What a decode engine is believed to hold: never a piece without those before it."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twolane.proxy.body import LARGE, Body
from twolane.proxy.prefixes import MOST, PIECE, Prefixes, Prompt, chained

TEXT = "".join(f"{i:08d}" for i in range(1000))  # 8,000 bytes, no piece like another


def prompt_of(body: dict[str, Any], **how: Any) -> Prompt | None:
    return ended(chained(Body.parse(json.dumps(body, **how).encode())))


def ended(steps: Generator[None, None, Prompt | None]) -> Prompt | None:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Prompt | None = end.value
            return found


def chain(body: dict[str, Any], **how: Any) -> list[int]:
    found = prompt_of(body, **how)
    return [] if found is None else list(found.chain)


def said(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {
        "messages": [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)],
        **more,
    }


# ---------------------------------------------------------------------------------- the chain


def test_a_longer_prompt_begins_with_the_chain_of_its_beginning() -> None:
    ids = list(range(3000))
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"prompt": TEXT[:4000]}, {"prompt": TEXT}),
        ({"prompt": ids[:2000]}, {"prompt": ids}),
        (said(TEXT[:4000]), said(TEXT[:4000], "an answer", "and a question" * 200)),
    ]
    for short, long in pairs:
        first, second = chain(short), chain(long)
        assert len(first) >= 7
        assert second[: len(first)] == first
        assert len(second) > len(first)


def test_what_a_prompt_shares_ends_with_the_first_difference() -> None:
    one, other = chain({"prompt": TEXT}), chain({"prompt": TEXT[:3000] + "x" + TEXT[3001:]})
    same = [a == b for a, b in zip(one, other, strict=True)]
    assert same == sorted(same, reverse=True)
    assert sum(same) == 3000 // PIECE


def test_whatever_changes_the_tokens_begins_another_chain() -> None:
    more: list[dict[str, Any]] = [
        {},
        {"model": "b"},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"cache_salt": "mine"},
        {"add_generation_prompt": False},
    ]
    firsts = [chain(said(TEXT) | one)[0] for one in more]
    assert len(set(firsts)) == len(more)
    assert chain(said(TEXT, temperature=1, stream=True, max_tokens=3)) == chain(said(TEXT))


def test_one_form_whatever_the_clients_spaces_escapes_and_order() -> None:
    messages = [{"role": "user", "content": "größer " * 200}]
    turned = [dict(reversed(m.items())) for m in messages]
    one = chain({"messages": messages})
    assert one == chain({"messages": turned}, ensure_ascii=False)
    assert one == chain({"messages": messages}, indent=3)
    assert chain({"prompt": [*range(900)]}) == chain(
        {"prompt": [*range(900)]}, separators=(",", ":")
    )


def test_a_short_prompt_or_none_has_no_chain() -> None:
    assert prompt_of({"prompt": "x" * (PIECE - 2)}) is None
    assert prompt_of({"model": "m"}) is None
    assert prompt_of({"prompt": None}) is None


def test_a_large_prompt_is_hashed_in_steps_as_it_came() -> None:
    body = Body.parse(json.dumps({"prompt": "z" * (LARGE + PIECE)}).encode())
    steps = list(chained(body))
    assert len(steps) == (LARGE + PIECE) // PIECE // 512
    found = ended(chained(body))
    assert found is not None
    assert len(found.chain) == (LARGE + PIECE) // PIECE


def test_what_no_decoder_takes_is_hashed_as_it_came() -> None:
    nested = b"[" * 5000 + b"]" * 5000
    for raw in (nested, b'"' + b"\\ud800" * 200 + b'"', b"[" + b"9" * 600 + b"]"):
        found = ended(chained(Body({"prompt": raw}, len(raw))))
        assert found is not None
        assert len(found.chain) >= 1


def test_bytes_left_are_those_of_the_prompt_alone_once_its_beginning_is_held() -> None:
    found = prompt_of(said(TEXT, tools=["t" * 9000]))
    assert found is not None
    assert found.size < 8200
    assert found.bytes_without(0) == found.size
    assert found.bytes_without(8) == found.size * (1 - 8 / found.whole)
    assert 0 <= found.bytes_without(len(found.chain)) < 2 * PIECE


# ------------------------------------------------------------------------------- what is held


def test_the_least_recently_served_is_forgotten_first_and_of_a_prompt_its_end() -> None:
    one = Prefixes()
    one.served([1, 2, 3], most=5)
    one.served([10, 11, 12], most=5)
    assert (one.held([1, 2, 3]), one.held([10, 11, 12]), len(one)) == (2, 3, 5)
    one.served([1, 2], most=5)
    one.served([20, 21], most=5)
    assert (one.held([1, 2, 3]), one.held([10, 11, 12]), one.held([20, 21, 22])) == (2, 1, 2)
    one.forget()
    assert (len(one), one.held([1])) == (0, 0)


def test_what_was_lost_was_lost_with_all_that_is_older() -> None:
    one = Prefixes()
    one.served([1, 2, 3, 4])
    one.served([10, 11])
    one.served([1, 2])
    one.served([20, 21])
    one.refuted([10, 11], had=1)
    assert [one.held(c) for c in ([1, 2, 3, 4], [10, 11], [20, 21])] == [2, 1, 2]


def test_after_wrong_beliefs_ever_more_are_passed_over_until_one_is_right() -> None:
    one = Prefixes()
    passed = []
    for _ in range(10):
        one.refuted([], had=0)
        count = 0
        while one.doubted():
            count += 1
        passed.append(count)
    assert passed == [1, 3, 7, 15, 31, 63, 127, 255, 255, 255]
    one.confirmed()
    one.refuted([], had=0)
    assert [one.doubted(), one.doubted()] == [True, False]


trees = st.lists(st.integers(0, 2), max_size=6).map(
    # A piece is known by all before it, as the chain's hashes are.
    lambda path: [hash(tuple(path[: i + 1])) for i in range(len(path))]
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("served"), trees, st.integers(0, 8)),
        st.tuples(st.just("refuted"), trees, st.integers(0, 8)),
    ),
    max_size=40,
)


@given(steps, trees)
def test_bounded_and_closed_towards_the_beginning(
    done: list[tuple[str, list[int], int]], asked: list[int]
) -> None:
    one = Prefixes()
    served: set[int] = set()
    for what, pieces, number in done:
        if what == "served":
            one.served(pieces, most=number)
            served.update(pieces)
            assert len(one) <= number
            assert one.held(pieces) == min(len(pieces), number)
        else:
            one.refuted(pieces, had=number)
            assert one.held(pieces) <= number
    held = one.held(asked)
    assert set(asked[:held]) <= served
    known = [one.held(asked[: i + 1]) == i + 1 for i in range(len(asked))]
    assert known == [i < held for i in range(len(asked))]  # no gap before what is known


def test_the_stated_bound() -> None:
    one = Prefixes()
    one.served(range(MOST + 7))
    assert len(one) == MOST
