"""What the devices and engines did over each run: clocks, power, temperature, load, KV use.

Rules of this file: metrics.jsonl as it is, one small curve a reading; a curve of many samples keeps
the lowest and highest of each of its `POINTS` stretches, so that a short dip is not lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from twolane.analysis.measures import median
from twolane.analysis.results import Run
from twolane.clock import NS
from twolane.records import Sample
from twolane.report import drafting
from twolane.report.facts import Facts
from twolane.report.markup import Markup, details, el, join, scroll, table
from twolane.report.metrics import number

POINTS = 90
WIDTH, HEIGHT = 600, 60

READINGS = {
    "sm_clock_mhz": "SM clock, MHz",
    "power_w": "power, W",
    "temperature_c": "temperature, \N{DEGREE SIGN}C",
    "throttle": "throttled",
    "memory_used_bytes": "memory, GiB",
    "vllm:num_requests_running": "requests running",
    "vllm:num_requests_waiting": "requests waiting",
    "vllm:kv_cache_usage_perc": "KV cache in use, %",
}
ENGINES = list(READINGS).index("vllm:num_requests_running")  # from here on an engine's own
SCALES = {"memory_used_bytes": 2.0**-30, "vllm:kv_cache_usage_perc": 100.0}


@dataclass(frozen=True)
class Curve:
    """One reading over a run: seconds since its first sample, and values."""

    source: str
    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.points]


def curves(samples: Iterable[Sample]) -> list[Curve]:
    """The readings of `READINGS` by device and engine, devices first."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    origin: int | None = None
    for sample in samples:
        origin = sample.t_ns if origin is None else origin
        at = (sample.t_ns - origin) / NS
        for key, value in sample.values.items():
            device, _, reading = key.partition(":") if sample.source == "devices" else ("", "", key)
            if reading in READINGS:
                source = device or sample.source
                scaled = value * SCALES.get(reading, 1.0)
                found.setdefault((source, reading), []).append((at, scaled))
    order = list(READINGS)
    ranked = sorted(
        found.items(),
        key=lambda one: (order.index(one[0][1]) >= ENGINES, one[0][0], order.index(one[0][1])),
    )
    made = [Curve(source, reading, tuple(points)) for (source, reading), points in ranked]
    return [curve for curve in made if len(curve.points) > 1]


def section(facts: Facts) -> Markup | None:
    drawn = [(run, _run(run)) for run in facts.results.runs]
    told = [
        details(_title(run), inside) for run, inside in drawn if inside
    ]  # fmt: skip
    if not told:
        return drafting.section(facts)
    summed = summary(facts)
    lede = "Sampled once a second. Below, each run second by second; shaded are its cells."
    slower = (
        "Sampled once a second; lowest to highest while cells ran, over each arm\u2019s own GPUs "
        "and all its runs. A GPU that ran slower in one arm would be seen here."
    )
    raw = "Every run, second by second"
    return join(
        el("p", slower if summed else lede, class_="lede"),
        summed,
        drafting.section(facts),
        details(raw, told) if summed else told,
    )


HELD_BACK = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""NVML's reasons for a lower clock that mean a GPU could not run faster [NVML, clocks event
reasons]; idle and set clocks are not among them."""


def summary(facts: Facts) -> Markup | None:
    """One row an arm: range of clock, power and temperature of its GPUs while cells ran."""
    rows = [(arm, *_ranges(facts.results.of_arm(arm))) for arm in facts.arms]
    if not any(cell != NOTHING for row in rows for cell in row[1:]):
        return None
    head = ("arm", "SM clock, MHz", "power, W", "temperature, \N{DEGREE SIGN}C", "memory, GiB")
    caption = "GPUs of each arm while its cells ran"
    inside = table((*head, "clock held back by"), rows, caption=caption, class_="cards gpus")
    return scroll(inside, caption)


NOTHING = "\N{EN DASH}"
_RANGED = ("sm_clock_mhz", "power_w", "temperature_c", "memory_used_bytes")


def _ranges(runs: Iterable[Run]) -> list[str]:
    found: dict[str, list[float]] = {name: [] for name in (*_RANGED, "throttle")}
    for run in runs:
        own = {f"gpu{device}" for engine in run.meta.engines for device in engine.devices}
        windows = [(cell.started_ns, cell.ended_ns) for cell in run.cells]
        for sample in run.samples():
            if sample.source == "devices" and any(a <= sample.t_ns <= b for a, b in windows):
                for key, value in sample.values.items():
                    device, _, reading = key.partition(":")
                    if device in own and reading in found:
                        found[reading].append(value * SCALES.get(reading, 1.0))
    return [*(_range(found[name]) for name in _RANGED), _held_back(found["throttle"])]


def _range(values: Sequence[float]) -> str:
    if not values:
        return NOTHING
    low, high = (number(value, decimals=0) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _held_back(reasons: Sequence[float]) -> str:
    """Why the clock was held down, and in which share of the seconds."""
    if not reasons:
        return NOTHING
    told = []
    for bit, words in HELD_BACK.items():
        share = sum(bool(int(value) & bit) for value in reasons) / len(reasons)
        if share:
            told.append(f"{words}, {share:.0%} of seconds")
    return "; ".join(told) or "nothing"


def _title(run: Run) -> Markup:
    return join(el("span", run.arm, class_="arm"), f", block {run.block + 1}")


def _run(run: Run) -> Markup | None:
    samples = list(run.samples())
    found = curves(samples)
    if not found:
        return None
    origin = samples[0].t_ns
    seconds = (samples[-1].t_ns - origin) / NS or 1.0
    cells = [((c.started_ns - origin) / NS, (c.ended_ns - origin) / NS) for c in run.cells]
    rows = [_row(curve, seconds, cells) for curve in found]
    head = el(
        "tr",
        [el("th", name, scope="col") for name in ("of", "reading", "over the run")],
        [el("th", name, scope="col") for name in ("lowest", "median", "highest")],
    )
    caption = el("caption", f"Telemetry of {run.arm}, block {run.block + 1}", class_="unseen")
    inside = el("table", caption, el("thead", head), el("tbody", rows), class_="telemetry")
    return scroll(inside, f"Telemetry of {run.arm}, block {run.block + 1}")


def _row(curve: Curve, seconds: float, cells: Sequence[tuple[float, float]]) -> Markup:
    low, high = min(curve.values), max(curve.values)
    words = READINGS[curve.name]
    said = f"{words} of {curve.source}: {number(low)} to {number(high)}"
    return el(
        "tr",
        el("th", curve.source, scope="row"),
        el("td", words),
        el("td", _spark(curve, seconds, cells, said)),
        [el("td", number(value)) for value in (low, median(curve.values), high)],
    )


def _spark(curve: Curve, seconds: float, cells: Sequence[tuple[float, float]], said: str) -> Markup:
    low, high = min(curve.values), max(curve.values)
    room = (high - low) or 1.0

    def at(point: tuple[float, float]) -> str:
        up = (point[1] - low) / room if high > low else 0.5
        return f"{point[0] / seconds * WIDTH:.0f} {HEIGHT - 4 - up * (HEIGHT - 8):.0f}"

    shades = [
        el(
            "rect",
            x=f"{start / seconds * WIDTH:.0f}",
            y="0",
            width=f"{max(1.0, (end - start) / seconds * WIDTH):.0f}",
            height=str(HEIGHT),
        )
        for start, end in cells
    ]
    return el(
        "svg",
        el("title", said),
        shades,
        el("path", d="M" + "L".join(map(at, thinned(curve.points)))),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=said,
        class_="spark",
    )


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most two points a stretch: its lowest and its highest, in the order in which they came."""
    if len(points) <= 2 * POINTS:
        return list(points)
    size = -(-len(points) // POINTS)
    stretches = (points[i : i + size] for i in range(0, len(points), size))
    pairs = (sorted({min(s, key=lambda p: p[1]), max(s, key=lambda p: p[1])}) for s in stretches)
    return list(chain.from_iterable(pairs))
