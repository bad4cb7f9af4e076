"""What changed between two runs: flags, variables, versions, capacity, devices, clocks, figures.

Rules of this file: recorded facts alone, each difference once, in the order in which one looks for
a cause. Ports, pids and stamps differ between any two runs and are not told. A figure is told
with both values; whether the difference means anything takes blocks and `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twolane.analysis.arms import flags
from twolane.analysis.measures import median
from twolane.analysis.points import Measured
from twolane.analysis.results import Run
from twolane.records import EngineMeta, Sample

_INCIDENTAL = frozenset({"--port", "VLLM_NIXL_SIDE_CHANNEL_PORT"})
ABSENT = "not given"


@dataclass(frozen=True)
class Change:
    """One difference, as text; `kind` groups them."""

    kind: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Moved:
    """One figure of one cell in both runs; `ratio` is after / before, None at or below zero."""

    cell: str
    metric: str
    before: float
    after: float
    coded: tuple[str, ...]  # codes of either

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before > 0 and self.after > 0 else None


def changes(before: Run, after: Run) -> list[Change]:
    """Every recorded difference, identity first, then settings, then surroundings."""
    pair = (before, after)
    return [
        *_facts(pair, "run", _RUN),
        *_named(pair, "version", lambda run: run.meta.versions),
        *_engines(pair),
        *_named(pair, "host", lambda run: _flat("", run.meta.host)),
        *_facts(pair, "clock", _CLOCKS),
    ]


Pair = tuple[Run, Run]
Fact = tuple[str, Callable[[Run], str]]

_RUN: tuple[Fact, ...] = (
    ("campaign", lambda run: run.meta.campaign),
    ("arm", lambda run: run.arm),
    ("layout", lambda run: run.meta.layout),
    ("model", lambda run: run.meta.model),
    ("context, tokens", lambda run: f"{run.meta.context:,}"),
    ("block", lambda run: str(run.block + 1)),
    ("place in the order", lambda run: str(run.meta.order + 1)),
    ("prompts (seed)", lambda run: str(run.meta.seed)),
    ("boot of the host", lambda run: run.meta.boot),
    ("how it ended", lambda run: run.meta.status),
)


def _facts(pair: Pair, kind: str, facts: Iterable[Fact]) -> Iterable[Change]:
    for what, of in facts:
        here, there = of(pair[0]), of(pair[1])
        if here != there:
            yield Change(kind, what, here, there)


def _named(pair: Pair, kind: str, of: Callable[[Run], Mapping[str, str]]) -> Iterable[Change]:
    return _differing(kind, "", of(pair[0]), of(pair[1]))


def _differing(
    kind: str, whose: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterable[Change]:
    for name in sorted((before.keys() | after.keys()) - _INCIDENTAL):
        here, there = before.get(name, ABSENT), after.get(name, ABSENT)
        if here != there:
            yield Change(kind, f"{whose}{name}", here, there)


def _engines(pair: Pair) -> Iterable[Change]:
    """Engines are held against each other by role and place, since their names are free."""
    before, after = (run.meta.engines for run in pair)
    if [engine.role for engine in before] != [engine.role for engine in after]:
        yield Change("engine", "engines", _roles(before), _roles(after))
    for here, there in zip(before, after, strict=False):
        whose = f"{here.name}: " if len(before) > 1 else ""
        yield from _differing("flag", whose, flags(here.argv), flags(there.argv))
        yield from _differing("variable", whose, here.env, there.env)
        yield from _differing("engine", whose, _capacity(here), _capacity(there))


def _roles(engines: Sequence[EngineMeta]) -> str:
    return ", ".join(engine.role for engine in engines) or "none"


def _capacity(engine: EngineMeta) -> dict[str, str]:
    return {
        "name": engine.name,
        "group": engine.group,
        "devices": ", ".join(map(str, engine.devices)),
        "KV capacity, tokens": _whole(engine.kv_tokens),
        "KV block, tokens": _whole(engine.block_size),
        "threads brought back to its cores": str(len(engine.strayed)),
        "exit code": str(engine.exit_code),
    }


def _whole(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _flat(prefix: str, value: Any) -> dict[str, str]:
    """Nested facts by dotted name; what only names a moment (load, clocks now) left out."""
    if isinstance(value, dict):
        found: dict[str, str] = {}
        for key, one in value.items():
            if key not in _MOMENTARY:
                found |= _flat(f"{prefix}.{key}" if prefix else str(key), one)
        return found
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return {k: v for i, one in enumerate(value) for k, v in _flat(f"{prefix}.{i}", one).items()}
    return {prefix: ", ".join(map(str, value)) if isinstance(value, list) else str(value)}


_MOMENTARY = frozenset({"load_1m", "clocks_mhz"})


# -------------------------------------------------------------------------------------- clocks


def _clock(of: str, last: Callable[[list[float]], float | None]) -> Callable[[Run], str]:
    def read(run: Run) -> str:
        value = last(readings(run.samples(), of))
        return "not recorded" if value is None else f"{value:,.0f}"

    return read


def readings(samples: Iterable[Sample], of: str) -> list[float]:
    """One reading of all devices, e.g. `sm_clock_mhz`, over a run."""
    return [
        value
        for sample in samples
        if sample.source == "devices"
        for name, value in sample.values.items()
        if name.endswith(f":{of}")
    ]


_CLOCKS: tuple[Fact, ...] = (
    ("SM clock, median MHz", _clock("sm_clock_mhz", median)),
    ("SM clock, lowest MHz", _clock("sm_clock_mhz", lambda seen: min(seen, default=None))),
    ("power, highest W", _clock("power_w", lambda seen: max(seen, default=None))),
    ("temperature, highest C", _clock("temperature_c", lambda seen: max(seen, default=None))),
)


# ------------------------------------------------------------------------------------- figures


def moved(before: Iterable[Measured], after: Iterable[Measured]) -> list[Moved]:
    """Every figure that both runs have, cell by cell."""
    theirs = {one.cell.id: one for one in after}
    found = []
    for one in before:
        other = theirs.get(one.cell.id)
        if other is None:
            continue
        codes = tuple(dict.fromkeys(code.code for code in (*one.codes, *other.codes)))
        for name, value in one.values.items():
            there = other.values.get(name)
            if value is not None and there is not None:
                found.append(Moved(one.cell.id, name, value, there, codes))
    return found
