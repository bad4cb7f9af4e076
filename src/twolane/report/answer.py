"""What a campaign was asked and how it is answered: one sentence, its state, what is missing.

Rules of this file: the shape of an answer and the words that all of them share. An answer from one
block is indicative; where nothing can be told it says what would have to be measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from twolane.analysis.compare import Comparison
from twolane.report.metrics import ratio

State = Literal["answered", "partly answered", "bounded only", "indicative", "cannot tell"]
Grade = Literal["exact", "bound", "unknown"]
"""How well one place of an answer is known: a bound is `32 or more`, `none measured`."""
Rows = tuple[tuple[str, ...], ...]
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Answer:
    """`rows` under `head` are what the sentence was made from; `tabled` ones are read there.

    `about` says what the question is of, where another one sounds alike.
    """

    id: str
    question: str
    answer: str
    state: State
    missing: str = ""
    head: tuple[str, ...] = ()
    rows: Rows = ()
    tabled: bool = False
    about: str = ""


def state(known: bool, sure: bool) -> State:
    return "cannot tell" if not known else "answered" if sure else "indicative"


def graded(grades: Sequence[Grade], sure: bool) -> State:
    """The state of an answer about several places: what is not known everywhere is no answer."""
    if all(grade == "unknown" for grade in grades):
        return "cannot tell"
    if not sure:
        return "indicative"
    if all(grade == "exact" for grade in grades):
        return "answered"
    return "bounded only" if all(grade == "bound" for grade in grades) else "partly answered"


def listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def first_up(text: str) -> str:
    return text[:1].upper() + text[1:]


def lacking(parts: Iterable[str]) -> str:
    """What is missing, each once."""
    return "; ".join(dict.fromkeys(part for part in parts if part))


def blocks(count: int) -> str:
    return f"{count} more block{'s' * (count != 1)}" if count else ""


def grouped(pairs: Iterable[tuple[int, str]]) -> str:
    """`(prompt, words)` pairs, shortest first: `at 1,000 and 2,000 tokens words; at ...`."""
    by_words: dict[str, list[int]] = {}
    for prompt, words in sorted(pairs):
        by_words.setdefault(words, []).append(prompt)
    return "; ".join(
        f"at {listed([f'{p:,}' for p in dict.fromkeys(prompts)])} tokens {words}"
        for words, prompts in by_words.items()
    )


def interval(found: Comparison | None) -> str:
    """A comparison's ratio with its interval."""
    if found is None or found.ratio is None:
        return NOTHING
    if found.low is None or found.high is None:
        return ratio(found.ratio)
    return f"{ratio(found.ratio)} [{ratio(found.low)[:-1]}, {ratio(found.high)[:-1]}]"
