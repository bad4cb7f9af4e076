"""Conversations whose every turn asks for a fact."""

import pytest

from twolane.errors import QuestionError
from twolane.gates import conversation


@pytest.mark.parametrize(("prompt", "turns", "answer"), [(2000, 4, 16), (24_000, 8, 64)])
def test_turns_and_answers_add_up_to_the_lengths(prompt: int, turns: int, answer: int) -> None:
    history = ""
    for turn, length in zip(
        conversation.make(prompt, turns, answer, seed=5),
        conversation.lengths(prompt, turns),
        strict=True,
    ):
        history += turn.text
        assert len(history) == length
        assert history.endswith(f"\n{turn.key}=")
        assert history.count(f"Remember: {turn.key}={turn.answer}\n") == 1
        assert history.count(f"{turn.key}=") == 2  # planted once, asked once
        assert turn.answer not in turn.others
        history += "x" * answer


def test_every_second_turn_asks_for_what_the_first_one_said() -> None:
    turns = conversation.make(4000, 6, 16, seed=5)
    asked_of_first = [f"Remember: {turn.key}=" in turns[0].text for turn in turns]
    assert asked_of_first == [True, False] * 3


def test_users_and_seeds_share_no_prefix() -> None:
    starts = {
        conversation.make(2000, 4, 16, seed, user)[0].text[:16]
        for seed in range(3)
        for user in range(3)
    }
    assert len(starts) == 9
    assert conversation.make(2000, 4, 16, 1) == conversation.make(2000, 4, 16, 1)


def test_a_turn_that_is_too_short_says_by_how_much() -> None:
    with pytest.raises(QuestionError, match="does not hold") as caught:
        conversation.make(400, 4, 16, seed=1)
    assert "tokens longer" in caught.value.remedy
