"""The readers' streams over time: one strip a reader, the same time axis for every arm.

A strip is the stream's speed, drawn so that area is tokens: the stretch between two events is as
high as 1 / its length (times the tokens that the later event brought). A stream that flows is a
band, a slow one a lower band, a stall a hole, and the tokens lost are the ink that is missing.

Rules of this file: geometry in, markup out. Marks are SVG stretched to the box's width, words are
HTML placed in percent of it, so that a phone and a page of paper get the same picture with
letters of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from twolane.analysis import stats
from twolane.analysis.results import Run
from twolane.clock import MS, NS
from twolane.records import InterferenceCell
from twolane.report import shades
from twolane.report.markup import Markup, details, el, scroll, table
from twolane.report.metrics import MINUS, number, spoken

# A strip's inner size in SVG units; its width is stretched to the page.
WIDTH, HEIGHT = 4000, 100
MOST_STRIPS = 8  # readers of one shot that are drawn; every one is in the table
# The quiet speed stands at this share of a strip's height: room for a burst above it.
QUIET_SHARE = 0.66
# Steps narrower than this share of the axis are joined, tokens kept: single tokens arrive too
# unevenly for their speed to be read. A stall is never joined with what stands beside it.
FINEST = 1 / 150


@dataclass(frozen=True)
class Hole:
    """A stall: seconds since the long prompt was sent, and its length in milliseconds."""

    start_s: float
    end_s: float

    @property
    def length_ms(self) -> float:
        return (self.end_s - self.start_s) * 1e3


@dataclass(frozen=True)
class Step:
    """One stretch of a stream: `tokens` arrived at its end; seconds since the send."""

    start_s: float
    end_s: float
    tokens: int

    @property
    def speed(self) -> float:
        return self.tokens / (self.end_s - self.start_s)


@dataclass(frozen=True)
class Strip:
    """One reader in one shot."""

    name: str
    steps: tuple[Step, ...]
    holes: tuple[Hole, ...]
    worst: Hole | None
    quiet_rate: float
    lost: float  # in the hit, as `stalled`
    stalled: stats.Stalls
    threshold_ms: float


@dataclass(frozen=True)
class Panel:
    """One shot of one run: its victims' strips and its phases, in seconds since the send."""

    arm: str
    run: str
    null: bool
    shot: int
    hit_s: float  # how long the aggressor took to its first token
    begin_s: float
    end_s: float
    strips: tuple[Strip, ...]
    codes: tuple[str, ...] = ()  # why it enters no verdict: drawn hollow
    origin_ns: int = 0  # when the long prompt was sent

    @property
    def worst_ms(self) -> float:
        return max((s.worst.length_ms for s in self.strips if s.worst), default=0.0)


def panels(run: Run, cell: InterferenceCell, codes: Iterable[str] = ()) -> list[Panel]:
    """Every shot of `cell` in `run`, the null shot first. `codes` are those of the cell."""
    shots: dict[int, list[stats.Victim]] = {}
    for victim in stats.victims(run.requests("victim", "aggressor", "null", cell=cell.id)):
        shots.setdefault(victim.request.shot, []).append(victim)
    return [_panel(run, shot, found, tuple(codes)) for shot, found in sorted(shots.items())]


def first(run: Run, cell: InterferenceCell, codes: Iterable[str] = ()) -> Panel | None:
    """The first shot of `cell` in `run` that is no null shot; nothing is reckoned of the others."""
    requests = list(run.requests("victim", "aggressor", "null", cell=cell.id))
    shot = min((r.shot for r in requests if r.role == "aggressor"), default=None)
    found = stats.victims(r for r in requests if r.shot == shot)
    return _panel(run, shot, found, tuple(codes)) if found and shot is not None else None


def _panel(run: Run, shot: int, victims: Sequence[stats.Victim], codes: tuple[str, ...]) -> Panel:
    phases = victims[0].phases
    return Panel(
        arm=run.arm,
        run=run.id,
        null=victims[0].null,
        shot=shot,
        hit_s=stats.seconds_of(phases.hit),
        begin_s=(phases.quiet_ns - phases.hit_ns) / NS,
        end_s=(phases.end_ns - phases.hit_ns) / NS,
        strips=tuple(_strip(victim) for victim in victims),
        codes=codes,
        origin_ns=phases.hit_ns,
    )


def _strip(victim: stats.Victim) -> Strip:
    phases, origin = victim.phases, victim.phases.hit_ns
    gaps = stats.gaps(victim.request)
    tokens = stats.token_counts(victim.request)[1:]
    threshold = stats.stall_threshold_ns([g for g in gaps if g.inside(phases.quiet)])
    steps = (
        Step((gap.start_ns - origin) / NS, (gap.end_ns - origin) / NS, count)
        for gap, count in zip(gaps, tokens, strict=True)
        if gap.end_ns > phases.quiet_ns and gap.length_ns > 0
    )
    hit = [gap for gap in gaps if gap.overlaps(phases.hit)]
    worst = max(hit, key=lambda gap: gap.length_ns, default=None)
    return Strip(
        name=f"reader {victim.request.index + 1}",
        steps=tuple(steps),
        holes=tuple(_hole(gap, origin) for gap in gaps if gap.length_ns > threshold),
        worst=_hole(worst, origin) if worst else None,
        quiet_rate=victim.quiet_rate_tok_s,
        lost=victim.tokens_lost,
        stalled=victim.stalls,
        threshold_ms=threshold / MS,
    )


def _hole(gap: stats.Gap, origin: int) -> Hole:
    return Hole((gap.start_ns - origin) / NS, (gap.end_ns - origin) / NS)


# ------------------------------------------------------------------------------------ drawing


@dataclass(frozen=True)
class Axis:
    """Seconds across the width of a figure, shared by its panels."""

    begin_s: float
    end_s: float

    @classmethod
    def over(cls, panels: Iterable[Panel]) -> Axis:
        every = list(panels)
        return cls(min(p.begin_s for p in every), max(p.end_s for p in every))

    def share(self, at_s: float) -> float:
        """Of the width, in 0 ... 1, for a moment in seconds."""
        return (at_s - self.begin_s) / (self.end_s - self.begin_s)

    def percent(self, at_s: float) -> str:
        return f"{self.share(at_s) * 100:.3f}%"

    def ticks(self) -> list[float]:
        """About six round moments."""
        step = next(s for s in _ROUND if (self.end_s - self.begin_s) / s <= 8)
        first = -(-self.begin_s // step) * step
        count = int((self.end_s - first) // step) + 1
        return [first + step * i for i in range(count)]


_ROUND = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 1e9)


def figure(
    panels: Sequence[Panel],
    axis: Axis,
    words: dict[str, str],
    under: Callable[[Panel], Markup | None] = lambda panel: None,
    prefilled: Callable[[Panel], float | None] = lambda panel: None,
) -> Markup:
    """Panels under each other on one axis; `under` draws what stands below a panel's strips,
    `prefilled` tells when its prefill had ended, in seconds since the send, where that is known."""
    top = max((s.quiet_rate for panel in panels for s in panel.strips), default=1.0) or 1.0
    worst = [panel.worst_ms for panel in panels]
    return el(
        "div",
        [
            _drawn(
                *(panel, axis, words),
                full=top / QUIET_SHARE,
                beside=worst,
                lanes=under(panel),
                prefilled=prefilled(panel),
            )
            for panel in panels
        ],
        _axis(axis),
        class_="timeline",
    )


def _drawn(
    panel: Panel,
    axis: Axis,
    words: dict[str, str],
    *,
    full: float,
    beside: list[float],
    lanes: Markup | None,
    prefilled: float | None,
) -> Markup:
    title = "null run" if panel.null else panel.arm
    name = f"{panel.arm}, no prompt sent: client and machine" if panel.null else words[panel.arm]
    return el(
        "section",
        el(
            "header",
            el("h3", el("span", title, class_="arm"), " ", el("span", name, class_="words")),
            el(
                "p",
                "worst pause, this shot " if not panel.null else "worst pause ",
                el("b", spoken(panel.worst_ms, "ms", beside=beside)),
                _stalled(panel),
                _codes(panel),
            ),
        ),
        el(
            "div",
            shades.drawn(panel, axis, prefilled),
            [_strip_drawn(strip, axis, full, beside) for strip in worst_strips(panel)],
            _unshown(panel),
            lanes,
            class_="strips",
        ),
        class_=f"panel{' null' * panel.null}{' excluded' * bool(panel.codes)}",
    )


def _stalled(panel: Panel) -> str:
    """How many of the readers: under copies only those on the busy one need stall."""
    if panel.null:
        return ""
    return f", {sum(s.stalled.count > 0 for s in panel.strips)} of {len(panel.strips)} stalled"


def worst_strips(panel: Panel) -> list[Strip]:
    """At most `MOST_STRIPS` of a panel's readers, those with the longest pauses, in their order."""
    ranked = sorted(panel.strips, key=lambda s: -(s.worst.length_ms if s.worst else 0.0))
    chosen = set(map(id, ranked[:MOST_STRIPS]))
    return [strip for strip in panel.strips if id(strip) in chosen]


def _unshown(panel: Panel) -> Markup | None:
    more = len(panel.strips) - MOST_STRIPS
    words = f"and {more} more readers, whose pauses were shorter"
    return el("p", words, class_="unshown") if more > 0 else None


def _codes(panel: Panel) -> Markup | None:
    codes = [el("a", code, href="#excluded") for code in panel.codes]
    return el("span", codes, class_="codes") if codes else None


def _strip_drawn(strip: Strip, axis: Axis, full: float, beside: list[float]) -> Markup:
    worst = spoken(strip.worst.length_ms, "ms") if strip.worst else "none"
    said = (
        f"{strip.name}: quiet {number(strip.quiet_rate)} tokens/s, worst pause {worst}, "
        f"{number(strip.lost, decimals=0)} tokens lost"
    )
    band = el("path", d=_band(strip.steps, strip.holes, axis, full), class_="band")
    holes = el("path", d=_holes(strip.holes, axis), class_="holes")
    lone = el("path", d=_lone(strip.holes, axis), class_="lone")
    worst_hole = [strip.worst] if strip.worst in strip.holes else []
    floor = el("path", d=_holes(worst_hole, axis), class_="holes worst")
    svg = el(
        "svg",
        *(el("title", said), band, holes, floor, lone),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
    )
    label = el("span", strip.name, class_="name")
    return el("div", svg, label, _mark(strip, axis, beside), class_="strip")


def _mark(strip: Strip, axis: Axis, beside: list[float]) -> Markup | None:
    """The worst pause's length, written in or beside its hole, if it is a stall."""
    worst = strip.worst
    if worst is None or worst.length_ms <= strip.threshold_ms:
        return None
    middle = (worst.start_s + worst.end_s) / 2
    return el(
        "span",
        spoken(worst.length_ms, "ms", beside=beside),
        class_="mark",
        style=f"left:{axis.percent(middle)}",
    )


def _band(steps: Sequence[Step], holes: Sequence[Hole], axis: Axis, full: float) -> str:
    """The outline of the speed: for each step, up to its speed and along its length."""
    if not steps:
        return ""
    drawn = [f"M{axis.share(steps[0].start_s) * WIDTH:.1f} {HEIGHT}"]
    finest_s = FINEST * (axis.end_s - axis.begin_s)
    for step in _joined(steps, finest_s, {hole.start_s for hole in holes}):
        height = HEIGHT * (1 - min(1.0, step.speed / full))
        drawn.append(f"V{height:.0f}H{axis.share(step.end_s) * WIDTH:.1f}")
    return "".join(drawn) + f"V{HEIGHT}Z"


def _joined(
    steps: Iterable[Step], finest_s: float, stalls: Collection[float] = ()
) -> Iterator[Step]:
    """Steps at least `finest_s` long; shorter neighbours become one, with all their tokens.

    A step that starts at one of `stalls` stays alone.
    """
    open_: Step | None = None
    for step in steps:
        if step.start_s in stalls:
            if open_:
                yield open_
            open_ = None
            yield step
            continue
        open_ = Step(open_.start_s, step.end_s, open_.tokens + step.tokens) if open_ else step
        if open_.end_s - open_.start_s >= finest_s:
            yield open_
            open_ = None
    if open_:
        yield open_


def _holes(holes: Iterable[Hole], axis: Axis) -> str:
    """A line along the floor under every stall."""
    return "".join(
        f"M{axis.share(h.start_s) * WIDTH:.1f} {HEIGHT - 2}H{axis.share(h.end_s) * WIDTH:.1f}"
        for h in holes
    )


def _lone(holes: Sequence[Hole], axis: Axis) -> str:
    """An upright line for every token that stands alone."""
    top = HEIGHT * (1 - QUIET_SHARE)
    alone = lone_tokens(holes)
    return "".join(f"M{axis.share(at) * WIDTH:.1f} {HEIGHT}V{top:.0f}" for at in alone)


def lone_tokens(holes: Sequence[Hole]) -> list[float]:
    """When tokens came that stand alone between two stalls."""
    starts = {hole.start_s for hole in holes}
    return [hole.end_s for hole in holes if hole.end_s in starts]


def _axis(axis: Axis) -> Markup:
    ticks = [
        el("span", f"{t:g}".replace("-", MINUS), style=f"left:{axis.percent(t)}")
        for t in (round(t, 3) for t in axis.ticks())
    ]
    title = el("p", "seconds since the long prompt was sent")
    return el("div", el("div", ticks, class_="ticks"), title, class_="axis", aria_hidden="true")


def as_table(panels: Sequence[Panel], summary: str) -> Markup:
    """The same in numbers; worst pause, stalls and loss of the hit, as in the figures."""
    rows = [
        (
            f"{panel.arm}, null run" if panel.null else panel.arm,
            strip.name,
            number(strip.quiet_rate),
            number(panel.hit_s),
            number(strip.worst.length_ms if strip.worst else None),
            number(strip.stalled.seconds),
            str(strip.stalled.count),
            number(strip.lost, decimals=0),
        )
        for panel in panels
        for strip in panel.strips
    ]
    head = ("arm", "stream", "quiet, tokens/s", "prefill, s", "worst pause in it, ms")
    rest = ("stalled in it, s", "stalls in it", "tokens lost in it")
    return details(
        summary, scroll(table((*head, *rest), rows, caption=summary), summary), class_="data"
    )
