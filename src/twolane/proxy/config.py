"""What a proxy is told: engines, limits, timeouts. No defaults hide anywhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from twolane.errors import QuestionError
from twolane.wire import address
from twolane.wire.requests import Limits

EngineRole = Literal["prefill", "decode", "aggregated"]
# How KV travels. `auto`: as P reports, one leg after the other; `push-at-once`: P writes into D's
# blocks as soon as it has them, and both legs are sent together.
Connector = Literal["auto", "pull", "push", "push-at-once"]

# P holds a handoff's blocks 30 s from its finish (vLLM's kv_lease_duration); past that they are
# given to other requests and a late read answers with another prompt's text. 5 s for the way.
MAX_HANDOFF_AGE_S = 25.0


@dataclass(frozen=True, slots=True)
class Upstream:
    """One engine's address. `name` labels it in the ledger and in the metrics."""

    role: EngineRole
    name: str
    host: str
    port: int
    weight: float = 1.0

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes it this engine and no other."""
        return self.role, self.name, self.host, self.port


def upstream(role: EngineRole, index: int, url: str) -> Upstream:
    """The engine behind `url`, e.g. `http://127.0.0.1:8100`, or `p0=http://127.0.0.1:8100`
    where it has a name; without one it is named by role and position. `*2` at the end gives it
    twice the work of an engine without a weight.

    Raises QuestionError where the URL is none, or names anything but plain HTTP and a root path.
    """
    url, weight = _weight(role, url)
    name, given, rest = url.partition("=http")
    name, url = (name, "http" + rest) if given else (f"{role}-{index}", url)
    try:
        parts = address.split(url)
        port = parts.port or 80
    except ValueError as error:
        raise _bad_url(role, url, str(error)) from None
    if parts.scheme != "http" or not parts.hostname:
        raise _bad_url(role, url, "not an http:// address")
    if parts.path not in ("", "/") or parts.query:
        raise _bad_url(role, url, "has a path: engines are addressed by their root")
    return Upstream(role, name, parts.hostname, port, weight)


def _weight(role: EngineRole, text: str) -> tuple[str, float]:
    url, star, given = text.rpartition("*")
    if not star:
        return text, 1.0
    try:
        weight = float(given)
    except ValueError:
        weight = 0.0
    if not 0 < weight < math.inf:
        raise QuestionError(
            f"{text!r}: {given!r} is no weight", place=f"--{role}", remedy="give URL*2 or URL*0.5"
        )
    return url, weight


def _bad_url(role: EngineRole, url: str, why: str) -> QuestionError:
    return QuestionError(f"{url!r}: {why}", place=f"--{role}", remedy="give it as http://HOST:PORT")


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """Times in seconds. `model` is needed only where the engines do not list it themselves."""

    prefill: tuple[Upstream, ...] = ()
    decode: tuple[Upstream, ...] = ()
    aggregated: tuple[Upstream, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    ledger: Path | None = None
    model: str | None = None
    limits: Limits = field(default_factory=Limits)
    connect_timeout_s: float = 5.0
    # From the dispatch until a stream's first token, or the end of an answer that is not streamed,
    # whatever comes before; a million-token prefill takes minutes.
    answer_timeout_s: float = 1800.0
    # Between two reads of an answer that has begun. There is no total limit on a stream that has
    # its first token.
    idle_timeout_s: float = 300.0
    # Tokens of prompts that one prefill engine is given at a time, and requests that one decode
    # engine is; both times the engine's weight. Beyond, requests wait here, short ones first.
    backlog_tokens: int | None = None
    decode_limit: int | None = None
    # The share of a decode engine's KV that requests may fill, by what it tells and by the prompts
    # that it has been given since.
    kv_limit: float | None = None
    queue_limit: int = 1024
    queue_timeout_s: float = 60.0
    # What a second of waiting is worth; about what one prefill engine computes in a second.
    ageing_tokens_s: float = 5000.0
    # Requests of which one engine would compute fewer tokens go straight to it: a transfer costs
    # more than it spares. 0: none, and nothing is remembered of what D holds.
    split_from_tokens: int = 0
    # The share of requests that may be asked again from the beginning, where an engine's connection
    # broke before the client saw anything.
    retry_share: float = 0.0
    # The share that may be served by one engine alone where the split is not to be had.
    fallback_share: float = 0.0
    # Let P tell the prompt's token ids and give them to D, so that D does not tokenise again.
    tokenise_once: bool = False
    connector: Connector = "auto"
    api_keys: tuple[str, ...] = ()
    handoff_age_s: float = MAX_HANDOFF_AGE_S
    # How long P is heard out when its client has left, before it is told to stop, unless it has
    # longer than this to go by its own rate: what it holds when it ends in that instant, only its
    # answer says. A short prompt's prefill ends within it.
    hear_out_s: float = 0.5
    client_idle_s: float = 75.0
    release_timeout_s: float = 5.0
    # An engine that works is asked seldom, because asking takes its time from its streams; one
    # that is down is asked often, so that it is used again within seconds.
    health_every_s: float = 10.0
    health_down_every_s: float = 1.0
    scrape_every_s: float = 10.0  # the engines' metrics, for room and alarms; 0 for never
    workers: int = 1  # processes that listen on one port
    worker: int = 0  # which of them this is
    shared: Path | None = None  # where they leave their metrics for each other
    warm_timeout_s: float = 30.0
    drain_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if bool(self.prefill) != bool(self.decode):
            have, miss = ("prefill", "decode") if self.prefill else ("decode", "prefill")
            raise QuestionError(
                f"a {have} engine without a {miss} engine", remedy=f"add --{miss} URL"
            )
        if not self.upstreams:
            raise QuestionError(
                "no engine to send requests to",
                remedy="give --prefill URL and --decode URL, or --aggregated URL",
            )
        names = [upstream.name for upstream in self.upstreams]
        if len(set(names)) < len(names):
            raise QuestionError(
                f"two engines have one name: {', '.join(names)}", remedy="give each its own"
            )

    def for_worker(self) -> ProxyConfig:
        """A worker's share of the limits: workers count for themselves, so each gets a part."""

        def part(limit: int | None) -> int | None:
            return None if limit is None else max(1, limit // self.workers)

        return replace(
            self,
            backlog_tokens=part(self.backlog_tokens),
            decode_limit=part(self.decode_limit),
            queue_limit=-(-self.queue_limit // self.workers),
        )

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return self.prefill + self.decode + self.aggregated


def config_from_urls(
    prefill: tuple[str, ...] = (),
    decode: tuple[str, ...] = (),
    aggregated: tuple[str, ...] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ledger: Path | None = None,
    model: str | None = None,
    limits: Mapping[str, Any] = MappingProxyType({}),
) -> ProxyConfig:
    """What the command line says, as a configuration; `limits` are further fields of it.

    Raises QuestionError.
    """
    return ProxyConfig(
        prefill=tuple(upstream("prefill", i, url) for i, url in enumerate(prefill)),
        decode=tuple(upstream("decode", i, url) for i, url in enumerate(decode)),
        aggregated=tuple(upstream("aggregated", i, url) for i, url in enumerate(aggregated)),
        host=host,
        port=port,
        ledger=ledger,
        model=model,
        **limits,
    )
