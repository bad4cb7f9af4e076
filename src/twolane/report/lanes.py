"""Under the readers' strips, on the same axis: the long prompt's way and what each engine did.

Rules of this file: pieces of `analysis.work` and `analysis.iterations`, in seconds since the long
prompt was sent. Where the engine's log tells its iterations they are drawn one by one; else the
shade of a span is how many iterations gave tokens in it, by the engine's own counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twolane.analysis.chunks import placed
from twolane.analysis.iterations import Placed, by_prefill, stretches
from twolane.analysis.results import Run
from twolane.analysis.work import Span, Work, work
from twolane.clock import MS, NS
from twolane.records import InterferenceCell, Ledger, Request
from twolane.report.markup import Markup, el
from twolane.report.metrics import number, spoken
from twolane.report.timeline import Axis, Panel
from twolane.report.transfers import told

WIDTH, HEIGHT = 4000, 100
FINEST = 1 / 2_000  # of the axis: shorter steps are joined, so that a page stays small
MOST_ASKED = 2  # readers by whose events an engine's steps are placed
LABELLED = 0.09  # of the axis: wide enough for a piece's name


@dataclass(frozen=True)
class Piece:
    """A stretch of a lane; `shade` is 0 ... 1."""

    start_s: float
    end_s: float
    kind: str
    label: str
    title: str
    shade: float = 1.0


@dataclass(frozen=True)
class Lane:
    name: str
    pieces: tuple[Piece, ...]
    steps: tuple[Placed, ...] = ()

    @property
    def prefilled_s(self) -> float | None:
        """When the prefill had ended, in the long prompt's lane."""
        return next((one.end_s for one in self.pieces if one.kind == "compute"), None)


@dataclass(frozen=True)
class Shot:
    """What a panel's lanes are made from; `fired` is the long prompt, None in a null run."""

    run: Run
    panel: Panel
    requests: Sequence[Request]
    fired: Request | None
    done: Work
    nth: int = 0  # of the cell's shots with a long prompt, from 0

    def second(self, at_ns: int) -> float:
        return (at_ns - self.panel.origin_ns) / NS


def lanes(run: Run, cell: InterferenceCell, panel: Panel) -> list[Lane]:
    """The long prompt's lane, if it was sent, and one for each engine."""
    every = list(run.requests("victim", "aggressor", "null", cell=cell.id))
    requests = [r for r in every if r.shot == panel.shot]
    fired = next((r for r in requests if r.role == "aggressor"), None)
    nth = sum(r.role == "aggressor" and r.shot < panel.shot for r in every)
    shot = Shot(run, panel, requests, fired, work(run, requests), nth)
    found = [_prompt(shot), *(_engine(shot, one.name) for one in shot.done.engines)]
    return [lane for lane in found if lane.pieces or lane.steps]


def _prompt(shot: Shot) -> Lane:
    ledger = shot.done.ledgers.get(shot.fired.id) if shot.fired else None
    stops = _stops(shot.fired, ledger) if shot.fired and ledger else ()
    pieces = [
        Piece(
            shot.second(start),
            shot.second(end),
            kind,
            words,
            f"{words}, {spoken((end - start) / MS, 'ms')}",
        )
        for kind, words, start, end in stops
        if end > start
    ]
    return Lane("long prompt", tuple(pieces))


Stop = tuple[str, str, int, int]


def _stops(request: Request, ledger: Ledger) -> Iterable[Stop]:
    """Kind, words, start and end of what the long prompt went through, by the proxy's stamps."""
    sent = ledger.p_dispatch_ns or ledger.d_dispatch_ns or ledger.received_ns
    yield "wait", "proxy", request.send_ns, sent
    if ledger.p_dispatch_ns and ledger.p_response_ns:
        where = f"prefill on {ledger.p_engine}"
        yield "compute", where, ledger.p_dispatch_ns, ledger.p_response_ns
    if ledger.d_dispatch_ns and ledger.d_first_ns:
        yield from _answering(ledger, ledger.d_dispatch_ns, ledger.d_first_ns)
    if request.first_ns and request.last_ns:
        yield "answer", "answer", request.first_ns, request.last_ns


def _answering(ledger: Ledger, start: int, end: int) -> Iterable[Stop]:
    """Of D's leg only the ends are stamped; what is neither queue nor step (tokenising, HTTP) comes
    first for the most part, so the parts are laid against the end."""
    if ledger.path == "direct":
        yield "compute", f"prefill on {ledger.d_engine}", start, end
        return
    times = ledger.d_times
    step = max(start, end - round(((times and times.first_token_ms) or 0.0) * MS))
    there = max(start, step - round(((times and times.queue_ms) or 0.0) * MS))
    yield "rest2", "D: tokenising and HTTP", start, there
    yield "transfer", "KV transfer and queue", there, step
    yield "step", "first step", step, end


def _engine(shot: Shot, name: str) -> Lane:
    panel = shot.panel
    window = (
        panel.origin_ns + round(panel.begin_s * NS),
        panel.origin_ns + round(panel.end_s * NS),
    )
    spans = shot.done.during(name, window)
    steps = _placed(shot, name)
    inside = [p for p in steps if p.end_ns > window[0] and p.start_ns < window[1]]
    most = 0.0 if inside else max((_rate(one) for one in spans), default=0.0)
    pieces = [piece for span in spans for piece in _span(shot, span, most)]
    return Lane(name, tuple(pieces), tuple(inside))


def _counted(shot: Shot, name: str, readers: Sequence[Request]) -> list[Placed]:
    """By counting a reader's tokens from the long prompt's end, where both were on this engine."""
    fired, steps = shot.fired, shot.done.steps.get(name, ())
    if fired is None or not readers or shot.done.engine_of(fired) != name:
        return []
    tokens = (fired.prompt_tokens or fired.prompt_asked) - (fired.cached_tokens or 0)
    found = stretches(steps, tokens, len(readers))
    return placed(steps, found[shot.nth], fired, readers[0]) if shot.nth < len(found) else []


def _placed(shot: Shot, name: str) -> list[Placed]:
    """By the readers on this engine, else by the long prompt's prefill there."""
    readers = [r for r in shot.requests if r.role == "victim" and shot.done.engine_of(r) == name]
    if counted := _counted(shot, name, readers):
        return counted
    # Readers on one engine are given their tokens by the same steps: more would fit no better.
    by_reader = (shot.done.placed(reader, name) for reader in readers[:MOST_ASKED])
    if found := next((some for some in by_reader if some), None):
        return found
    ledger = shot.done.ledgers.get(shot.fired.id) if shot.fired else None
    if shot.fired is None or ledger is None or ledger.p_engine != name:
        return []
    times, end = ledger.p_times, ledger.p_response_ns
    if times is None or times.first_token_ms is None or end is None:
        return []
    tokens = shot.fired.prompt_tokens or shot.fired.prompt_asked
    steps = shot.done.steps.get(name, ())
    return by_prefill(steps, tokens, round(times.first_token_ms * MS), end)


def _span(shot: Shot, span: Span, most: float) -> Iterable[Piece]:
    """`most` is the highest rate beside it, 0 where iterations are drawn themselves."""
    start, end = shot.second(span.start_ns), shot.second(span.end_ns)
    if span.iterations is not None and most > 0:
        title = f"{span.iterations:,} iterations gave tokens in {number(end - start)} s"
        yield Piece(start, end, "span", "", title, _rate(span) / most)
    if span.transfers is not None:
        moved = span.transfers
        title = f"KV of {moved.count} request{'s' * (moved.count != 1)} came: {told(moved)}"
        yield Piece(start, end, "moved", "", title)


def _rate(span: Span) -> float:
    seconds = (span.end_ns - span.start_ns) / NS
    return (span.iterations or 0) / seconds if seconds > 0 else 0.0


# -------------------------------------------------------------------------------------- drawing


def drawn(shown: Sequence[Lane], axis: Axis, panel: Panel) -> Markup | None:
    rows = [_row(lane, axis, panel) for lane in shown]
    return el("div", rows, _moved(shown, panel), class_="lanes") if rows else None


def _moved(shown: Sequence[Lane], panel: Panel) -> Markup | None:
    """The transfers of the long prompt's time in words: a tip alone is not read."""
    words = [
        f"{lane.name}: {piece.title}"
        for lane in shown
        for piece in lane.pieces
        if piece.kind == "moved" and piece.end_s > 0 and piece.start_s < panel.hit_s
    ]
    return el("p", "; ".join(words), class_="moved-words") if words else None


def _row(lane: Lane, axis: Axis, panel: Panel) -> Markup:
    said = f"{lane.name}: {_said(lane)}"
    return el(
        "div",
        _steps(lane, axis, panel) if lane.steps else None,
        [_piece(piece, axis) for piece in lane.pieces],
        el("span", lane.name, class_="name"),
        class_="lane-row",
        role="img",
        aria_label=said,
    )


def _said(lane: Lane) -> str:
    told = [f"{len(lane.steps):,} iterations"] if lane.steps else []
    return "; ".join([*told, *(piece.title for piece in lane.pieces)])


def _piece(piece: Piece, axis: Axis) -> Markup | None:
    left, right = (min(max(axis.share(at), 0.0), 1.0) for at in (piece.start_s, piece.end_s))
    if right <= left:
        return None
    faint = f";opacity:{0.12 + 0.78 * piece.shade:.2f}" if piece.kind == "span" else ""
    return el(
        "span",
        piece.label if right - left > LABELLED else None,
        class_=f"piece {piece.kind}",
        style=f"left:{left * 100:.3f}%;width:{(right - left) * 100:.3f}%{faint}",
        title=piece.title,
    )


def _steps(lane: Lane, axis: Axis, panel: Panel) -> Markup:
    """Iterations as boxes: low where they only decode, full where they also prefill."""
    longest = max(lane.steps, key=lambda p: p.end_ns - p.start_ns)
    title = (
        f"{len(lane.steps):,} iterations, the longest "
        f"{spoken((longest.end_ns - longest.start_ns) / MS, 'ms')} with "
        f"{longest.iteration.context_tokens:,} prompt and "
        f"{longest.iteration.generation_tokens:,} answer tokens"
    )
    paths = [
        el("path", d=_boxes(lane.steps, axis, panel, prefill=prefill), class_=kind)
        for prefill, kind in ((False, "decoding"), (True, "prefilling"))
    ]
    return el(
        "svg",
        el("title", title),
        paths,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _boxes(steps: Iterable[Placed], axis: Axis, panel: Panel, *, prefill: bool) -> str:
    top = 8 if prefill else 58
    joined: list[tuple[float, float]] = []
    for step in steps:
        if bool(step.iteration.context_tokens) != prefill:
            continue
        start, end = (
            axis.share((at - panel.origin_ns) / NS) for at in (step.start_ns, step.end_ns)
        )
        start, end = max(start, 0.0), min(end, 1.0)
        if end <= start:
            continue
        small = end - start < FINEST
        if small and joined and start - joined[-1][1] < FINEST:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return "".join(
        f"M{a * WIDTH:.1f} {HEIGHT}V{top}H{max(b * WIDTH - 2, a * WIDTH + 2):.1f}V{HEIGHT}Z"
        for a, b in joined
    )
