import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twolane.errors import QuestionError
from twolane.load import prompts
from twolane.load.orders import Ask


@given(st.integers(16, 5000), st.integers(0, 2**63))
def test_a_prompt_has_its_length_and_needs_no_escape(length: int, seed: int) -> None:
    text = prompts.text(length, seed, "c", 1)
    assert len(text.encode("ascii")) == length
    assert not set(text) & set('"\\')
    assert text.isprintable()


def test_no_two_prompts_share_their_first_block() -> None:
    firsts = {
        prompts.text(64, seed, cell, index)[:16]
        for seed in range(5)
        for cell in ("a", "b")
        for index in range(200)
    }
    assert len(firsts) == 5 * 2 * 200


def test_the_same_place_gives_the_same_prompt() -> None:
    assert prompts.text(500, 7, "c", 1) == prompts.text(500, 7, "c", 1)
    assert prompts.text(500, 7, "c", 1) != prompts.text(500, 7, "c", 2)


def test_shots_and_roles_do_not_share() -> None:
    asks = [
        Ask(key=0, id="", cell="c", role=role, index=0, shot=shot, prompt=64, output=1)
        for role in ("victim", "aggressor")
        for shot in (0, 1)
    ]
    assert len({prompts.of(ask, 1, "text")[:16] for ask in asks}) == 4


def test_a_ready_prompt_is_left_alone() -> None:
    ask = Ask(key=0, id="", cell="c", role="needle", index=0, prompt=3, output=1, text="abc")
    assert prompts.of(ask, 1, "text") == "abc"


def test_a_million_tokens_take_no_time() -> None:
    begin = time.process_time()
    assert len(prompts.text(1_000_000, 1, "x")) == 1_000_000
    assert time.process_time() - begin < 2


def test_a_prompt_too_short_to_be_its_own_is_refused() -> None:
    with pytest.raises(QuestionError, match="15 tokens"):
        prompts.text(15, 1)


def test_greedy_probes_are_named_by_length_and_seed() -> None:
    assert {name: len(text) for name, text in prompts.greedy([80, 200], 4).items()} == {
        "80/4": 80,
        "200/4": 200,
    }


@given(st.integers(16, 3000), st.integers(0, 2**63))
def test_ids_have_their_number_and_are_plain(length: int, seed: int) -> None:
    drawn = prompts.ids(length, seed, "c", 1)
    assert len(drawn) == length
    assert min(drawn) >= prompts.FIRST_ID
    assert max(drawn) < prompts.PAST_LAST_ID
    assert drawn == prompts.ids(length, seed, "c", 1)
    assert drawn[:16] != prompts.ids(length, seed, "c", 2)[:16]


def test_an_ask_is_made_in_the_form_that_its_server_takes() -> None:
    ask = Ask(key=0, id="", cell="c", role="grid", index=0, prompt=32, output=1)
    assert isinstance(prompts.of(ask, 1, "text"), str)
    assert isinstance(prompts.of(ask, 1, "ids"), list)
    ready = Ask(key=0, id="", cell="c", role="grid", index=0, prompt=32, output=1, text="x")
    assert prompts.of(ready, 1, "ids") == "x"
