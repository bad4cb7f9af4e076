"""The words that not every reader knows: marked where a section first says them, told in a tip.

Rules of this file: a term is a link to its line in the glossary, so that keyboard, touch and screen
readers get what the pointer gets; the tip is the same text again. Only paragraphs are marked, and
nothing inside another link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from twolane.report.markup import Markup, el

TERMS: Final[Mapping[str, str]] = {
    "A/A": "two arms that are told to run in the same way: what they differ by is noise",
    "arm": "one way of running the engines: a layout and its settings",
    "block": "every arm freshly started and measured once; verdicts are over blocks",
    "chunk": "the piece of a prompt that one engine step computes, at most the token budget",
    "coded": "with a reason code: the point is shown, and enters no verdict",
    "decode": "making the tokens of an answer, one a step",
    "gap": "the time between two token events of one stream",
    "interval": "where the true ratio lies in 95 % of such experiments",
    "KV block": "the piece, in tokens, in which an engine\u2019s KV cache is given out and moved",
    "needle": "a fact planted in a prompt and asked for: who finds it has read the prompt",
    "noise floor": "what two arms that are told to run alike were apart: less is no effect",
    "null run": "the same cell with a sleep in the long prompt\u2019s place: what it shows is the "
    "client\u2019s and the machine\u2019s own",
    "prefill": "computing a prompt, before its first token can be made",
    "prefix": "how much of a prompt has been read in, in tokens",
    "reader": "a stream that already gets its answer when the long prompt comes (a victim)",
    "shot": "one long prompt sent beside fresh readers",
    "split": "one engine reads prompts in, another makes the answers; the KV cache is moved",
    "stall": "a gap longer than 50 ms and than three times the stream\u2019s usual one",
    "throughput": "tokens that arrived in the window, over the window",
    "token budget": "the most tokens that an engine computes in one step "
    "(--max-num-batched-tokens), prompts and answers together",
    "TPOT": "time per output token: from the first token to the last, over the tokens after it",
    "TTFT": "time to first token: from a request\u2019s first byte sent to its first token",
}
_ALSO: Final[Mapping[str, str]] = {"budget": "token budget", "splits": "split"}
_EVERY = sorted([*TERMS, *_ALSO], key=len, reverse=True)
_TERM = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _EVERY))})(s?)(?![\w-])", re.IGNORECASE)
_PARAGRAPH = re.compile(r"(<p\b[^>]*>)(.*?)(</p>)", re.DOTALL)
_TAG = re.compile(r"(<[^>]*>)")


def annotated(section: Markup) -> Markup:
    """A section with each term marked in the first paragraph that has it."""
    seen: set[str] = set()

    def paragraph(found: re.Match[str]) -> str:
        if "aria-hidden" in found[1]:
            return found[0]
        return found[1] + _marked(found[2], seen) + found[3]

    return Markup(_PARAGRAPH.sub(paragraph, section))


def _marked(inside: str, seen: set[str]) -> str:
    """The inside of a paragraph; what is a link, code or an arm's name stays as it is."""
    parts: list[str] = []
    until = ""
    for part in _TAG.split(inside):
        if part.startswith("<"):
            until = _until(part) if not until else "" if part == until else until
            parts.append(part)
        else:
            parts.append(part if until else _TERM.sub(lambda found: _link(found, seen), part))
    return "".join(parts)


def _until(tag: str) -> str:
    """The tag that ends what `tag` begins and is not marked; empty where it is marked."""
    if tag.startswith("<a "):
        return "</a>"
    if tag.startswith("<code"):
        return "</code>"
    return "</span>" if 'class="arm"' in tag and tag.startswith("<span") else ""


def _link(found: re.Match[str], seen: set[str]) -> str:
    word = found[1] if found[1] in TERMS else found[1].lower()
    term = _ALSO.get(word, word)
    if term not in TERMS or term in seen:
        return found[0]
    seen.add(term)
    return el(
        "a",
        Markup(found[0]),
        el("span", TERMS[term], class_="tip", aria_hidden="true"),
        href=f"#{_id(term)}",
        class_="term",
        aria_describedby=_id(term),
    )


def _id(term: str) -> str:
    return f"term-{re.sub(r'[^a-z]+', '-', term.lower())}"


def listed() -> Markup:
    """Every term with its meaning."""
    pairs = [
        el("div", el("dt", term), el("dd", means, id=_id(term))) for term, means in TERMS.items()
    ]
    return el("dl", pairs, class_="formulas", id="glossary")
