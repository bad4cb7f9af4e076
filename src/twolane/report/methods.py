"""How each figure is defined, in the words of docs/how-we-measure.md."""

from __future__ import annotations

from twolane.analysis.attribution import MEANING
from twolane.analysis.compare import BOOTSTRAP
from twolane.report.facts import Facts
from twolane.report.markup import Markup, details, el, join
from twolane.report.metrics import ALL

CLOCK = (
    "All times are readings of one monotonic clock, taken when bytes leave the socket's read, "
    "before they are parsed. An event counts only if it carries tokens, and their number is the "
    "server's. The readers' streams are read in a process of their own."
)
PHASES = (
    "Interference: the readers (victims) stream (quiet), the long prompt (aggressor) is sent and "
    "awaited (hit, from its t_send to its t_1), and the readers are watched on (recovery). Stalls "
    "and tokens lost are those of the hit. In an arm's null run the prompt is "
    "replaced by a sleep."
)
STRIPS = (
    "A strip is as high as the stream's speed: between two events 1 / (their distance), so that "
    "equal areas are equal numbers of tokens. A line under a hole marks a stall."
)


def methods(facts: Facts) -> Markup:
    definitions = [el("div", el("dt", m.label), el("dd", m.formula)) for m in ALL]
    meaning = [el("div", el("dt", str(part)), el("dd", text)) for part, text in MEANING.items()]
    return join(
        el("p", CLOCK),
        el("p", PHASES),
        el("p", STRIPS),
        el("dl", definitions, class_="formulas"),
        el("p", _comparison(facts)),
        details("Parts of the first token", el("dl", meaning, class_="formulas")),
    )


def _comparison(facts: Facts) -> str:
    return (
        "An arm's figure is the median over its runs. Arms are compared by the median of paired "
        "log-ratios over blocks, a block being every arm freshly started once; brackets are the "
        f"wider of a bootstrap of the median over blocks ({BOOTSTRAP:,} resamples, fixed seed) and "
        "Student's t about their mean, at 95 %. Better: the interval excludes 1 and the estimate "
        f"is past {facts.margin * 100:g} %, and past what two arms that are told to run alike "
        "(A/A) were apart in any block, where there are such. Equal: the interval lies within "
        f"{facts.margin * 100:g} %. Otherwise: cannot tell. Several metrics are judged side by "
        "side without a correction for their number. A point with a reason code enters no verdict."
    )
