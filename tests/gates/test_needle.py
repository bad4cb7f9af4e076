"""Needle prompts have exact lengths and one answer each, and answers are judged strictly."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twolane.errors import QuestionError
from twolane.gates.needle import (
    ANSWER_LENGTH,
    CONTEXT_LENGTH,
    DEPTHS,
    SALT_LENGTH,
    NeedlePrompt,
    NeedleVerdict,
    echo,
    filler,
    make,
    salt,
    score,
)

LENGTHS = st.integers(500, 5_000)
SEEDS = st.integers(0, 2**63)
SOME_DEPTHS = st.lists(st.floats(0, 1), min_size=1, max_size=5)

PROMPT = NeedlePrompt(
    text="...", key="Q7ZK4M2B", answer="48201736", depth=0.5, others=("11112222", "33334444")
)


# --- Prompts ------------------------------------------------------------------------------------


@given(LENGTHS, SEEDS, SOME_DEPTHS)
def test_a_prompt_has_the_length_asked_for(length: int, seed: int, depths: list[float]) -> None:
    prompts = make(length, seed, depths)
    assert [len(prompt.text.encode("ascii")) for prompt in prompts] == [length] * len(depths)
    assert [prompt.depth for prompt in prompts] == depths


@given(LENGTHS, SEEDS)
def test_every_prompt_holds_every_fact_once(length: int, seed: int) -> None:
    prompts = make(length, seed)
    for asked in prompts:
        for planted in prompts:
            assert asked.text.count(f"\nRemember: {planted.key}={planted.answer}\n") == 1
            assert asked.text.count(planted.answer) == 1
        assert {*asked.others, asked.answer} == {each.answer for each in prompts}


@given(LENGTHS, SEEDS)
def test_a_prompt_ends_with_a_context_that_leads_to_one_place(length: int, seed: int) -> None:
    for prompt in make(length, seed):
        context = prompt.text[-CONTEXT_LENGTH:]
        assert prompt.text.endswith(f"{prompt.key}=")
        assert prompt.text.count(context) == 2  # the fact and the question
        place = prompt.text.index(context) + CONTEXT_LENGTH
        assert prompt.text[place : place + ANSWER_LENGTH] == prompt.answer


@given(LENGTHS, SEEDS)
def test_facts_share_no_window_that_could_mislead(length: int, seed: int) -> None:
    lines = [f"{prompt.key}={prompt.answer}" for prompt in make(length, seed)]
    windows = [
        line[start : start + CONTEXT_LENGTH]
        for line in lines
        for start in range(len(line) - CONTEXT_LENGTH + 1)
    ]
    assert len(windows) == len(set(windows))


@settings(deadline=None)
@given(SEEDS, SOME_DEPTHS)
def test_facts_stand_at_their_depths(seed: int, depths: list[float]) -> None:
    length = 20_000
    for prompt in make(length, seed, depths):
        place = prompt.text.index(f"{prompt.key}={prompt.answer}")
        assert place / length == pytest.approx(prompt.depth, abs=0.03)


@given(st.lists(st.tuples(LENGTHS, SEEDS), min_size=2, max_size=4, unique=True))
def test_prompts_never_share_a_first_block(calls: list[tuple[int, int]]) -> None:
    starts = [prompt.text[:SALT_LENGTH] for length, seed in calls for prompt in make(length, seed)]
    assert len(starts) == len(set(starts))


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert make(1_000, seed=5) == make(1_000, seed=5)
    assert make(1_000, seed=5) != make(1_000, seed=6)


def test_the_default_is_three_facts_at_spread_depths() -> None:
    assert [prompt.depth for prompt in make(1_000, seed=1)] == list(DEPTHS)


def test_too_short_a_prompt_names_the_length_that_would_do() -> None:
    with pytest.raises(QuestionError) as caught:
        make(50, seed=1)
    least = int(caught.value.remedy.split()[4])
    assert len(make(least, seed=1)[0].text) == least
    with pytest.raises(QuestionError):
        make(least - 1, seed=1)


@pytest.mark.parametrize("depths", [(), (-0.1,), (0.5, 1.1), (float("nan"),)])
def test_depths_outside_the_haystack_are_refused(depths: tuple[float, ...]) -> None:
    with pytest.raises(QuestionError):
        make(1_000, seed=1, depths=depths)


# --- Verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        "48201736",
        " 48201736\n",
        "48201736\nRemember: something else",
        "48201736.",
        "**48201736**",
        "Q7ZK4M2B=48201736",
    ],
)
def test_the_planted_value_is_right(answer: str) -> None:
    assert score(PROMPT, answer) == NeedleVerdict(ok=True, reason=None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no answer"),
        (" \n", "no answer"),
        ("...", "no answer"),
        ("48201737", "wrong value"),
        ("4820173", "wrong value"),
        ("482017360", "wrong value"),
        ("48201736x", "wrong value"),
        ("I do not know. 48201736", "wrong value"),
        ("11112222", "another needle's value"),
        ("33334444\n48201736", "another needle's value"),
    ],
)
def test_a_miss_has_a_reason(answer: str, reason: str) -> None:
    assert score(PROMPT, answer) == NeedleVerdict(ok=False, reason=reason)  # type: ignore[arg-type]


@given(LENGTHS, SEEDS)
def test_only_its_own_answer_is_right(length: int, seed: int) -> None:
    prompts = make(length, seed)
    for asked in prompts:
        for answered in prompts:
            verdict = score(asked, answered.answer)
            assert verdict.ok is (asked is answered)
            assert verdict.reason == (None if verdict.ok else "another needle's value")


@given(st.text())
def test_any_answer_gets_a_verdict(answer: str) -> None:
    verdict = score(PROMPT, answer)
    assert verdict.ok is (verdict.reason is None)


# --- Filler ---------------------------------------------------------------------------------------


@given(st.integers(0, 5_000), SEEDS)
def test_filler_is_words_in_small_letters(length: int, seed: int) -> None:
    text = filler(length, seed)
    assert len(text) == length
    assert set(text) <= {*string.ascii_lowercase, " "}
    words = text.split(" ")[:-1]  # the last may be cut short
    assert all(3 <= len(word) <= 9 for word in words)


def test_a_million_bytes_of_filler_do_not_repeat_themselves() -> None:
    text = filler(1_000_000, seed=1)
    contexts = {text[start : start + CONTEXT_LENGTH] for start in range(0, len(text), 16)}
    assert len(contexts) >= len(text) // 16 - 3


def test_different_seeds_give_different_filler() -> None:
    assert filler(100, seed=1) != filler(100, seed=2)


@given(LENGTHS, SEEDS, st.floats(0, 1))
def test_an_echo_quotes_itself(length: int, seed: int, depth: float) -> None:
    prompt = echo(length, seed, depth)
    assert len(prompt.text) == length
    quotation = prompt.text[-2 * CONTEXT_LENGTH :]
    place = prompt.text.index(quotation) + len(quotation)
    assert prompt.cycle == prompt.text[place:]


@given(st.integers(0, 3_000))
def test_the_continuation_of_an_echo_starts_over(length: int) -> None:
    prompt = echo(600, seed=1)
    expected = prompt.continuation(length)
    assert len(expected) == length
    assert all(expected[i] == prompt.cycle[i % len(prompt.cycle)] for i in range(length))


def test_an_echo_needs_something_to_quote() -> None:
    with pytest.raises(QuestionError) as caught:
        echo(20, seed=1)
    least = int(caught.value.remedy.split()[4])
    assert len(echo(least, seed=1).text) == least
    with pytest.raises(QuestionError):
        echo(least - 1, seed=1)


def test_salts_differ_for_different_parts() -> None:
    salts = {salt(seed, index) for seed in range(50) for index in range(50)}
    assert len(salts) == 2_500
    assert {len(each) for each in salts} == {SALT_LENGTH}
