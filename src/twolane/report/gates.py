"""Why the figures may be believed: needle answers, greedy equality, and what was excluded."""

from __future__ import annotations

from twolane.analysis.confounds import Confound
from twolane.analysis.results import Results, Run
from twolane.records import BadLine
from twolane.report.codes import means
from twolane.report.facts import Facts, excluded_id
from twolane.report.markup import Markup, details, el, join, scroll, table


def gates(facts: Facts) -> Markup:
    """One row a run: its needles and its greedy texts."""
    equal = {equality.run: equality for equality in facts.equalities}
    rows = []
    for run in facts.results.runs:
        equality = equal.get(run.id)
        if equality is None:
            greedy: str = "the reference" if run.needle and run.needle.greedy else "not asked"
        else:
            same = equality.compared - len(equality.differing)
            greedy = f"{same} of {equality.compared} equal"
        rows.append((run.arm, str(run.block + 1), _needles(run), greedy, _ending(run)))
    head = ("arm", "block", "needles found", "greedy texts", "run")
    caption = "Gates of every run"
    inside = table(head, rows, caption=caption, class_="cards")
    return scroll(inside, caption)


def _needles(run: Run) -> str:
    if run.needle is None:
        return "no result"
    if run.needle.inherited_from:
        return f"inherited from {run.needle.inherited_from}"
    answers = run.needle.answers
    found = sum(answer.ok for answer in answers)
    lengths = sorted({answer.length for answer in answers})
    span = f" at {', '.join(f'{n:,}' for n in lengths)} tokens" if lengths else ""
    return f"{found} of {len(answers)}{span}"


def _ending(run: Run) -> str:
    if run.finished:
        return "done"
    return f"{run.meta.status}: {run.meta.error}" if run.meta.error else run.meta.status


def excluded(facts: Facts) -> Markup:
    """Every cell that enters no verdict, with its reason in words."""
    coded = facts.coded()
    if not coded:
        words = "No point is excluded: no cell of any run carries a reason code."
        return el("p", words, id="excluded")
    # What a code means is told where it comes first.
    first = {code.code: measured for measured in reversed(coded) for code in measured.codes}
    items = [
        el(
            "li",
            *(el("b", code.code), f" {measured.run.arm}, block {measured.run.block + 1}, "),
            *(el("span", measured.cell.id, class_="arm"), f": {code.why} "),
            el("small", f"({means(code.code)})") if first[code.code] is measured else None,
            id=excluded_id(facts, measured) if place == 0 else None,
        )
        for measured in coded
        for place, code in enumerate(measured.codes)
    ]
    intro = "These points are kept, drawn hollow, and enter no verdict:"
    return el("div", el("p", intro), el("ul", items, class_="excluded"), id="excluded")


def unreadable(results: Results) -> Markup | None:
    """Files and lines that could not be read, so that nothing is lost in silence."""
    faults = list(results.faults)
    if not faults:
        return None
    items = [el("li", _fault(fault, results)) for fault in faults[:50]]
    more = el("p", f"and {len(faults) - 50} more") if len(faults) > 50 else None
    head = (
        f"{len(faults)} file{'s' * (len(faults) != 1)} or lines could not be read and are left out"
    )
    return details(head, el("ul", items), more, id_="unreadable")


def _fault(fault: BadLine, results: Results) -> str:
    place = fault.path.removeprefix(f"{results.folder}/")
    return f"{place}{f', line {fault.line}' if fault.line else ''}: {fault.why}"


def differences(facts: Facts) -> Markup | None:
    """The confound ledger: what else differs between the arms."""
    found, results = facts.confounds, facts.results
    if not found:
        return None
    head = ("difference", "weight", *results.arms, "why it matters")
    rows = [
        (one.what, one.severity, *(one.values.get(a, "") for a in results.arms), _matters(one))
        for one in found
    ]
    caption = "Differences between the arms"
    inside = table(head, rows, caption=caption, class_="cards")
    box = scroll(inside, caption)
    return join(_summary(found), details("Each of them", box, class_="data"))


def _matters(one: Confound) -> str:
    """Of a setting it is known that it differs, not what that does."""
    return one.why or "a setting: the declared factor, or one beside it"


def _summary(found: list[Confound]) -> Markup:
    """How many rows of which weight; every row is counted once."""
    severe = [one.what for one in found if one.severity == "severe"]
    counts = {
        "severe": len(severe),
        "mild": sum(one.severity == "mild" for one in found),
        "of settings, the declared factor among them": sum(one.severity == "knob" for one in found),
    }
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    words = f"{len(found)} difference{'s' * (len(found) != 1)}: {'; '.join(parts)}. "
    if severe:
        return el("p", words, el("b", f"Severe: {', '.join(severe)}."), class_="severe")
    return el("p", words)
