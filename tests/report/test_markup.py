"""Nothing that is shown can become markup."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from twolane.report.markup import Markup, el, join, table


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Reader:
    reader = Reader()
    reader.feed(markup)
    reader.close()
    return reader


# A parser may normalise these; they carry no markup.
texts = st.text(st.characters(exclude_characters="\r\x00", exclude_categories=["Cs"]))


@given(texts, texts)
def test_text_and_attributes_come_back_as_they_went_in(text: str, attribute: str) -> None:
    found = read(el("p", text, title=attribute))
    assert found.tags == ["p"]
    assert found.text == text
    assert found.attributes == [("title", attribute)]


def test_markup_is_not_escaped_twice() -> None:
    assert el("p", el("b", "<"), " & ") == "<p><b>&lt;</b> &amp; </p>"


def test_attributes_lose_their_underscores_and_drop_when_false() -> None:
    shown = el("i", class_="a", aria_label="b", hidden=False, open=True, title=None)
    assert shown == '<i class="a" aria-label="b" open></i>'


def test_void_elements_are_not_closed() -> None:
    assert el("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_children_may_be_nested_lists_and_none() -> None:
    assert join(["a", [Markup("<br>"), None]], None) == "a<br>"


def test_a_table_has_headers_for_rows_and_columns() -> None:
    shown = table(("arm", "ms"), [("x", "1")], caption="times")
    assert '<th scope="col">ms</th>' in shown
    assert '<th scope="row">x</th><td>1</td>' in shown
    cards = table(("arm", "ms"), [("x", "1")], caption="times", class_="cards")
    assert '<th scope="row" data-label="arm">x</th><td data-label="ms">1</td>' in cards
    assert "<caption" in shown
