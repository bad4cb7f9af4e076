"""The first token's ledger as stacked bars: one bar an arm, parts in the order they pass.

A bar is one real request, the one whose TTFT is the median, so that its parts sum exactly to
what the client saw; medians of parts would not. They stand in the table below it.

Rules of this file: HTML boxes in percent of the longest bar. A negative part has no width; it is
written out beside the bar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twolane.analysis.attribution import FINDING_SHARE, Part, Population, parts, population
from twolane.analysis.delivery import Delivered, fell_behind, servers
from twolane.analysis.results import Results
from twolane.clock import MS
from twolane.records import AnyCell, Role
from twolane.report.markup import Markup, details, el, scroll, table
from twolane.report.metrics import number, spoken

KIND: Mapping[Part, str] = {
    Part.CLIENT_TO_PROXY: "way",
    Part.PROXY_WAIT: "wait",
    Part.P_QUEUE: "queue",
    Part.P_COMPUTE: "compute",
    Part.P_REST: "rest",
    Part.HANDOFF: "handoff",
    Part.D_QUEUE: "transfer",
    Part.D_FIRST_STEP: "step",
    Part.D_REST: "rest2",
    Part.QUEUE: "queue",
    Part.COMPUTE: "compute",
    Part.REST: "rest",
    Part.UNEXPLAINED: "unexplained",
}

MOST = 2_000
"""Requests of one run and cell: their median is good to 3 % of the spread between them."""

VISIBLE = 1 / 600  # of the longest bar's width: about one pixel on a desk


@dataclass(frozen=True)
class Bars:
    """One population of requests, by arm, and of which arms an API server fell behind."""

    title: str
    arms: Mapping[str, Population]
    late: Mapping[str, str] = field(default_factory=dict)

    @property
    def longest_ns(self) -> int:
        return max(one.ttft_ns for one in self.arms.values())


def bars(results: Results, cell: AnyCell, role: Role, title: str) -> Bars | None:
    """The ledgers of one role's requests in one cell, over all runs of each arm.

    Of a run with very many requests every n-th is taken, so that about MOST of each are.
    """
    every = max([1, *((run.count(cell.id) or 0) // MOST for run in results.runs)])
    found, behind = {}, {}
    for arm in results.arms:
        ledgers = []
        for run in results.of_arm(arm):
            delivered = Delivered()
            for request in run.requests(role, cell=cell.id, gaps=False, every=every):
                if request.error is None and (ledger := parts(request, boot=run.meta.boot)):
                    ledgers.append(ledger)
                    delivered.add(request)
            if rate := fell_behind(run, delivered):
                behind[arm] = late(rate, servers(run))
        if summed := population(ledgers):
            found[arm] = summed
    sample = f"{title} (every {every}th request)" if every > 1 else title
    return Bars(sample, found, behind) if found else None


def late(tokens_an_event: float, servers: int) -> str:
    """What an engine's API server that falls behind costs, and what to try."""
    whose = "one API server" if servers == 1 else f"{servers} API servers"
    return (
        f"{tokens_an_event:.2f} tokens an event: the engine's {whose} fell behind, and its rest "
        f"holds the wait; try vLLM's --api-server-count {max(4, 2 * servers)}"
    )


def figure(shown: Bars) -> Markup:
    return el(
        "div",
        el("h3", shown.title),
        [_bar(arm, one, shown) for arm, one in shown.arms.items()],
        _legend(shown),
        _as_table(shown),
        class_="ledger",
    )


def _bar(arm: str, one: Population, shown: Bars) -> Markup:
    whole = one.typical.whole()
    totals = [other.ttft_ns / MS for other in shown.arms.values()]
    said = f"{arm}: first token after {_ms(one.ttft_ns)}: " + ", ".join(
        f"{part} {_ms(ns)}" for part, ns in whole.items()
    )
    segments = [_segment(part, ns, shown.longest_ns) for part, ns in whole.items() if ns > 0]
    return el(
        "div",
        el("span", arm, class_="arm"),
        el("div", segments, class_="bar", role="img", aria_label=said),
        el("span", spoken(one.ttft_ns / MS, "ms", beside=totals), class_="total"),
        _note(one),
        el("span", shown.late[arm], class_="note") if arm in shown.late else None,
        class_="row",
    )


def _segment(part: Part, ns: int, longest_ns: int) -> Markup:
    share = ns / longest_ns
    words = f"{part} {_ms(ns)}"
    return el(
        "span",
        *(el("span", words, class_="full"), el("span", _ms(ns), class_="short")),
        class_=f"part {KIND[part]}",
        style=f"width:{share * 100:.3f}%",
        title=words,
    )


def _note(one: Population) -> Markup:
    """What is unexplained, here and in the median, and whether that is a finding."""
    here, share = (
        f"{x * 100:.1f} %" for x in (one.typical.unexplained_share, one.unexplained_share)
    )
    finding = f", a finding: more than {FINDING_SHARE * 100:g} %" if one.finding else ""
    odd = f"; {one.negative} of {one.count} have a part below zero" if one.negative else ""
    median = f", {share} in the median of {one.count}" if one.count > 1 else ""
    words = f"unexplained: {here}{median}{finding}{odd}"
    return el("span", words, class_="note finding" if one.finding or one.negative else "note")


def _legend(shown: Bars) -> Markup:
    named: dict[str, list[Part]] = {}
    for part in _drawn(shown):
        named.setdefault(KIND[part], []).append(part)
    entries = [
        el("li", el("i", class_=f"part {kind}"), " / ".join(same)) for kind, same in named.items()
    ]
    return el("ul", entries, class_="legend")


def _drawn(shown: Bars) -> Sequence[Part]:
    """The parts that some bar shows wide enough to be seen."""
    wholes = [one.typical.whole() for one in shown.arms.values()]
    least = shown.longest_ns * VISIBLE
    return [part for part in Part if any(whole.get(part, 0) >= least for whole in wholes)]


def _parts(shown: Bars) -> Sequence[Part]:
    return [part for part in Part if any(part in one.medians_ns for one in shown.arms.values())]


def _as_table(shown: Bars) -> Markup:
    head = ("median of each part, ms", *shown.arms)
    rows = [
        (str(part), *(_cell(one, part) for one in shown.arms.values())) for part in _parts(shown)
    ]
    total = ("first token, median", *(number(one.ttft_ns / MS) for one in shown.arms.values()))
    count = ("requests", *(str(one.count) for one in shown.arms.values()))
    caption = f"Parts of the first token: {shown.title}"
    inside = table(head, [*rows, total, count], caption=caption)
    box = scroll(inside, caption)
    return details("Medians of every part", box, class_="data")


def _cell(one: Population, part: Part) -> str:
    return number(one.medians_ns[part] / MS) if part in one.medians_ns else "\N{EN DASH}"


def _ms(ns: int) -> str:
    return spoken(ns / MS, "ms")
