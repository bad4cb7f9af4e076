"""What differs between the arms of a campaign besides the thing they are meant to differ in.

Rules of this file: only recorded facts (run.json) are compared, and every difference is listed,
also the declared one: what a campaign set out to vary cannot be told from its flags by a rule,
so the reader is shown both. `severe` differences can make an effect by themselves; `mild` ones
can shift it; `knob` ones are how an engine was told to run, where the declared factor is found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from twolane.analysis.arms import PLACE_VARIABLES, flags, proxy_options
from twolane.analysis.results import Results, Run
from twolane.records import EngineMeta

Severity = Literal["severe", "mild", "knob"]

# Flags that name a place or a port of this start, not a way of running.
_INCIDENTAL = frozenset(
    {"--port", "--host", "--model", "--served-model-name", "--uvicorn-log-level"}
)


@dataclass(frozen=True)
class Confound:
    """One difference: its values by arm, as text. `among` are the arms that can be held against
    each other in it, where these are not all. `by_block` tells each arm's values block by block."""

    what: str
    severity: Severity
    values: Mapping[str, str]
    why: str
    among: frozenset[str] | None = None
    by_block: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def separates(self, a: str, b: str) -> bool:
        """Whether the two arms differ in it: where both ran in some block, in those blocks, since
        a comparison is within blocks and an arm's further ones enter none."""
        if self.among is not None and not {a, b} <= self.among:
            return False
        one, other = self.by_block.get(a, {}), self.by_block.get(b, {})
        both = one.keys() & other.keys()
        if both:
            return {one[block] for block in both} != {other[block] for block in both}
        return self.values.get(a) != self.values.get(b)


def confounds(results: Results) -> list[Confound]:
    """Every recorded difference between the arms, the severe ones first."""
    found = [
        *_facts(results),
        *_placement(results),
        *_shared_devices(results),
        *_order(results),
        *_knobs(results),
    ]
    rank = {"severe": 0, "mild": 1, "knob": 2}
    return sorted(found, key=lambda one: (rank[one.severity], one.what))


def between(
    found: Iterable[Confound], a: str, b: str, declared: Collection[str] = ()
) -> tuple[str, ...]:
    """The severe differences between two arms, by name, less the `declared` factors."""
    severe = [one for one in found if one.severity == "severe" and one.what not in declared]
    return tuple(one.what for one in severe if one.separates(a, b))


def _facts(results: Results) -> Iterable[Confound]:
    for what, severity, of, why in _FACTS:
        values = _by_arm(results, of)
        if len(set(values.values())) > 1:
            yield Confound(what, severity, values, why, by_block=_by_block(results, of))


def _by_block(results: Results, of: Callable[[Run], str]) -> dict[str, dict[int, str]]:
    """Each arm's value in each block; of several runs of one block, all of them."""
    seen: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in _started(results):
        seen[run.arm][run.block].add(of(run))
    return {
        arm: {block: " / ".join(sorted(values)) for block, values in blocks.items()}
        for arm, blocks in seen.items()
    }


def _by_arm(results: Results, of: Callable[[Run], str]) -> dict[str, str]:
    """The distinct values of each arm's runs, sorted: arms that only swapped places are alike."""
    seen: dict[str, dict[str, None]] = defaultdict(dict)
    for run in _started(results):
        seen[run.arm][of(run)] = None
    return {arm: " / ".join(sorted(values)) for arm, values in seen.items()}


def _started(results: Results) -> list[Run]:
    """Runs whose engines are on record; of the others nothing is known yet."""
    return [run for run in _telling(results) if run.meta.engines]


def _telling(results: Results) -> list[Run]:
    """Runs that measured, and of arms without one all: a run cut at its start confounds nothing."""
    measured = [run for run in results.runs if run.finished or run.cells]
    arms = {run.arm for run in measured}
    return [run for run in results.runs if run in measured or run.arm not in arms]


def _engines(of: Callable[[EngineMeta], int | None]) -> Callable[[Run], str]:
    return lambda run: ", ".join(sorted({_whole(of(engine)) for engine in run.meta.engines}))


def _whole(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(run.meta.versions.items()))


def _host(run: Run) -> str:
    gpus = [gpu.get("name", "GPU") for gpu in run.meta.host.get("gpus") or []]
    return ", ".join([str(run.meta.host.get("cpu", "unknown CPU")), *map(str, gpus)])


def _uuids(run: Run) -> str:
    gpus = run.meta.host.get("gpus") or []
    return ", ".join(sorted(str(gpu.get("uuid", "unknown")) for gpu in gpus))


def _device_count(run: Run) -> str:
    return str(len({device for engine in run.meta.engines for device in engine.devices}))


def _devices(run: Run) -> str:
    return ", ".join(str(d) for d in sorted({d for e in run.meta.engines for d in e.devices}))


def _beside(run: Run) -> str:
    return ", ".join(map(str, run.meta.host.get("beside") or ["nobody"]))


_FACTS: tuple[tuple[str, Severity, Callable[[Run], str], str], ...] = (
    ("host", "severe", _host, "another machine"),
    ("GPUs", "severe", _uuids, "other devices of the same kind"),
    ("campaign", "mild", lambda r: r.meta.campaign, "other campaigns, other days"),
    ("seed of the prompts", "mild", lambda r: str(r.meta.seed), "other prompts, not paired"),
    ("boot of the host", "mild", lambda r: r.meta.boot, "a reboot between the arms"),
    ("model", "severe", lambda r: r.meta.model, "different models are not comparable"),
    ("context", "severe", lambda r: str(r.meta.context), "it sets the KV capacity"),
    ("versions", "severe", _versions, "different software"),
    ("number of devices", "mild", _device_count, "more hardware does more: compare per device"),
    ("KV capacity, tokens", "mild", _engines(lambda e: e.kv_tokens), "less room queues earlier"),
    ("KV block size, tokens", "mild", _engines(lambda e: e.block_size), "it sets transfer sizes"),
    ("priority (nice)", "mild", lambda r: str(r.meta.host.get("nice", "unknown")), "yields cores"),
    ("beside it on the host", "mild", _beside, "memory, PCIe and cores are shared"),
    (
        "starts of a run",
        "mild",
        lambda r: "two" if r.meta.continues else "one",
        "went on after a cut",
    ),
    ("number of engines", "mild", lambda r: str(len(r.meta.engines)), "each holds its own weights"),
)


def _placement(results: Results) -> Iterable[Confound]:
    """Arms of equally many devices, but not on the same ones."""
    held = _by_arm(results, _devices)
    counts = _by_arm(results, _device_count)
    for count in sorted(set(counts.values())):
        arms = {arm: held[arm] for arm in held if counts[arm] == count}
        if len(set(arms.values())) > 1:
            why = "different hardware; swap groups between blocks"
            where = _by_block(results, _devices)
            yield Confound("devices", "severe", arms, why, frozenset(arms), where)


def _shared_devices(results: Results) -> Iterable[Confound]:
    """Two engines of one run on one device slow each other."""
    shared = {run.arm: devices for run in _started(results) if (devices := _shared(run))}
    if shared:
        yield Confound("devices shared by engines", "severe", shared, "the engines slow each other")


def _shared(run: Run) -> str:
    held = [device for engine in run.meta.engines for device in set(engine.devices)]
    return ", ".join(str(d) for d in sorted({d for d in held if held.count(d) > 1}))


def _order(results: Results) -> Iterable[Confound]:
    """An arm that always runs first or last carries whatever drifts with time."""
    if len(results.arms) < 2:
        return
    telling = _telling(results)
    places: dict[str, list[str]] = defaultdict(list)
    for block in results.blocks:
        inside = [run for run in telling if run.block == block]
        for place, run in enumerate(inside, 1):
            places[run.arm].append(str(place))
    if any(len(set(seen)) == 1 for seen in places.values()):
        values = {arm: ", ".join(seen) for arm, seen in places.items()}
        yield Confound("place in the order", "mild", values, "drift of the machine adds to the arm")


def _knobs(results: Results) -> Iterable[Confound]:
    sources = (
        ("flag", _flags, _INCIDENTAL),
        ("variable", _env, PLACE_VARIABLES),
        ("proxy option", _proxy_options, frozenset[str]()),
    )
    for kind, of, incidental in sources:
        settings = {run.arm: of(run) for run in reversed(_started(results))}
        names = {name for chosen in settings.values() for name in chosen} - incidental
        for name in sorted(names):
            values = {arm: chosen.get(name, "not given") for arm, chosen in settings.items()}
            if len(set(values.values())) > 1:
                yield Confound(f"{kind} {name}", "knob", values, "")


def _flags(run: Run) -> dict[str, str]:
    """Flags of all engines of a run, values of several engines joined."""
    return _merged(flags(engine.argv) for engine in run.meta.engines)


def _env(run: Run) -> dict[str, str]:
    return _merged(engine.env for engine in run.meta.engines)


def _proxy_options(run: Run) -> Mapping[str, str]:
    return proxy_options(run.meta)


def _merged(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    seen: dict[str, dict[str, None]] = defaultdict(dict)
    for one in several:
        for name, value in one.items():
            seen[name][value] = None
    return {name: " / ".join(sorted(values)) for name, values in seen.items()}
