"""How each figure is defined, in the words of docs/how-we-measure.md."""

from __future__ import annotations

from twolane.analysis.attribution import MEANING
from twolane.analysis.capacity import SLOS
from twolane.analysis.compare import BOOTSTRAP
from twolane.analysis.crossover import UNNOTICED_MS
from twolane.analysis.frontier import FLAT_SHARE, GAP_LIMITS_MS
from twolane.report import glossary
from twolane.report.codes import CODES
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


def answered() -> list[tuple[str, str]]:
    """How each answer is defined."""
    limits = " and ".join(f"{limit:g} ms" for limit in GAP_LIMITS_MS)
    levels = "; ".join(
        f"{one.name}: first token within {one.ttft_ms:g} ms, {one.tpot_ms:g} ms a token, "
        f"{one.share:.0%} of requests"
        for one in SLOS
    )
    return [
        (
            "Largest budget, c*(p)",
            "the largest measured token budget whose worst pause, in every run, kept the limit "
            f"({limits}) beside a prompt of p tokens, with every smaller measured one; between it "
            "and the next one on a straight line, since gap = o + T_decode + c x (a + b x p). No "
            "static budget: that line leaves more than the limit at budget 0, or a budget at least "
            f"twice as large changes the pause by less than {FLAT_SHARE:.0%}",
        ),
        (
            "Gap by prefix",
            "the engine\u2019s log says how a prompt was cut into chunks; a chunk\u2019s step made "
            "each reader\u2019s next token, counted back from the prompt\u2019s first token, which "
            "the last chunk\u2019s step made, and the gap that ends with that token is the "
            "chunk\u2019s. Of a band (powers of two, and the prompt\u2019s length) the longest gap "
            "of any chunk that ends in it, over readers, shots, prompts and blocks; else "
            "of the chunk that covers its end. Largest budgets by prefix are ruled as above. The "
            "first and the last chunk share their gaps with the entry (before the first "
            "chunk\u2019s token) and the exit (with the prompt\u2019s first token), so they count "
            "only where no other chunk lies",
        ),
        (
            "A split pays",
            "from the smallest measured prompt length (or share of long prompts) on from which "
            "the readers' worst pause is better, by verdict, than that of the best aggregated arm "
            "on as many devices, there and at every larger one; not where that arm's pause is "
            f"within {UNNOTICED_MS:g} ms, which nobody notices",
        ),
        (
            "Users per device",
            "the most users at which, in every run, Wilson's 95 % interval of the share of sent "
            "requests that met every limit lies at or above the asked share, over the arm's "
            f"devices. Unless the campaign names its own: {levels}",
        ),
        (
            "Efficient",
            "no other arm without a code is better in the worst pause or in the long prompt's "
            "first token and no worse in the other",
        ),
    ]


def methods(facts: Facts) -> Markup:
    definitions = [el("div", el("dt", m.label), el("dd", m.formula)) for m in ALL]
    meaning = [el("div", el("dt", str(part)), el("dd", text)) for part, text in MEANING.items()]
    return join(
        el("p", CLOCK),
        el("p", PHASES),
        el("p", STRIPS),
        details("Formulas of the figures", el("dl", definitions, class_="formulas"), class_="data"),
        el("p", _comparison(facts)),
        el("h3", "The answers"),
        el("dl", [el("div", el("dt", a), el("dd", b)) for a, b in answered()], class_="formulas"),
        el("h3", "Reason codes"),
        el(
            "dl", [el("div", el("dt", a), el("dd", b)) for a, b in CODES.items()], class_="formulas"
        ),
        el("h3", "Words"),
        glossary.listed(),
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
