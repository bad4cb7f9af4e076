"""c*(p) inside a prompt: which budget keeps a reader's gap short when the prompt is read up to p.

Rules of this file: pure functions of what `chunks` found, but for `shots`, which has the files
read. Gaps are the longest of all shots, blocks and prompts: a pause that happened is a pause. The
first and the last chunk share their gaps with the entry and the exit, which are no chunk's: so
they speak for a prefix only where no other chunk does, and are marked. Points with a reason code
decide nothing; where every one has the code NEEDLE because the weights are made up, their figures
are told and no verdict is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2
from typing import Final

from twolane.analysis.arms import Arm, dummy_weights
from twolane.analysis.chunks import Chunk, Hit, hits_of
from twolane.analysis.frontier import GAP_LIMITS_MS, Holds, by_layout, rule
from twolane.analysis.iterations import FLAG, cuts, read
from twolane.analysis.points import Measured
from twolane.analysis.results import Run
from twolane.analysis.work import engine_of, ledgers
from twolane.records import InterferenceCell, Request

FIRST_BAND: Final = 8_192
FEWEST_BANDS: Final = 4


# ----------------------------------------------------------------------------------------- bands


def bands(longest: int) -> tuple[int, ...]:
    """Upper ends of the prefix bands of a prompt: powers of two and its length.

    From 8,192 on; of a prompt with fewer than `FEWEST_BANDS` of them, its last octaves.
    """
    first = FIRST_BAND
    while first > 1 and first * 2 ** (FEWEST_BANDS - 2) >= longest:
        first //= 2
    found = []
    while first < longest:
        found.append(first)
        first *= 2
    return (*found, longest)


@dataclass(frozen=True, slots=True)
class Peak:
    """The longest gap in a band. `edge`: only first or last chunks lie there, so that what the
    engine needs to take a prompt in or to answer it is part of it."""

    gap_ms: float
    edge: bool


def peaks(hits: Iterable[Hit], tops: Sequence[int]) -> dict[int, Peak]:
    """The longest gap of any chunk in each band.

    A chunk lies in the band in which it ends. A band in which none ends is that of the chunk that
    was read in when the prefix passed its upper end.
    """
    found: dict[int, list[Peak]] = {}
    for one in hits:
        for top, peak in _of_hit(one, tops):
            found.setdefault(top, []).append(peak)
    return {top: _worst(some) for top, some in sorted(found.items())}


def _of_hit(one: Hit, tops: Sequence[int]) -> Iterable[tuple[int, Peak]]:
    bottoms = [0, *tops[:-1]]
    for low, top in zip(bottoms, tops, strict=True):
        inside = [chunk for chunk in one.chunks if low < chunk.end <= top]
        over = [chunk for chunk in one.chunks if chunk.start < top <= chunk.end]
        if some := inside or over:
            yield top, _worst([Peak(chunk.gap_ms, chunk.edge) for chunk in some])


def _worst(some: Sequence[Peak]) -> Peak:
    """Of chunks that share their gap with nothing, where there are such."""
    plain = [peak for peak in some if not peak.edge]
    return max(plain or some, key=lambda peak: peak.gap_ms)


def curve(hits: Sequence[Hit], steps_an_octave: int = 4) -> tuple[tuple[float, float], ...]:
    """(prefix, longest gap in ms) for drawing: the worst chunk of each part of an octave."""
    worst: dict[int, Chunk] = {}
    plain = [chunk for one in hits for chunk in one.chunks if not chunk.edge]
    for chunk in plain or [chunk for one in hits for chunk in one.chunks]:
        part = int(log2(chunk.end) * steps_an_octave)
        if part not in worst or chunk.gap_ms > worst[part].gap_ms:
            worst[part] = chunk
    return tuple((float(chunk.end), chunk.gap_ms) for _, chunk in sorted(worst.items()))


# ------------------------------------------------------------------------------------ many runs


@dataclass(frozen=True)
class Shots:
    """What one run's readers felt in one interference cell, and what spoils it.

    `why` says why there are no `hits`. `dummy`: the weights are made up, so that answers mean
    nothing and the code NEEDLE says no more than that.
    """

    arm: str
    block: int
    victims: int
    prompt: int
    hits: tuple[Hit, ...] = ()
    codes: tuple[str, ...] = ()
    dummy: bool = False
    why: str = ""

    @property
    def clean(self) -> bool:
        return bool(self.hits) and not self.codes

    @property
    def figures(self) -> bool:
        """Whether it may be read as a figure, though it enters no verdict."""
        return bool(self.hits) and self.dummy and set(self.codes) == {"NEEDLE"}


@dataclass(frozen=True)
class Edges:
    """One arm's pauses around the chunks of one prompt, the longest of all its shots, in ms."""

    arm: Arm
    victims: int
    prompt: int
    entry_ms: float | None
    first_ms: float
    exit_ms: float
    chunks: int  # of one prompt


@dataclass(frozen=True)
class Line:
    """One arm's gaps by prefix beside `victims` readers, over all its prompts, runs and shots."""

    arm: Arm
    peaks: Mapping[int, Peak]
    curve: tuple[tuple[float, float], ...]
    shots: int
    runs: int


@dataclass(frozen=True)
class Held:
    """c*(p) of one prefix band and one limit.

    `outcome`, `held`, `exceeded`, `estimate` and `floor_ms` are as in `BudgetLimit`; `gap_ms` is
    what `held` gave, or the smallest budget where none holds; `edge` as in `Peak`. Where the
    smallest budget does not hold but the line through the two smallest meets the limit above
    budget 0, `estimate` is where.
    """

    prefix: int
    limit_ms: float
    outcome: Holds
    held: int | None = None
    exceeded: int | None = None
    estimate: float | None = None
    floor_ms: float | None = None
    gap_ms: float | None = None
    smallest: int | None = None
    edge: bool = False
    gaps_ms: tuple[tuple[int, float], ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Prefixes:
    """All that a campaign says of gaps by prefix, of one layout beside `victims` readers.

    `verdict` is False where every point carries a code and the figures are shown all the same.
    """

    layout: str
    victims: int
    prompts: tuple[int, ...]
    limits_ms: tuple[float, ...]
    lines: tuple[Line, ...]
    edges: tuple[Edges, ...]
    grid: tuple[Held, ...]
    verdict: bool
    why: tuple[str, ...] = ()  # why points are left out, by budget

    @property
    def tops(self) -> tuple[int, ...]:
        return bands(max(self.prompts))


def prefixes(
    found: Sequence[Shots], arms: Mapping[str, Arm], limits_ms: Iterable[float] = GAP_LIMITS_MS
) -> list[Prefixes]:
    """One for each layout and number of readers; none of campaigns without an interference cell."""
    limits = tuple(sorted(set(limits_ms)))
    groups = by_layout(arm for arm in arms.values() if not arm.split)
    counts = sorted({one.victims for one in found})
    told = [_of_group(found, group, victims, limits) for group in groups for victims in counts]
    return [one for one in told if one is not None]


def _of_group(
    found: Iterable[Shots], group: Sequence[Arm], victims: int, limits: tuple[float, ...]
) -> Prefixes | None:
    names = {arm.name for arm in group}
    mine = [one for one in found if one.arm in names and one.victims == victims]
    if not mine:
        return None
    verdict = any(one.clean for one in mine) or not any(one.figures for one in mine)
    usable = [one for one in mine if (one.clean if verdict else one.figures)]
    prompts = tuple(sorted({one.prompt for one in mine}))
    lines = [_line(arm, usable, bands(prompts[-1])) for arm in group]
    told = tuple(line for line in lines if line is not None)
    why = _left_out(group, mine, usable)
    return Prefixes(
        layout=group[0].layout,
        victims=victims,
        prompts=prompts,
        limits_ms=limits,
        lines=told,
        edges=tuple(_edges(usable, group, victims)),
        grid=tuple(_held(told, top, limit, why) for top in bands(prompts[-1]) for limit in limits),
        verdict=verdict,
        why=why,
    )


def _line(arm: Arm, usable: Iterable[Shots], tops: Sequence[int]) -> Line | None:
    mine = [shots for shots in usable if shots.arm == arm.name]
    hits = [one for shots in mine for one in shots.hits]
    runs = len({shots.block for shots in mine})
    return Line(arm, peaks(hits, tops), curve(hits), len(hits), runs) if hits else None


def _left_out(
    group: Iterable[Arm], mine: Sequence[Shots], usable: Sequence[Shots]
) -> tuple[str, ...]:
    """One reason an arm of which nothing can be used."""
    told = []
    for arm in group:
        own = [one for one in mine if one.arm == arm.name]
        if own and not any(one in usable for one in own):
            codes = dict.fromkeys(code for one in own for code in one.codes)
            reasons = dict.fromkeys(one.why for one in own if one.why)
            why = f"coded {', '.join(codes)}" if codes else "; ".join(reasons)
            told.append(f"{arm.name}: {why}")
    return tuple(told)


def _edges(usable: Sequence[Shots], group: Iterable[Arm], victims: int) -> Iterable[Edges]:
    prompts = sorted({one.prompt for one in usable})
    for prompt in prompts:
        for arm in group:
            mine = [one for one in usable if (one.arm, one.prompt) == (arm.name, prompt)]
            hits = [hit for one in mine for hit in one.hits]
            if hits:
                yield Edges(
                    arm,
                    victims,
                    prompt,
                    entry_ms=max(
                        (h.entry_ms for h in hits if h.entry_ms is not None), default=None
                    ),
                    first_ms=max(hit.first_ms for hit in hits),
                    exit_ms=max(hit.exit_ms for hit in hits),
                    chunks=max(len(hit.chunks) for hit in hits),
                )


def _held(lines: Iterable[Line], top: int, limit_ms: float, why: Sequence[str]) -> Held:
    worst: dict[int, Peak] = {}
    for line in lines:
        budget, peak = line.arm.budget or 0, line.peaks.get(top)
        if peak is not None and (budget not in worst or peak.gap_ms > worst[budget].gap_ms):
            worst[budget] = peak
    if not worst:
        lacking = "; ".join(why) or "no prompt was read in as far as that"
        return Held(top, limit_ms, "cannot tell", why=lacking)
    gaps = tuple((budget, peak.gap_ms) for budget, peak in sorted(worst.items()))
    ruled = rule(gaps, limit_ms)
    told = ruled.held if ruled.held is not None else gaps[0][0]
    return Held(
        prefix=top,
        limit_ms=limit_ms,
        outcome=ruled.outcome,
        held=ruled.held,
        exceeded=ruled.exceeded,
        estimate=ruled.estimate if ruled.held is not None else _below(gaps, limit_ms),
        floor_ms=ruled.floor_ms,
        gap_ms=worst[told].gap_ms,
        smallest=gaps[0][0],
        edge=worst[told].edge,
        gaps_ms=gaps,
        why="; ".join(why),
    )


def _below(gaps: Sequence[tuple[int, float]], limit_ms: float) -> float | None:
    """Where the line through the two smallest budgets meets the limit, below the smaller one."""
    if len(gaps) < 2:
        return None
    (small, low), (large, high) = gaps[0], gaps[1]
    if high <= low or large < 2 * small:
        return None
    budget = small - (low - limit_ms) / (high - low) * (large - small)
    return budget if budget > 0 else None


# ----------------------------------------------------------------------------------- from results


def shots(measured: Iterable[Measured]) -> list[Shots]:
    """What every run's readers felt in every interference cell, chunk by chunk."""
    return [
        _of_cell(one.run, one.cell, tuple(dict.fromkeys(code.code for code in one.codes)))
        for one in measured
        if isinstance(one.cell, InterferenceCell)
    ]


def _of_cell(run: Run, cell: InterferenceCell, codes: tuple[str, ...]) -> Shots:
    engines = run.meta.engines
    logs = {e.name: run.folder / e.log for e in engines if FLAG in e.argv and e.role == "both"}
    blank = partial(
        Shots,
        run.arm,
        run.block,
        cell.victims,
        cell.prompt,
        codes=codes,
        dummy=dummy_weights(engines),
    )
    if not logs:
        return blank(why=f"its engines tell no iterations ({FLAG})")
    requests = list(run.requests("victim", "aggressor", cell=cell.id))
    known = ledgers(run, requests) if len(engines) > 1 else {}

    def engine(request: Request) -> str:
        return engine_of(request, known, engines)

    def told(name: str, tokens: int, beside: int) -> Sequence[tuple[int, ...]]:
        return cuts(read(logs[name]), tokens, beside) if name in logs else ()

    found = tuple(hits_of(requests, engine, told))
    return blank(hits=found, why="" if found else "no steps of its engines fit its shots")
