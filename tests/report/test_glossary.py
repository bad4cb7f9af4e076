"""Words that not every reader knows are marked once a section, and nothing else is touched."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from twolane.report.glossary import TERMS, annotated, listed
from twolane.report.markup import Markup, el, join


def terms(html: str) -> list[str]:
    return re.findall(r'class="term" aria-describedby="term-([a-z-]+)"', html)


def test_a_term_is_marked_where_a_section_first_says_it() -> None:
    said = join(el("p", "The budget of a block."), el("p", "Budgets and blocks: TTFT."))
    assert terms(annotated(said)) == ["token-budget", "block", "ttft"]


def test_the_campaigns_blocks_and_the_caches_are_two_terms() -> None:
    assert terms(annotated(el("p", "KV blocks of 16 tokens, in a block"))) == ["kv-block", "block"]


def test_a_marked_term_has_its_tip_and_its_place_in_the_list() -> None:
    page = annotated(el("p", "a null run")) + listed()
    assert 'href="#term-null-run"' in page
    assert 'id="term-null-run"' in page
    assert page.count(TERMS["shot"]) == 1


def test_links_arms_code_and_headings_are_left_alone() -> None:
    said = join(
        el("h3", "The budget"),
        el(
            "p",
            el("a", "a budget", href="#x"),
            el("span", "split", class_="arm"),
            el("code", "gap"),
        ),
        el("p", "split_1p1d, un-split, A"),
    )
    assert annotated(said) == said


def test_no_term_is_part_of_a_word() -> None:
    assert terms(annotated(el("p", "armada, blocked, coded-all"))) == []


@given(st.lists(st.text(alphabet="ab <&split ap", max_size=30), max_size=4))
def test_text_stays_the_same_but_for_tips(parts: list[str]) -> None:
    said = join([el("p", part) for part in parts])
    bare = re.sub(
        r'<span class="tip".*?</span>|<a [^>]*class="term"[^>]*>|</a>', "", annotated(said)
    )
    assert bare == said


def test_every_meaning_is_one_clause_without_markup() -> None:
    assert all(not isinstance(text, Markup) and not text.endswith(".") for text in TERMS.values())
