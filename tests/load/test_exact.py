"""Needle prompts are as long as asked by a tokeniser that is not ours, and ask the same."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden_engine import Pace, serve

from twolane.errors import QuestionError
from twolane.gates import needle
from twolane.load import exact
from twolane.load.driver import Target, drive, form_of
from twolane.records import NeedleCell, Request


def encoder(letters: int, words: dict[int, str]) -> exact.Encode:
    """`letters` are a token; `words` learns what each id stands for."""

    def encode(text: str) -> list[int]:
        pieces = [text[at : at + letters] for at in range(0, len(text), letters)]
        known = {piece: number for number, piece in words.items()}
        for piece in pieces:
            number = known.setdefault(piece, len(known) + 1000)
            words[number] = piece
        return [known[piece] for piece in pieces]

    return encode


@given(st.integers(1, 7), st.integers(500, 3000), st.integers(0, 50))
def test_prompts_have_their_length_and_all_that_is_planted(
    letters: int, tokens: int, seed: int
) -> None:
    for prompt in needle.make(tokens, seed):
        words: dict[int, str] = {}
        ids = exact.fitted(prompt.text, tokens, encoder(letters, words))
        text = "".join(words[number] for number in ids)
        assert len(ids) == tokens
        assert text.startswith(prompt.text[: needle.SALT_LENGTH])
        assert text.endswith(f"\n{prompt.key}=")
        fact = f"Remember: {prompt.key}={prompt.answer}\n"
        hay = text.index("\nWhich value belongs")
        assert text.index(fact) / hay == pytest.approx(prompt.depth, abs=0.2)


def test_a_prompt_too_short_for_its_needles_is_refused() -> None:
    (prompt,) = needle.make(300, 1, [0.5])
    with pytest.raises(QuestionError, match="by this model's tokeniser"):
        exact.fitted(prompt.text, 100, encoder(1, {}))


@pytest.mark.parametrize("bytewise", [True, False])
async def test_a_needle_cell_is_as_long_as_it_says_whatever_a_token_is(bytewise: bool) -> None:
    got: list[Request] = []
    async with serve(Pace(bytewise=bytewise)) as (_, port):
        target = Target("127.0.0.1", port, "golden")
        target = dataclasses.replace(target, form=await form_of(target))
        cell = NeedleCell(id="needle 500", prompt=500)
        await drive(cell, target, seed=1, record=got.append, progress=lambda _: None)
    assert [r.prompt_tokens for r in got] == [500] * 3
