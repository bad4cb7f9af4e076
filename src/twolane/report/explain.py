"""`explained` in words, for a terminal: short lines, the cause of a thing under the thing.

Rules of this file: it words and orders; every figure is `explained`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from twolane.records import Finding
from twolane.report import drafting
from twolane.report import told as shape
from twolane.report.ledger import late
from twolane.report.metrics import BY_KIND, number, ratio, spoken

# The first kind that shows a metric names it.
LABELS = {m.key: m for kind in reversed(list(BY_KIND.values())) for m in reversed(kind)}
AT_ONCE_S = 0.005
LARGE_BYTES = 50e6  # smaller transfers end before a link's speed can show
MOST = 12  # stalls and transfers that are told one by one


def cell(told: shape.CellTold) -> str:
    return _joined(
        f"{told.cell}\n  arm {told.arm}, block {told.block}, run {told.run}",
        _figures(told),
        _codes(told.codes),
        _cores(told),
        drafting.words(told.drafted),
        *map(_ledger, told.ledgers),
        _stalls(told.stalls, told.stalls_in_all),
        _moved(told.transfers) if told.transfers else "",
        _findings(told.findings),
    )


def request(told: shape.RequestTold) -> str:
    what = f"{told.role}, shot {told.shot}" if told.role in ("victim", "aggressor") else told.role
    made = f" on {told.engine}" if told.engine else ", engine not known"
    ended = told.error or told.finish_reason or "no end recorded"
    cached = f" ({told.cached_tokens:,} cached)" if told.cached_tokens else ""
    prompt = "n/a" if told.prompt_tokens is None else f"{told.prompt_tokens:,}"
    return _joined(
        f"{told.request}\n  {what}{made}; cell {told.cell}; arm {told.arm}, block {told.block}",
        f"  {prompt} prompt tokens{cached}, {told.output_tokens:,} answered, status {told.status}, "
        f"{ended}\n  {_took(told)}",
        _ledger(told.ledger) if told.ledger else "It never had a first token.",
        _beside(told.beside),
        _spans("Its engines meanwhile", told.spans),
        _stalls(told.stalls, len(told.stalls)) if told.role == "victim" else "",
        _codes(told.codes),
    )


def run(told: shape.RunTold, name: str = "") -> str:
    """`name` is what `twolane explain` finds the run by, if more than its id."""
    ending = f"{told.status}: {told.error}" if told.error else told.status
    lines = [
        f"  {one.cell}\n    {', '.join(_coded(one.codes)) or 'no code'}; {_main(one)}"
        for one in told.cells
    ]
    return _joined(
        f"{told.run}\n  campaign {told.campaign}, arm {told.arm}, block {told.block}, {ending}",
        "Cells\n" + "\n".join(lines) if lines else "No cell was driven to its end.",
        *(_codes(one.codes, of=one.cell) for one in told.cells),
        _findings(told.findings),
        f"Next: twolane explain {name or told.run} '{told.cells[0].cell}'" if told.cells else "",
    )


def against(told: shape.AgainstTold) -> str:
    kinds: dict[str, list[str]] = {}
    for one in told.changes:
        kinds.setdefault(one.kind, []).append(f"  {one.what}: {one.before} -> {one.after}")
    changed = [f"{kind}\n" + "\n".join(lines) for kind, lines in kinds.items()]
    figures = [
        f"  {_label(one.metric)}: {number(one.before)} -> {number(one.after)}"
        f"{f' ({ratio(one.ratio)})' if one.ratio else ''}"
        f"{' [' + ', '.join(one.coded) + ']' if one.coded else ''}  {one.cell}"
        for one in told.figures
    ]
    return _joined(
        f"From {told.before}\nto   {told.after}",
        *(changed or ["Nothing that was recorded differs."]),
        "figures (two runs alone say nothing of the spread)\n" + "\n".join(figures)
        if figures
        else "The runs have no cell in common.",
    )


# -------------------------------------------------------------------------------------- pieces


def _joined(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)


def _figures(told: shape.CellTold) -> str:
    lines = [f"  {_metric(name, value)}" for name, value in told.figures.items()]
    return "Figures\n" + "\n".join(lines) if lines else ""


def _cores(told: shape.CellTold) -> str:
    """What others took of this host, and the most that it can have cost an engine."""
    others, lost = told.others_cpu_share, told.lost_to_others_share
    if others is None:
        return ""
    cost = "" if lost is None else f"; it cost the worst-off engine at most {lost:.1%} of its cores"
    return f"Others had {others:.1%} of the host's CPU time during the cell{cost}."


def _metric(name: str, value: float | None) -> str:
    known = LABELS.get(name)
    if known is None:
        return f"{name} {number(value)}"
    return f"{known.label}: {spoken(value, known.unit)}"


def _main(told: shape.CellTold) -> str:
    first = [metric.key for kind in BY_KIND.values() for metric in kind[:1]]
    chosen = [name for name in told.figures if name in first] or list(told.figures)[:1]
    return ", ".join(_metric(name, told.figures[name]) for name in chosen)


def _coded(codes: Sequence[shape.CodeTold]) -> list[str]:
    return list(dict.fromkeys(code.code for code in codes))


def _label(name: str) -> str:
    known = LABELS.get(name)
    return f"{known.label}, {known.unit}".rstrip(", ") if known else name


def _codes(codes: Sequence[shape.CodeTold], of: str = "") -> str:
    if not codes:
        return ""
    lines = [line for code in codes for line in _code(code)]
    where = f" of {of}" if of else ""
    return f"Why the point{where} enters no verdict\n" + "\n".join(lines)


def _code(code: shape.CodeTold) -> Iterator[str]:
    measured = f" (measured {number(code.value)}" if code.value is not None else ""
    limit = f", limit {number(code.limit)})" if code.limit is not None else ")"
    yield f"  {code.code}: {code.why}{measured + limit if measured else ''}"
    yield f"    means: {code.means}"
    if code.remedy:
        yield f"    remedy: {code.remedy}"


def _ledger(told: shape.LedgerTold) -> str:
    median = f", the median of {told.requests}: {told.request}" if told.requests > 1 else ""
    head = f"First token of {told.who}: {spoken(told.ttft_ms, 'ms')}{median}"
    parts = [*told.parts_ms.items(), ("unexplained", told.unexplained_ms)]
    wide = max(len(name) for name, _ in parts)
    whole = told.ttft_ms or 1.0
    lines = [f"  {name:{wide}}  {number(ms):>9} ms  {ms / whole:6.1%}" for name, ms in parts]
    notes = []
    if told.finding:
        median_of = "" if told.requests == 1 else " in the median"
        share = f"{told.median_unexplained_share:.1%}"
        notes.append(f"  A finding: {share} unexplained{median_of}.")
    if told.below_zero:
        names = ", ".join(told.below_zero)
        notes.append(f"  Below zero: {names}; that account does not fit into its leg.")
    if told.late_servers is not None and told.tokens_an_event is not None:
        notes.append(f"  {late(told.tokens_an_event, told.late_servers)}.")
    return "\n".join([head, *lines, *notes])


def _stalls(told: Sequence[shape.StallTold], in_all: int) -> str:
    if not in_all:
        return "No reader stalled."
    together = _together(told)
    more = f", the longest {MOST} of them" if len(together) > MOST else ""
    head = f"{in_all} stall{'s' * (in_all != 1)}; readers that stalled at once together{more}"
    return "\n".join([head, *(line for some in together[:MOST] for line in _stall(some))])


def _together(told: Sequence[shape.StallTold]) -> list[list[shape.StallTold]]:
    """Stalls of several readers of one engine that began and ended within 5 ms of each other."""
    groups: list[list[shape.StallTold]] = []
    for one in told:
        for group in groups:
            if _at_once(group[0], one):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _at_once(one: shape.StallTold, other: shape.StallTold) -> bool:
    same = (one.shot, one.null, one.engine) == (other.shot, other.null, other.engine)
    near = abs(one.after_send_s - other.after_send_s) < AT_ONCE_S
    return same and near and abs(one.milliseconds - other.milliseconds) < AT_ONCE_S * 1e3


def _stall(some: Sequence[shape.StallTold]) -> Iterator[str]:
    one = some[0]
    names = sorted({other.reader for other in some})
    who = f"reader{'s' * (len(names) > 1)} {', '.join(map(str, names))}"
    where = "null run" if one.null else f"shot {one.shot}"
    on = f" on {one.engine}" if one.engine else ", engine not known"
    began = "the sleep began" if one.null else "the long prompt was sent"
    when = f"{number(one.after_send_s)} s after {began}"
    yield f"  {spoken(one.milliseconds, 'ms')}  {who}{on}, {where}, {one.phase}, {when}"
    yield from (f"    beside {_leg(leg)} of it" for leg in one.legs[:3])
    yield from (f"    {_step(step)} of it" for step in one.iterations[:5])
    yield from (f"    {_span(span)}" for span in one.spans)
    if not one.legs and not one.spans:
        yield "    nothing that was recorded overlaps it"


def _leg(leg: shape.LegTold) -> str:
    return (
        f"{leg.doing} of {leg.prompt_tokens:,} tokens ({leg.role}) on {leg.engine}, "
        f"{number(leg.seconds)} s: covers {leg.covers:.0%}"
    )


def _step(step: shape.StepTold) -> str:
    """By the engine's own log."""
    return (
        f"iteration {step.iteration} of {step.engine}: {step.prompt_tokens:,} prompt and "
        f"{step.answer_tokens:,} answer tokens in {spoken(step.milliseconds, 'ms')}: "
        f"covers {step.covers:.0%}"
    )


def _span(span: shape.SpanTold) -> str:
    counted = [
        _iterations(span),
        f"{span.running} running" if span.running is not None else "",
        f"{span.waiting} waiting" if span.waiting else "",
        _transfers(span.transfers) if span.transfers else "",
    ]
    said = ", ".join(one for one in counted if one) or "counted nothing"
    return f"{span.engine} in the {number(span.seconds)} s from {number(span.start_s)} s: {said}"


def _iterations(span: shape.SpanTold) -> str:
    """vLLM counts an iteration when it gives a token, so a chunk that ends none is not in it."""
    if span.iterations is None:
        return ""
    tokens = "" if span.tokens is None else f", {span.tokens:,} tokens in them"
    plural = "s" * (span.iterations != 1)
    return f"{span.iterations:,} iteration{plural} that gave tokens{tokens}"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _transfers(one: shape.TransfersTold) -> str:
    speed = f", {one.bytes_s / 1e9:.3g} GB/s" if one.bytes_s else ""
    of_link = one.link_share is not None and one.bytes >= LARGE_BYTES
    share = f" ({one.link_share:.1%} of the link)" if of_link else ""
    us = one.posting_us_per_descriptor
    each = f", {number(us)} us a descriptor" if us else ""
    return (
        f"{one.count:,} transfer{'s' * (one.count != 1)} of {_bytes(one.bytes)} in "
        f"{one.descriptors:,.0f} descriptors, {number(one.seconds)} s{speed}{share}, of it posting "
        f"{number(one.posting_s)} s{each}"
    )


def _moved(told: shape.MovedTold) -> str:
    able = (
        f", {told.link_bytes_s / 1e9:,.0f} GB/s one way"
        if told.link_bytes_s
        else ", speed not known"
    )
    head = f"KV transfers by {told.direction} over {told.link}{able}"
    lines = [f"  {_span(span)}" for span in told.spans[:MOST]]
    more = [f"  and {len(told.spans) - MOST} more spans"] if len(told.spans) > MOST else []
    return "\n".join([head, f"  in all {_transfers(told.total)}", *lines, *more])


def _beside(legs: Sequence[shape.LegTold]) -> str:
    if not legs:
        return "No other prompt was on its engines while it waited for its first token."
    return "\n".join(
        ["While it waited for its first token", *(f"  {_leg(leg)}" for leg in legs[:MOST])]
    )


def _spans(head: str, spans: Sequence[shape.SpanTold]) -> str:
    return "\n".join([head, *(f"  {_span(span)}" for span in spans[:MOST])]) if spans else ""


def _findings(findings: Iterable[Finding]) -> str:
    lines = [
        f"  {one.rule} {one.title} ({one.where})\n    {one.consequence}\n    fix: {one.fix}"
        + "".join(f"\n    | {line[:160]}" for line in one.evidence[:2])
        for one in findings
    ]
    return "\n".join(["What the rules found", *lines]) if lines else ""


def _took(told: shape.RequestTold) -> str:
    whole = "never ended" if told.e2e_ms is None else f"{spoken(told.e2e_ms, 'ms')} in all"
    gap = "" if told.worst_gap_ms is None else f", worst pause {spoken(told.worst_gap_ms, 'ms')}"
    return whole + gap
