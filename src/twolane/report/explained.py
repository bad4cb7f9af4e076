"""What is known of one run, cell or request, gathered for `twolane explain`.

Rules of this file: it gathers what `analysis` found and the run kept, and computes nothing of its
own but units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from twolane.analysis.attribution import Attribution, parts, population
from twolane.analysis.changes import changes, moved
from twolane.analysis.delivery import Delivered, fell_behind, servers
from twolane.analysis.iterations import Placed
from twolane.analysis.points import Measured
from twolane.analysis.results import Run
from twolane.analysis.stalled import Stall, stalls
from twolane.analysis.work import Leg, Link, Span, Transfers, Work, link, total, work
from twolane.clock import MS, NS
from twolane.records import CellSummary, Code, Finding, InterferenceCell, Request, Role
from twolane.report import again, unproven
from twolane.report import told as shape
from twolane.report.codes import means, remedy
from twolane.report.drafting import drafted
from twolane.report.facts import shown

ROLES: dict[Role, str] = {
    "aggressor": "the long prompt",
    "victim": "the readers",
    "grid": "requests",
    "fresh": "new prompts",
    "turn": "turns",
    "short": "short requests",
    "long": "long prompts",
    "trace": "requests",
    "needle": "needle prompts",
    "own": "requests",
}
"""Whose ledgers a cell shows; a null run and a warm-up have none worth telling."""
MOST_STALLS = 1_000
LEAST = 0.02  # an iteration that covers less of a stall is its neighbour


# ----------------------------------------------------------------------------------- building


def of_cell(run: Run, measured: Measured, *, requests_too: bool = True) -> shape.CellTold:
    """Without `requests_too`, its ledgers, stalls and transfers are left out."""
    cell = measured.cell
    read = isinstance(cell, InterferenceCell)
    requests = list(run.requests(cell=cell.id, gaps=read)) if requests_too else []
    summary = next((one for one in run.cells if one.cell.id == cell.id), None)
    done = work(run, requests) if requests_too else None
    found = stalls(requests, done) if done and read else []
    origin = _origin(done)
    names = {metric.key for metric in shown(cell)}
    return shape.CellTold(
        run=run.id,
        arm=run.arm,
        block=run.block + 1,
        cell=cell.id,
        figures={name: value for name, value in measured.values.items() if name in names},
        codes=[_code(run, code) for code in measured.codes],
        ledgers=_ledgers(run, requests),
        stalls=[_stall(one, origin) for one in found[:MOST_STALLS]],
        stalls_in_all=len(found),
        transfers=_moved(run, done, summary, origin) if done and summary else None,
        findings=_findings(run, cell.id),
        others_cpu_share=summary.values.get("foreign_cpu_share") if summary else None,
        lost_to_others_share=summary.values.get("lost_to_others_share") if summary else None,
        drafted=drafted(summary.values) if summary else None,
    )


def of_run(run: Run, measured: Iterable[Measured]) -> shape.RunTold:
    return shape.RunTold(
        run=run.id,
        campaign=run.meta.campaign,
        arm=run.arm,
        block=run.block + 1,
        status=run.meta.status,
        error=run.meta.error,
        cells=[of_cell(run, one, requests_too=False) for one in measured],
        findings=_findings(run, ""),
    )


def of_request(run: Run, request: Request, measured: Measured | None) -> shape.RequestTold:
    """`measured` is its cell, where it belongs to one that was driven to its end."""
    requests = list(run.requests(cell=request.cell))
    done = work(run, requests)
    origin = _origin(done)
    own = parts(_with_ledger(request, done), boot=run.meta.boot)
    window = (request.send_ns, request.first_ns or request.end_ns or request.send_ns)
    engines = dict.fromkeys((*_visited(request, done), done.engine_of(request)))
    return shape.RequestTold(
        run=run.id,
        arm=run.arm,
        block=run.block + 1,
        cell=request.cell,
        request=request.id,
        role=request.role,
        shot=request.shot,
        engine=done.engine_of(request),
        status=request.status,
        error=request.error,
        finish_reason=request.finish_reason,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        output_tokens=request.output_tokens,
        e2e_ms=None if request.last_ns is None else (request.last_ns - request.send_ns) / MS,
        worst_gap_ms=max(request.gaps_ns, default=None) and max(request.gaps_ns) / MS,
        ledger=_ledger("this request", [own]) if own else None,
        beside=[
            _leg(leg, window)
            for engine in engines
            for leg in done.beside(engine, window, without=request.id)
        ],
        spans=[_span(s, window, origin) for engine in engines for s in done.during(engine, window)],
        stalls=[_stall(s, origin) for s in stalls(requests, done) if s.request == request.id],
        codes=[_code(run, code) for code in measured.codes] if measured else [],
    )


def against(before: Run, after: Run, measured: Sequence[Measured]) -> shape.AgainstTold:
    """`measured` are the cells of both runs."""
    mine = [one for one in measured if one.run.id == before.id]
    theirs = [one for one in measured if one.run.id == after.id]
    keys = {(one.cell.id, metric.key) for one in mine for metric in shown(one.cell)}
    told = [one for one in moved(mine, theirs) if (one.cell, one.metric) in keys]
    return shape.AgainstTold(before.id, after.id, changes(before, after), told)


# -------------------------------------------------------------------------------------- pieces


def _origin(done: Work | None) -> int:
    return min((span.start_ns for span in done.spans), default=0) if done else 0


def _code(run: Run, code: Code) -> shape.CodeTold:
    redo = again.command(run.meta, [code.code], alone=True)
    todo = unproven.of_runs([run], [code.code]) or remedy(code.code, redo)
    return shape.CodeTold(code.code, means(code.code), code.why, code.value, code.limit, todo)


def _findings(run: Run, about: str) -> list[Finding]:
    found = run.findings
    if found is None:
        return []
    after = [f for one in found.postmortems if one.about == about for f in one.findings]
    return after if about else [*found.preflight, *after]


def _ledgers(run: Run, requests: Sequence[Request]) -> list[shape.LedgerTold]:
    told = []
    for role in dict.fromkeys(r.role for r in requests if r.role in ROLES):
        answered = [r for r in requests if r.role == role and r.error is None]
        known = [ledger for r in answered if (ledger := parts(r, boot=run.meta.boot))]
        if any(ledger.parts for ledger in known):
            summed, delivered = _ledger(ROLES[role], known), Delivered(answered)
            late = servers(run) if fell_behind(run, delivered) else None
            rate = delivered.tokens_an_event
            told.append(replace(summed, tokens_an_event=rate, late_servers=late))
    return told


def _ledger(who: str, known: Sequence[Attribution]) -> shape.LedgerTold:
    summed = population(known)
    assert summed is not None
    typical = summed.typical
    return shape.LedgerTold(
        who=who,
        request=typical.request,
        requests=summed.count,
        ttft_ms=typical.ttft_ns / MS,
        parts_ms={str(part): ns / MS for part, ns in typical.parts.items()},
        unexplained_ms=typical.unexplained_ns / MS,
        unexplained_share=typical.unexplained_share,
        median_unexplained_share=summed.unexplained_share,
        finding=summed.finding,
        below_zero=[str(part) for part in typical.negative],
    )


def _stall(one: Stall, origin: int) -> shape.StallTold:
    window = (one.gap.start_ns, one.gap.end_ns)
    return shape.StallTold(
        request=one.request,
        reader=one.reader,
        shot=one.shot,
        null=one.null,
        milliseconds=one.gap.length_ns / MS,
        threshold_ms=one.threshold_ns / MS,
        phase=one.phase,
        after_send_s=one.since_send_ns / NS,
        engine=one.engine,
        legs=sorted((_leg(leg, window) for leg in one.legs), key=_weight, reverse=True),
        spans=[_span(span, window, origin) for span in one.spans],
        iterations=[_step(one, step) for step in one.steps if one.share(step) >= LEAST],
    )


def _step(stall: Stall, step: Placed) -> shape.StepTold:
    it = step.iteration
    return shape.StepTold(
        stall.engine,
        it.index,
        it.context_tokens,
        it.generation_tokens,
        it.elapsed_ns / MS,
        stall.share(step),
    )


def _share(start: int, end: int, window: tuple[int, int]) -> float:
    length = window[1] - window[0]
    return max(0.0, (min(end, window[1]) - max(start, window[0])) / length) if length > 0 else 0.0


def _leg(leg: Leg, window: tuple[int, int]) -> shape.LegTold:
    return shape.LegTold(
        leg.engine,
        leg.doing,
        leg.request,
        leg.role or "",
        leg.prompt_tokens,
        (leg.end_ns - leg.start_ns) / NS,
        _share(leg.start_ns, leg.end_ns, window),
    )


def _weight(leg: shape.LegTold) -> float:
    """How much of a prompt lies in the stall, for the order in which legs are told."""
    return leg.covers * leg.prompt_tokens


def _span(
    span: Span, window: tuple[int, int], origin: int, over: Link | None = None
) -> shape.SpanTold:
    return shape.SpanTold(
        span.engine,
        (span.start_ns - origin) / NS,
        (span.end_ns - span.start_ns) / NS,
        span.iterations,
        span.tokens,
        span.running,
        span.waiting,
        _share(span.start_ns, span.end_ns, window),
        _transfers(span.transfers, over) if span.transfers else None,
    )


def _transfers(one: Transfers, over: Link | None) -> shape.TransfersTold:
    speed = over.bytes_s if over else None
    return shape.TransfersTold(
        one.count,
        one.moved_bytes,
        one.descriptors,
        one.xfer_s,
        one.post_s,
        one.bytes_s,
        one.post_s / one.descriptors * 1e6 if one.descriptors else None,
        one.bytes_s / speed if one.bytes_s and speed else None,
    )


def _moved(run: Run, done: Work, summary: CellSummary, origin: int) -> shape.MovedTold | None:
    over = link(run)
    window = (summary.started_ns, summary.ended_ns)
    names = [engine.name for engine in run.meta.engines]
    inside = [s for name in names for s in done.during(name, window) if s.transfers]
    together = total(inside)
    if over is None or together is None:
        return None
    ranked = sorted(inside, key=lambda s: -(s.transfers.xfer_s if s.transfers else 0.0))
    return shape.MovedTold(
        over.kind,
        over.direction,
        over.bytes_s,
        _transfers(together, over),
        [_span(span, window, origin, over) for span in ranked],
    )


def _with_ledger(request: Request, done: Work) -> Request:
    """A stream that its client broke off was never told its ledger; the proxy wrote it down."""
    known = request.ledger or done.ledgers.get(request.id)
    return msgspec.structs.replace(request, ledger=known)


def _visited(request: Request, done: Work) -> list[str]:
    ledger = done.ledgers.get(request.id)
    found = (ledger.p_engine, ledger.d_engine) if ledger else ()
    return [engine for engine in found if engine]
