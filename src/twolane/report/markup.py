"""HTML as nested calls: text is escaped unless it is already markup.

Rules of this file: it knows HTML's syntax and nothing of what is shown. One function makes every
element, so that no text of a log or a prompt can become markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

VOID = frozenset({"br", "col", "hr", "img", "meta", "link"})


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]


def el(tag: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """One element. `class_` is written `class`, `aria_label` `aria-label`; None and False drop."""
    opened = tag + "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{opened}>")
    return Markup(f"<{opened}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Children in order, text escaped, None dropped."""
    return Markup("".join(_text(child) for child in children))


def commas(parts: Sequence[Markup | str]) -> list[Markup | str]:
    """`a, b and c` of pieces that are markup."""
    between = [", "] * (len(parts) - 2) + [" and "] * (len(parts) > 1)
    return [*(piece for pair in zip(parts, between) for piece in pair), *parts[-1:]]  # noqa: B905


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return escape(child, quote=False)
    return join(*child)


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'


def table(
    head: Iterable[Child],
    rows: Iterable[Iterable[Child]],
    *,
    caption: str,
    class_: str | None = None,
) -> Markup:
    """A table whose first column is headers; numbers elsewhere, set right by the style sheet.

    With the class `cards` each row is a card on a phone, every cell under its column's name.
    """
    names = list(head)
    labels = map(_plain, names) if class_ == "cards" else [None] * len(names)
    under = list(labels)
    return el(
        "table",
        el("caption", caption, class_="unseen"),
        el("thead", el("tr", [el("th", cell, scope="col") for cell in names])),
        el("tbody", [el("tr", _row(row, under)) for row in rows]),
        class_=class_,
    )


def _row(row: Iterable[Child], under: Sequence[str | None]) -> list[Markup]:
    first, *rest = row
    cells = [el("td", cell, data_label=name) for cell, name in zip(rest, under[1:], strict=True)]
    return [el("th", first, scope="row", data_label=under[0]), *cells]


def _plain(name: Child) -> str | None:
    return name if isinstance(name, str) and not isinstance(name, Markup) else None


def scroll(inside: Markup, label: str) -> Markup:
    """A wide table's own scrolling box, reachable by keyboard."""
    return el("div", inside, class_="scroll", tabindex="0", role="region", aria_label=label)


def details(
    summary: Child, *inside: Child, id_: str | None = None, class_: str | None = None
) -> Markup:
    """A part that is closed at first; of class `data` it is open on paper."""
    return el("details", el("summary", summary), *inside, id=id_, class_=class_)
