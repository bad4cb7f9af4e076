"""What a router's command leaves open is known by name, or refused before anything starts."""

from __future__ import annotations

import pytest

from twolane.errors import QuestionError
from twolane.proxy.conformance import placeholders

VALUES = {name: f"<{name}>" for name in placeholders.KNOWN}


def test_every_known_one_is_filled_in_wherever_it_stands() -> None:
    argv = [f"--a={{{name}}}/v1" for name in placeholders.KNOWN]
    placeholders.require(argv)
    assert placeholders.fill(argv, VALUES) == [f"--a=<{n}>/v1" for n in placeholders.KNOWN]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("{prefil}", "{prefill}"),
        ("--to={decode_adress}", "{decode_address}"),
        ("{PORT}", "{port}"),
        ("{prefill-port}", "{prefill_port}"),
        ("{ port }", "{port}"),
        ("{model}", ""),
    ],
)
def test_an_unknown_one_is_refused_with_place_value_and_what_exists(word: str, near: str) -> None:
    with pytest.raises(QuestionError) as refused:
        placeholders.require(["router", word, "{port}"])
    said = refused.value
    assert word in said.what
    assert "in word 2" in said.what
    assert said.place.startswith("router ")
    assert ("did you mean" in said.remedy) == bool(near)
    assert not near or f"did you mean {near}?" in said.remedy
    assert all(f"{{{name}}}" in said.remedy for name in placeholders.KNOWN)


def test_all_unknown_ones_are_named_in_one_go() -> None:
    with pytest.raises(QuestionError) as refused:
        placeholders.require(["router", "{prefil}", "{decod}"])
    assert "{prefil} in word 2" in refused.value.what
    assert "{decod} in word 3" in refused.value.what


@pytest.mark.parametrize("word", ["${HOME}", "{{name}}", '{"a": 1}', "{}", "{0}", "x{a b}"])
def test_what_belongs_to_others_passes_as_it_is(word: str) -> None:
    placeholders.require([word, "{port}"])
    assert placeholders.fill([word], VALUES) == [word]


def test_a_command_needs_a_port() -> None:
    with pytest.raises(QuestionError, match=r"no \{port\}"):
        placeholders.require(["router", "{prefill}"])
