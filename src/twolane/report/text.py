"""The answer in words: one sentence with its numbers and its confidence, and a terminal table.

Rules of this file: it says what the figures say and no more. An excluded figure is named as
such; one block is called indicative; where nothing was measured it says that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table
from rich.text import Text

from twolane.analysis.results import Results
from twolane.records import AnyCell, InterferenceCell
from twolane.report import otherwise, sure
from twolane.report.decision import Decision, decide, within_null
from twolane.report.facts import Facts, Figure, descriptions, inside, shown
from twolane.report.metrics import INTERFERENCE, Metric, number, spoken, unit_for
from twolane.report.sure import Note

WORST, NULL = INTERFERENCE[0], INTERFERENCE[1]


@dataclass(frozen=True)
class Piece:
    """A run of words of the verdict: plain words, a figure, or the best figure."""

    text: str
    kind: Literal["words", "figure", "best"] = "words"


@dataclass(frozen=True)
class Verdict:
    """What a page opens with: what to run, the finding, and how sure it is."""

    finding: tuple[Piece, ...]
    sure: tuple[Note, ...] = ()
    warned: tuple[Note, ...] = ()
    excluded: str = ""
    decided: Decision = field(default_factory=lambda: Decision(""))

    @property
    def decision(self) -> str:
        return self.decided.sentence

    @property
    def confidence(self) -> str:
        """How sure it is, in full."""
        return " ".join(note.full for note in self.sure)

    @property
    def caveats(self) -> str:
        """What a reader of any figure has to know, in full."""
        return " ".join(note.full for note in self.warned)

    @property
    def lines(self) -> list[str]:
        """The same for a terminal: the decision, its evidence below it, then the rest."""
        head = self.decided.headline
        evidence = [f"  {line}" for line in self.decided.lines]
        return [*([f"{head}.", *evidence, ""] if head else []), *self._rest]

    @property
    def _rest(self) -> list[str]:
        finding = "".join(piece.text for piece in self.finding)
        parts = (finding, self.confidence, self.excluded, self.caveats)
        return [part for part in parts if part]

    def __str__(self) -> str:
        return " ".join([*([self.decision] if self.decision else []), *self._rest])


def verdict_sentence(results: Results) -> str:
    """The answer to the campaign's question with its numbers and its confidence, plain text."""
    return str(verdict(Facts(results)))


def verdict(facts: Facts) -> Verdict:
    cell = facts.interference
    if not facts.results.runs:
        return _nothing(facts, "No run can be read here, so there is no answer.")
    if cell is None:
        return _otherwise(facts)
    words = descriptions(facts.results.runs)
    figures = [facts.figure(cell, WORST.key, arm) for arm in facts.arms]
    seen = [figure for figure in figures if figure.value is not None]
    if not seen:
        return _nothing(facts, "No arm has a worst pause, so there is no answer yet.")
    decision = decide(facts, cell)
    best = next((figure for figure in seen if figure.arm == decision.arm), None)
    return Verdict(
        decided=decision,
        finding=_finding(facts, cell, seen, decision, words),
        sure=sure.sure(facts, cell, seen, best),
        warned=(*sure.unequal(facts, cell), *sure.restless(facts, cell), *sure.warned(facts)),
        excluded=" ".join(_excluded(facts)),
    )


def _otherwise(facts: Facts) -> Verdict:
    """Of a campaign that asks something else, or that came to nothing yet."""
    told = otherwise.words(facts)
    if told is None:
        return _nothing(facts, "No run finished a cell with a figure, so there is no answer yet.")
    excluded = " ".join(_excluded(facts))
    notes = tuple(Note(words) for words in told.sure)
    return Verdict((), sure=notes, warned=sure.warned(facts), excluded=excluded, decided=told.found)


def _nothing(facts: Facts, why: str) -> Verdict:
    return Verdict((Piece(why),), warned=tuple(map(Note, facts.caveats)))


def _finding(
    facts: Facts,
    cell: InterferenceCell,
    seen: Sequence[Figure],
    decision: Decision,
    words: dict[str, str],
) -> tuple[Piece, ...]:
    readers = "the reader\u2019s" if cell.victims == 1 else "the readers\u2019"
    pieces = [
        Piece(f"While a {cell.prompt:,}-token prompt was prefilled, {readers} worst pause was ")
    ]
    for place, figure in enumerate(seen):
        pieces.append(Piece(_separator(place, len(seen))))
        won = decision.rival is not None and figure.arm == decision.arm
        pieces.append(Piece(_pause(figure.value, seen), "best" if won else "figure"))
        excluded = ", excluded" if figure.excluded else ""
        alone = _null(facts, cell, figure, seen)
        pieces.append(Piece(f" with {inside(words[figure.arm])}{excluded}{alone}"))
    pieces.append(Piece("."))
    return tuple(piece for piece in pieces if piece.text)


def _separator(place: int, count: int) -> str:
    if place == 0:
        return ""
    return " and " if place == count - 1 else ", "


def _pause(value: float | None, seen: Sequence[Figure]) -> str:
    """A pause in the unit of all the pauses of the sentence."""
    return spoken(value, WORST.unit, beside=[figure.value for figure in seen])


def _null(facts: Facts, cell: AnyCell, figure: Figure, seen: Sequence[Figure]) -> str:
    """What client and machine add by themselves to one arm, from its own null run."""
    alone = facts.figure(cell, NULL.key, figure.arm).value
    if alone is None:
        return " (no null run)"
    if not within_null(facts, cell, figure):
        return f" (null run: {_pause(alone, seen)})"
    rider = "so cannot tell it from what client and machine add"
    return f" (its own null run: {_pause(alone, seen)}, {rider})"


def _excluded(facts: Facts) -> list[str]:
    """How much is left out and under which codes; the page says why."""
    coded = facts.coded()
    if not coded:
        return []
    codes = ", ".join(sorted({code.code for measured in coded for code in measured.codes}))
    return [f"Excluded: {len(coded)} of {len(facts.measured)} measured cells ({codes})."]


# --------------------------------------------------------------------------------- terminal


def table(results: Results) -> Table:
    """Figures by cell and metric, one column an arm; excluded figures struck, codes beside."""
    facts = Facts(results)
    drawn = Table(pad_edge=False, box=None, header_style="bold")
    drawn.add_column("", min_width=32)
    for arm in facts.arms:
        drawn.add_column(Text(arm), justify="right", no_wrap=True)
    drawn.add_column("", style="dim")
    for cell in facts.cells:
        if metrics := shown(cell):
            drawn.add_row(Text(cell.id, style="bold"))
            for metric in metrics:
                drawn.add_row(*_line(facts, cell, metric))
    return drawn


def _line(facts: Facts, cell: AnyCell, metric: Metric) -> list[Text]:
    figures = [facts.figure(cell, metric.key, arm) for arm in facts.arms]
    unit, factor = unit_for(metric.unit, [figure.value for figure in figures])
    return [Text(f"  {metric.label}"), *(_text(f, factor) for f in figures), Text(unit)]


def _text(figure: Figure, factor: float) -> Text:
    value = None if figure.value is None else figure.value * factor
    if not figure.excluded:
        return Text(number(value))
    codes = "\n".join(dict.fromkeys(code.code for code in figure.codes))
    return Text.assemble((number(value), "strike dim"), (f"\n{codes}", "yellow"))
