"""What enters no verdict, one line an arm and code, and what is known of why.

Rules of this file: counts are of measured cells; every one of them stands by name, with its reason,
in the list of excluded points. Where codes strike one arm alone it is said, since that is rarely
chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from twolane.analysis.points import Measured
from twolane.records import AnyCell, Code, GridCell, InterferenceCell
from twolane.report import again, unproven
from twolane.report.codes import LITTLE, REMEDIES, means
from twolane.report.facts import Facts
from twolane.report.markup import Markup, commas, details, el

SHARE = "foreign_cpu_share"  # as the campaign writes it beside a cell's values


def left_out(facts: Facts) -> Markup:
    coded = facts.coded()
    if not coded:
        return el("p", f"Measured points excluded: none of {len(facts.measured)}.")
    head = f"{len(coded)} of {len(facts.measured)} measured cells enter no verdict:"
    items = [el("li", _line(*one)) for one in _alike(facts)]
    notes = [el("p", note) for note in remarks(facts)]
    whose = (
        details("Whose CPU time", el("p", busy), class_="data") if (busy := _busy(facts)) else None
    )
    return el("div", el("p", head), el("ul", items), notes, whose, el("p", _redo(facts)))


def _alike(facts: Facts) -> list[tuple[list[str], str, str, str]]:
    """Arms of which the same code struck as many cells: names, counts, code, how much."""
    found: dict[tuple[str, str], list[str]] = {}
    for arm, code in _struck(facts.coded()):
        found.setdefault((counted(facts, arm, code), code), []).append(arm)
    return [
        (names, counts, code, _how_much([c for arm in names for c in _codes(facts, arm, code)]))
        for (counts, code), names in found.items()
    ]


def plain(facts: Facts) -> list[str]:
    """The same for a terminal: a line for each arm and code, a cell alone by its name."""
    return [
        f"{code} {arm}{_where(facts, arm, code)}{_how_much(_codes(facts, arm, code))}"
        for arm, code in _struck(facts.coded())
    ]


def _where(facts: Facts, arm: str, code: str) -> str:
    mine = [one for one in facts.coded() if one.run.arm == arm]
    struck = [one for one in mine if any(c.code == code for c in one.codes)]
    if len(struck) > 1:
        return f": {counted(facts, arm, code)}"
    return f", block {struck[0].run.block + 1}, {struck[0].cell.id}"


def _struck(coded: Iterable[Measured]) -> list[tuple[str, str]]:
    """Arm and code, each pair once."""
    return list(dict.fromkeys((one.run.arm, code.code) for one in coded for code in one.codes))


def _line(names: Sequence[str], counts: str, code: str, how_much: str) -> list[Markup | str]:
    each = " each" if len(names) > 1 else ""
    return [
        *commas([el("b", name, class_="arm") for name in names]),
        f": {counts}{each}: ",
        el("a", code, href="#excluded", title=means(code)),
        how_much,
    ]


def _codes(facts: Facts, arm: str, code: str) -> list[Code]:
    mine = (one for one in facts.coded() if one.run.arm == arm)
    return [c for one in mine for c in one.codes if c.code == code]


def counted(facts: Facts, arm: str, code: str) -> str:
    """`3 of 3 long-prompt cells and 1 of 3 short-prompt cells` of an arm."""
    mine = [one for one in facts.measured if one.run.arm == arm]
    parts = []
    for kind in dict.fromkeys(_kind(one.cell) for one in mine):
        cells = [one for one in mine if _kind(one.cell) == kind]
        struck = sum(any(c.code == code for c in one.codes) for one in cells)
        if struck:
            parts.append(f"{struck} of {len(cells)} {kind} cells")
    return " and ".join(parts)


def _kind(cell: AnyCell) -> str:
    if isinstance(cell, InterferenceCell):
        return "long-prompt"
    return "short-prompt" if isinstance(cell, GridCell) else str(cell.__struct_config__.tag)


def _how_much(codes: Sequence[Code]) -> str:
    """What was measured against what is allowed; shares in percent, reasons where no number is."""
    if {code.code for code in codes} == {"BUSY"} and all(code.value is not None for code in codes):
        limit = next((code.limit for code in codes if code.limit is not None), None)
        allowed = f", limit {_range([limit])}" if limit is not None else ""
        return f" ({_range([code.value or 0.0 for code in codes])}{allowed})"
    whys = list(dict.fromkeys(means(LITTLE) if c.code == LITTLE else c.why for c in codes))
    return f", {'; '.join(whys)}"


def _range(shares: Sequence[float]) -> str:
    low, high = f"{min(shares) * 100:.0f}", f"{max(shares) * 100:.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def remarks(facts: Facts) -> list[str]:
    """Whether codes strike one arm alone."""
    coded = facts.coded()
    struck = {one.run.arm for one in coded}
    found = []
    if len(struck) == 1 and len(coded) > 1 and len(facts.arms) > 1:
        found.append(f"Only {struck.pop()} is struck, so the cause may lie in that arm itself.")
    return found


def _busy(facts: Facts) -> str:
    """What the cells without a code had, and whose time it is; empty without a code BUSY."""
    if not any(code == "BUSY" for _, code in _struck(facts.coded())):
        return ""
    clean = [share for run in facts.results.runs for c in run.cells if not c.codes
             and (share := c.values.get(SHARE)) is not None]  # fmt: skip
    passed = f" Cells that passed had {_range(clean)}." if clean else ""
    return (
        "That is the host\u2019s CPU time, interrupts and stolen time included, that neither "
        f"twolane\u2019s own processes nor its engines were charged with.{passed} Which processes "
        "had it was not recorded."
    )


def _redo(facts: Facts) -> list[Markup | str]:
    """The command that measures them again, or what is needed instead."""
    codes = list(dict.fromkeys(code for _, code in _struck(facts.coded())))
    if remedy := unproven.remedy(facts, codes):
        return [
            el("a", "Each by name", href="#excluded"),
            f". To measure again is no help: {remedy}.",
        ]
    told: list[Markup | str] = [el("a", "Each by name", href="#excluded"), "."]
    if LITTLE in codes:
        told.append(f" {LITTLE}: {REMEDIES[LITTLE]}.")
    if others := [code for code in codes if code != LITTLE]:
        metas = [run.meta for run in facts.results.runs]
        command = again.command(metas[0], others, among=metas)
        told += [" Again: ", el("code", command)]
    return told
