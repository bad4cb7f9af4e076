"""What each engine did when: legs of requests, and what it counted between two samples.

Rules of this file: times are monotonic nanoseconds of the run's host. A *leg* is a stretch in which
an engine held a request's prompt, by the proxy's stamps; a *span* lies between two samples of one
engine and holds the differences of its counters. Neither is interpolated: a span of a second that
overlaps a stall of 50 ms says what happened in that second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from twolane.analysis import reading
from twolane.analysis.iterations import FLAG, Iteration, Placed, by_stream, read
from twolane.analysis.measures import Gap, Window
from twolane.analysis.results import Run
from twolane.records import EngineMeta, Ledger, Request, Role, Sample

Doing = Literal["prefill", "prefill for another engine", "KV transfer and first step"]

# One direction of one NVLink, bytes a second, by the name NVML gives the GPU [NVIDIA's data sheets:
# half of the total bandwidth, over the number of links].
_NVLINK: Final = {"A100": 25e9, "H100": 25e9, "H200": 25e9, "B100": 50e9, "B200": 50e9}


# ---------------------------------------------------------------------------------------- legs


@dataclass(frozen=True)
class Leg:
    """An engine held a request's prompt from `start_ns` until it answered at `end_ns`."""

    engine: str
    request: str
    role: Role | None
    doing: Doing
    start_ns: int
    end_ns: int
    prompt_tokens: int


class _Line(msgspec.Struct, frozen=True):
    """Of a line of the proxy's ledger file, what is needed here."""

    id: str
    ledger: Ledger


def ledgers(run: Run, requests: Iterable[Request] = ()) -> dict[str, Ledger]:
    """By request: the proxy's own file, and where that is missing what the client was told.

    A stream that the client broke off has a ledger in the file alone.
    """
    found = {r.id: r.ledger for r in requests if r.ledger is not None}
    path = run.folder / "ledger.jsonl"
    if path.exists():
        found |= {line.id: line.ledger for line in reading.records(path, _Line, run.faults)}
    return found


def legs(requests: Iterable[Request], known: Mapping[str, Ledger]) -> list[Leg]:
    """Every leg of `requests`, in the order in which they began."""
    found = [leg for r in requests if (ledger := known.get(r.id)) for leg in _legs(r, ledger)]
    return sorted(found, key=lambda leg: (leg.start_ns, leg.engine))


def _legs(request: Request, ledger: Ledger) -> Iterator[Leg]:
    split = ledger.path == "split"
    tokens = request.prompt_tokens or request.prompt_asked
    stages: tuple[tuple[Doing, str | None, int | None, int | None], ...] = (
        (
            "prefill for another engine",
            ledger.p_engine if split else None,
            ledger.p_dispatch_ns,
            ledger.p_response_ns,
        ),
        (
            "KV transfer and first step" if split else "prefill",
            ledger.d_engine,
            ledger.d_dispatch_ns,
            ledger.d_first_ns,
        ),
    )
    for doing, engine, start, end in stages:
        if engine is not None and start is not None and end is not None:
            yield Leg(engine, request.id, request.role, doing, start, end, tokens)


def engine_of(request: Request, known: Mapping[str, Ledger], engines: Sequence[EngineMeta]) -> str:
    """The engine that made a request's tokens; empty where nothing says which."""
    ledger = known.get(request.id)
    if ledger is not None and ledger.d_engine:
        return ledger.d_engine
    answering = [engine.name for engine in engines if engine.role != "prefill"]
    return answering[0] if len(answering) == 1 else ""


# --------------------------------------------------------------------------------------- spans


@dataclass(frozen=True)
class Transfers:
    """KV transfers that ended in a span, as the engine that received them counted."""

    count: int
    moved_bytes: float
    descriptors: float
    post_s: float
    xfer_s: float

    @property
    def bytes_s(self) -> float | None:
        return self.moved_bytes / self.xfer_s if self.xfer_s > 0 else None

    @property
    def post_share(self) -> float | None:
        """Of the transfers' time, what went by in posting them."""
        return self.post_s / self.xfer_s if self.xfer_s > 0 else None


@dataclass(frozen=True)
class Span:
    """What one engine counted from `start_ns` to `end_ns`; None where it does not count it."""

    engine: str
    start_ns: int
    end_ns: int
    iterations: int | None
    tokens: int | None  # scheduled in these iterations, prompts and answers
    prompt_tokens: int | None
    running: int | None  # at its end
    waiting: int | None
    transfers: Transfers | None = None


def spans(samples: Iterable[Sample], engines: Iterable[str]) -> list[Span]:
    """The spans between consecutive samples of each of `engines`, in the order of their ends."""
    wanted, before, found = set(engines), dict[str, Sample](), list[Span]()
    for sample in samples:
        if sample.source in wanted:
            if (last := before.get(sample.source)) and last.t_ns < sample.t_ns:
                found.append(_span(last, sample))
            before[sample.source] = sample
    return found


def _span(before: Sample, after: Sample) -> Span:
    def change(name: str) -> float | None:
        here = after.values.get(f"vllm:{name}")
        return None if here is None else here - before.values.get(f"vllm:{name}", 0.0)

    return Span(
        engine=after.source,
        start_ns=before.t_ns,
        end_ns=after.t_ns,
        iterations=_whole(change("iteration_tokens_total_count")),
        tokens=_whole(change("iteration_tokens_total_sum")),
        prompt_tokens=_whole(change("prompt_tokens_total")),
        running=_whole(after.values.get("vllm:num_requests_running")),
        waiting=_whole(after.values.get("vllm:num_requests_waiting")),
        transfers=_transfers(before.values, after.values),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _transfers(before: Mapping[str, float], after: Mapping[str, float]) -> Transfers | None:
    def change(what: str, of: str = "sum") -> float:
        name = f"vllm:nixl_{what}_{of}"
        return after.get(name, 0.0) - before.get(name, 0.0)

    count = round(change("num_descriptors", "count"))
    if count <= 0:
        return None
    return Transfers(
        count,
        change("bytes_transferred"),
        change("num_descriptors"),
        change("post_time_seconds"),
        change("xfer_time_seconds"),
    )


def total(spans: Iterable[Span]) -> Transfers | None:
    """All transfers of several spans together."""
    some = [span.transfers for span in spans if span.transfers]
    if not some:
        return None
    return Transfers(
        sum(t.count for t in some),
        sum(t.moved_bytes for t in some),
        sum(t.descriptors for t in some),
        sum(t.post_s for t in some),
        sum(t.xfer_s for t in some),
    )


@dataclass(frozen=True)
class Work:
    """All that is known of what a run's engines did, for requests that were read."""

    engines: Sequence[EngineMeta]
    ledgers: Mapping[str, Ledger]
    legs: Sequence[Leg]
    spans: Sequence[Span]
    steps: Mapping[str, Sequence[Iteration]]  # by engine, where its log tells them

    def placed(self, stream: Request, engine: str) -> list[Placed]:
        """The steps of `engine` on the run's clock, by a stream that it made; empty if unknown."""
        return by_stream(self.steps.get(engine, ()), stream)

    def engine_of(self, request: Request) -> str:
        return engine_of(request, self.ledgers, self.engines)

    def beside(self, engine: str, window: Window, *, without: str = "") -> tuple[Leg, ...]:
        """Legs on `engine` that overlap `window`, but for those of the request `without`."""
        return tuple(
            leg
            for leg in self.legs
            if leg.engine == engine and leg.request != without and _overlap(leg, window)
        )

    def during(self, engine: str, window: Window) -> tuple[Span, ...]:
        return tuple(s for s in self.spans if s.engine == engine and _overlap(s, window))


def _overlap(part: Leg | Span, window: Window) -> bool:
    return Gap(part.start_ns, part.end_ns).overlaps(window)


def work(run: Run, requests: Sequence[Request]) -> Work:
    """What the engines of `run` did; legs are those of `requests`."""
    known = ledgers(run, requests)
    engines = run.meta.engines
    counted = spans(run.samples(), [engine.name for engine in engines])
    steps = {e.name: read(run.folder / e.log) for e in engines if FLAG in e.argv}
    return Work(engines, known, legs(requests, known), counted, steps)


# ---------------------------------------------------------------------------------------- link


@dataclass(frozen=True)
class Link:
    """How KV goes from engine to engine; `bytes_s` is None where nobody told what it can do."""

    kind: str
    bytes_s: float | None
    direction: Literal["pull", "push", "unknown"]


def link(run: Run) -> Link | None:
    """The link of a split run; None where nothing is moved."""
    moving = [engine for engine in run.meta.engines if engine.role != "both"]
    if not moving:
        return None
    connectors = " ".join(word for engine in moving for word in engine.argv)
    direction: Literal["pull", "push", "unknown"] = "unknown"
    if "NixlPushConnector" in connectors:
        direction = "push"
    elif "NixlConnector" in connectors or "NixlPullConnector" in connectors:
        direction = "pull"
    gpus = {gpu.get("index"): gpu for gpu in run.meta.host.get("gpus") or []}
    held = [gpus[d] for engine in moving for d in engine.devices if d in gpus]
    if not held:
        return Link("shared memory of one host", None, direction)
    links = min(int(gpu.get("nvlinks") or 0) for gpu in held)
    each = next((s for name, s in _NVLINK.items() if name in str(held[0].get("name"))), None)
    if not links:
        return Link("PCIe or the network", None, direction)
    speed = None if each is None else links * each
    return Link(f"{links} NVLinks", speed, direction)
