"""What speculative decoding brought in a cell: by the engines' counters, and by their logs.

Rules of this file: the two stand side by side, each with what it covers; neither corrects the
other. A cell of engines that drafted nothing is not told of.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from twolane.analysis.speculation import DIFFERS
from twolane.report.facts import Facts
from twolane.report.markup import Markup, el, join, scroll, table
from twolane.report.metrics import number
from twolane.report.told import DraftedTold

Values = Mapping[str, float | None]


def drafted(values: Values) -> DraftedTold | None:
    """What the values of a cell tell of drafting; None where nothing was drafted."""
    counted, logged = values.get("mtp_tokens_a_step"), values.get("mtp_log_tokens_a_step")
    if counted is None and logged is None:
        return None
    both = counted is not None and logged is not None
    apart = abs((counted or 0.0) - (logged or 0.0)) if both else None
    return DraftedTold(
        tokens_a_step=counted,
        accepted_shares=_positions(values, "mtp_accepted_share_pos"),
        log_tokens_a_step=logged,
        log_tokens_a_step_least=values.get("mtp_log_tokens_a_step_least"),
        log_tokens_a_step_most=values.get("mtp_log_tokens_a_step_most"),
        log_accepted_shares=_positions(values, "mtp_log_accepted_share_pos"),
        log_lines=round(values.get("mtp_log_lines") or 0),
        log_covers=values.get("mtp_log_covers_share"),
        differ=None if apart is None else apart > DIFFERS,
    )


def _positions(values: Values, prefix: str) -> list[float]:
    every = (values.get(f"{prefix}{position}") for position in itertools.count())
    known = itertools.takewhile(lambda share: share is not None, every)
    return [share for share in known if share is not None]


# --------------------------------------------------------------------------------------- words


def words(told: DraftedTold | None) -> str:
    """For a terminal: both accounts, a line each."""
    if told is None:
        return ""
    lines = ["Drafting (tokens a step: the one that is sure, and those accepted)"]
    lines.append(
        f"  by the engines' counters: {_account(told.tokens_a_step, told.accepted_shares)}"
    )
    if told.log_tokens_a_step is None:
        lines.append("  by their logs: no line of this cell alone")
    else:
        account = _account(told.log_tokens_a_step, told.log_accepted_shares)
        lines.append(f"  by their logs: {account}; {_lines(told)}")
    if told.differ:
        lines.append(f"  they differ by {_apart(told)} tokens a step{_why(told)}")
    return "\n".join(lines)


def _account(tokens: float | None, shares: Sequence[float]) -> str:
    if tokens is None:
        return "not counted"
    return f"{tokens:.2f}" + (f", accepted by position {_shares(shares)}" if shares else "")


def _shares(shares: Sequence[float]) -> str:
    return " ".join(f"{share:.1%}" for share in shares)


def _lines(told: DraftedTold) -> str:
    plural = "s" * (told.log_lines != 1)
    least, most = number(told.log_tokens_a_step_least), number(told.log_tokens_a_step_most)
    span = f" of {least} to {most}" if least != most else ""
    held = "" if told.log_covers is None else f", which hold {told.log_covers:.0%} of the drafted"
    return f"{told.log_lines} line{plural}{span}{held}"


def _apart(told: DraftedTold) -> str:
    return f"{abs((told.tokens_a_step or 0.0) - (told.log_tokens_a_step or 0.0)):.2f}"


def _why(told: DraftedTold) -> str:
    """What may explain a difference: the part of the cell of which no line tells."""
    if told.log_covers is None or told.log_covers > 0.99:
        return ""
    return f"; the lines leave {1 - told.log_covers:.0%} of the cell out"


# ---------------------------------------------------------------------------------------- page


def section(facts: Facts) -> Markup | None:
    """A row for each run and cell in which something was drafted."""
    rows = list(_rows(facts))
    if not rows:
        return None
    caption = "What drafting brought, by counters and by logs"
    head = ("arm", "cell", "tokens a step", "by position", "by the log", "by position", "lines")
    lede = (
        "Tokens a step are 1 + accepted / drafts: of the engines\u2019 counters from the "
        "cell\u2019s begin to its end, and of the lines in their logs that tell of this cell alone."
    )
    inside = table((*head, "they agree"), rows, caption=caption, class_="cards")
    return join(el("p", lede), scroll(inside, caption))


def _rows(facts: Facts) -> Iterator[list[str]]:
    for run in facts.results.runs:
        for cell in run.cells:
            if told := drafted(cell.values):
                yield [f"{run.arm}, block {run.block + 1}", cell.cell.id, *_cells(told)]


def _cells(told: DraftedTold) -> list[str]:
    none = "\N{EN DASH}"
    agree = {None: none, False: "yes", True: f"no, {_apart(told)} apart{_why(told)}"}
    by_log = told.log_tokens_a_step
    return [
        none if told.tokens_a_step is None else f"{told.tokens_a_step:.2f}",
        _shares(told.accepted_shares) or none,
        none if by_log is None else f"{by_log:.2f}",
        _shares(told.log_accepted_shares) or none,
        none if by_log is None else _lines(told),
        agree[told.differ],
    ]
