"""`/metrics`: what the proxy has counted, in Prometheus' text format.

Rules of this file: nothing is counted twice. Handoffs and loads are read from their owners when
somebody asks; only what has no other owner (answers, time per part) is kept here. An own
registry, so that several proxies in one process, as in tests, do not mix.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from twolane.analysis.attribution import Part, seen_by_proxy
from twolane.clock import NS
from twolane.proxy.exchange import Services
from twolane.proxy.prefixes import PIECE
from twolane.proxy.scrape import ALARMS
from twolane.proxy.ways import Ways
from twolane.records import Ledger

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class _Live(Collector):
    """Reads the handoff book and the fleet at the moment of the scrape."""

    def __init__(self, services: Services, ways: Ways) -> None:
        self._ways = ways
        self._book = services.book
        self._fleet = services.fleet
        self._admission = services.admission
        self._retries = services.retries
        self._fallbacks = services.fallbacks

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        handoffs = CounterMetricFamily(
            "twolane_handoffs",
            "Handoffs by state; issued = the three ends + held.",
            labels=["state"],
        )
        handoffs.add_metric(["issued"], self._book.issued)
        for state in ("admitted", "released", "expired", "stranded"):
            handoffs.add_metric([state], self._book.ends[state])
        handoffs.add_metric(["malformed"], self._book.malformed)
        yield handoffs
        yield GaugeMetricFamily("twolane_handoffs_held", "Handoffs now held.", self._book.held)
        admission = self._admission
        yield GaugeMetricFamily("twolane_waiting", "Requests in the queue.", admission.waiting)
        yield CounterMetricFamily("twolane_refused", "Turned away by it.", admission.refused)
        yield CounterMetricFamily("twolane_retries", "Asked again.", self._retries.used)
        yield CounterMetricFamily("twolane_fallbacks", "Not split.", self._fallbacks.used)
        yield from self._decisions()
        yield from self._engines()
        yield self._alarms()
        yield self._rooms()

    def _decisions(self) -> Iterator[Metric]:
        """Every request's way once, and again where another was taken after it."""
        counts, labels = self._ways.counts, ["outcome"]
        alone = CounterMetricFamily("twolane_not_split", "Sent to one engine.", labels=["why"])
        for why in counts.keys() - {"split", "fanned"}:
            alone.add_metric([why], counts[why])
        told = CounterMetricFamily("twolane_beliefs", "That a D holds a prefix.", labels=labels)
        for outcome in ("right", "wrong", "unreported", "doubted"):
            told.add_metric([outcome], self._ways.beliefs[outcome])
        held = GaugeMetricFamily(
            "twolane_engine_held_bytes", "Of prompts, believed to be cached.", labels=["engine"]
        )
        for engine in self._fleet.of("decode"):
            held.add_metric([engine.name], len(engine.prefixes) * PIECE)
        yield CounterMetricFamily("twolane_split", "Sent to P and D.", counts["split"])
        yield CounterMetricFamily(
            "twolane_fanned_out", "Of those, several answers by one handoff.", counts["fanned"]
        )
        yield from (alone, told, held)

    def _alarms(self) -> Metric:
        """From the engines' own metrics: what grew that should not."""
        family = CounterMetricFamily(
            "twolane_alarms", "Failures no request shows.", labels=["engine", "kind"]
        )
        for engine in self._fleet.engines:
            for kind in ALARMS:
                family.add_metric([engine.name, kind], engine.alarms[kind])
        return family

    def _rooms(self) -> Metric:
        family = GaugeMetricFamily(
            "twolane_engine_kv_taken", "Share of KV, with what was given since.", labels=["engine"]
        )
        for engine in self._fleet.engines:
            if engine.kv_taken is not None:
                family.add_metric([engine.name], engine.kv_taken)
        return family

    def _engines(self) -> Iterator[Metric]:
        labels = ["engine", "role"]
        up = GaugeMetricFamily("twolane_engine_up", "1 where requests go.", labels=labels)
        flight = GaugeMetricFamily("twolane_engine_in_flight", "Requests now.", labels=labels)
        waits = GaugeMetricFamily(
            "twolane_engine_prompt_bytes", "Prompts whose first token is to come.", labels=labels
        )
        served = CounterMetricFamily("twolane_engine_requests", "Requests so far.", labels=labels)
        opened = CounterMetricFamily("twolane_engine_connections", "Connections.", labels=labels)
        for engine in self._fleet.engines:
            key = [engine.name, engine.role]
            up.add_metric(key, engine.usable)
            flight.add_metric(key, engine.in_flight)
            waits.add_metric(key, engine.prompt_bytes)
            served.add_metric(key, engine.served)
            opened.add_metric(key, engine.pool.opened)
        return iter((up, flight, waits, served, opened))


class _FirstTokens(Collector):
    """Histograms of the first token's time, one a part. prometheus_client's own go through all
    buckets at each observation, which costs a request as much as its parsing."""

    def __init__(self) -> None:
        self._counts: dict[Part, list[int]] = {}  # by bucket, not added up
        self._sums: dict[Part, float] = {}

    def observe(self, part: Part, seconds: float) -> None:
        if part not in self._counts:
            self._counts[part] = [0] * (len(_BUCKETS) + 1)
            self._sums[part] = 0.0
        self._counts[part][bisect_left(_BUCKETS, seconds)] += 1
        self._sums[part] += seconds

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "twolane_first_token_seconds", "The first token's time by part.", labels=["part"]
        )
        bounds = [*(str(bound) for bound in _BUCKETS), "+Inf"]
        for part, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([part.value], buckets, self._sums[part])
        yield family


class Metrics:
    """Counters of one proxy."""

    def __init__(self, services: Services, ways: Ways) -> None:
        self._answers: dict[tuple[str, int], Counter] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Live(services, ways))
        self.requests = Counter(
            "twolane_requests", "Answers.", ["path", "status"], registry=self._registry
        )
        self.gone = Counter(
            "twolane_clients_gone", "Clients that left before the end.", registry=self._registry
        )
        self._first_tokens = _FirstTokens()
        self._registry.register(self._first_tokens)

    def answered(self, path: str, status: int) -> None:
        """One more answer. Finding a label's child anew each time costs as much as a request's
        parsing."""
        counter = self._answers.get((path, status))
        if counter is None:
            counter = self._answers[path, status] = self.requests.labels(path, status)
        counter.inc()

    def first_token(self, ledger: Ledger) -> None:
        """The parts that the proxy knows; what lies between it and the client is not here."""
        if ledger.d_first_ns is not None:
            for part, ns in seen_by_proxy(ledger).items():
                self._first_tokens.observe(part, ns / NS)

    def text(self) -> bytes:
        return generate_latest(self._registry)
