"""Engines to be judged: what somebody is about to start, or has started.

Rules of this file: pure. A Deployment is the JSON of `--engines FILE`; a Side is one engine with
its command line parsed and vLLM's defaults filled in, so that a rule reads numbers, not strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import msgspec

from twolane.diagnosis.model_shape import ModelShape, shape_of, whole
from twolane.diagnosis.vllm_args import Arguments, parse, plain_int
from twolane.diagnosis.vllm_facts import facts
from twolane.errors import QuestionError
from twolane.records import UNREADABLE

NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
LOOPBACK = ("", "localhost", "127.0.0.1", "::1", "0.0.0.0")
DRAFTERS_WITHOUT_KV = ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator")


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vLLM server as it will be started. `host` and `devices` may be left out."""

    name: str
    role: Literal["prefill", "decode", "both"] = "both"
    argv: list[str]
    env: dict[str, str] = {}
    host: str = ""
    devices: list[int] | None = None


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engines that serve together.

    `device_gib` is one device's memory, `device_count` devices of a node, `rdma` whether the
    hosts have it, `listening` ports that are taken, `prefill_tok_s` a measured prefill rate and
    `stall_ms` the longest stall that is tolerated, `nixl` whether it can be imported where the
    engines run, `model_trouble` what is wrong with the model's folder, `free_gib` the host's free
    memory, `addresses` those of the host that all of them run on. What is None or empty is unknown
    and convicts nobody.
    """

    platform: Literal["cuda", "rocm", "cpu"] = "cuda"
    model_config: dict[str, Any] | None = None
    engines: list[Engine]
    device_gib: float | None = None
    device_count: int | None = None
    rdma: bool | None = None
    listening: list[int] = []
    prefill_tok_s: float | None = None
    stall_ms: float | None = None
    nixl: bool | None = None
    model_trouble: str = ""
    free_gib: float | None = None
    addresses: list[str] = []


def read_deployment(text: bytes, place: str) -> Deployment:
    """A Deployment from JSON; raises QuestionError at `place` if it is not one."""
    try:
        return msgspec.json.decode(text, type=Deployment)
    except UNREADABLE as error:
        shape = '{"platform": "cuda", "model_config": {...}, "engines": [{"name", "role", "argv"}]}'
        raise QuestionError(str(error), place=place, remedy=f"write it as {shape}") from error


class Connector(msgspec.Struct, frozen=True):
    """One KV connector, also one nested in a MultiConnector (`depth` > 0)."""

    name: str
    role: str | None
    extra: dict[str, Any]
    module: str | None
    depth: int


class Side:
    """One engine as the rules see it: parsed arguments, environment, vLLM's defaults."""

    def __init__(self, engine: Engine, deployment: Deployment) -> None:
        self.engine = engine
        self.name = engine.name
        self.env = engine.env
        self.platform = deployment.platform
        self.deployment = deployment
        self.args: Arguments = parse(engine.argv)

    # ------------------------------------------------------------------------------- parallel

    def size(self, dest: str) -> int:
        value = self.args.integer(dest)
        return value if value is not None and value > 0 else 1

    @property
    def tp(self) -> int:
        return self.size("tensor_parallel_size")

    @property
    def pp(self) -> int:
        return self.size("pipeline_parallel_size")

    @property
    def dp(self) -> int:
        return self.size("data_parallel_size")

    @property
    def dcp(self) -> int:
        return self.size("decode_context_parallel_size")

    @property
    def pcp(self) -> int:
        return self.size("prefill_context_parallel_size")

    # ---------------------------------------------------------------------------------- model

    @cached_property
    def shape(self) -> ModelShape | None:
        config = self.deployment.model_config
        overrides = self.args.mapping("hf_overrides")
        if isinstance(config, dict) and overrides:
            config = merged(config, overrides)
        return shape_of(config)

    @property
    def stateful(self) -> bool:
        return self.shape is not None and self.shape.stateful

    @property
    def hybrid_attention(self) -> bool:
        return self.shape is not None and bool(self.shape.sliding)

    @property
    def mla(self) -> bool | None:
        return None if self.shape is None else self.shape.mla

    # ------------------------------------------------------------------------------ scheduler

    @property
    def chunked(self) -> bool:
        return self.args.flag("enable_chunked_prefill") is not False

    @property
    def caching(self) -> bool:
        return self.args.flag("enable_prefix_caching") is not False

    @property
    def budget(self) -> int | None:
        """--max-num-batched-tokens where it was given."""
        return positive(self.args.integer("max_num_batched_tokens"))

    @property
    def seqs(self) -> int | None:
        """--max-num-seqs where it was given."""
        return positive(self.args.integer("max_num_seqs"))

    @property
    def context(self) -> int | None:
        """Tokens a request may have: the option, or the model's own; None for auto or unknown."""
        said = self.args.integer("max_model_len")
        if said is None:
            return self.shape.positions if self.shape else None
        return positive(said)

    @property
    def block(self) -> int | None:
        return positive(self.args.integer("block_size"))

    # ------------------------------------------------------------------------------ connector

    @cached_property
    def transfer(self) -> dict[str, Any] | None:
        return self.args.mapping("kv_transfer_config")

    @cached_property
    def connectors(self) -> list[Connector]:
        return list(connectors_in(self.transfer, 0)) if self.transfer else []

    @property
    def kv_role(self) -> str | None:
        role = self.transfer.get("kv_role") if self.transfer else None
        return role if isinstance(role, str) else None

    @property
    def role(self) -> str:
        """Its part in a split: as said, or as its connector's role has it."""
        by_connector = {"kv_producer": "prefill", "kv_consumer": "decode"}
        said = self.engine.role
        return said if said != "both" else by_connector.get(self.kv_role or "", "both")

    @property
    def nixl(self) -> bool:
        return any(c.name in NIXL for c in self.connectors)

    @property
    def push(self) -> bool:
        return any(c.name == "NixlPushConnector" for c in self.connectors)

    def keeps_hma(self) -> bool:
        """Whether every connector keeps the hybrid KV cache manager; unknown ones may."""
        known = facts().connectors
        return all(known.get(c.name, True) for c in self.connectors)

    # ---------------------------------------------------------------------------- speculation

    @cached_property
    def spec(self) -> dict[str, Any] | None:
        said = self.args.mapping("speculative_config")
        method, tokens = self.args.text("spec_method"), self.args.integer("spec_tokens")
        if method is None and tokens is None:
            return said
        extra = {"method": method, "num_speculative_tokens": tokens}
        return {**(said or {}), **{k: v for k, v in extra.items() if v is not None}}

    @property
    def method(self) -> str | None:
        """The drafting method by its present name; every *_mtp is mtp."""
        value = self.spec.get("method") if self.spec else None
        if not isinstance(value, str):
            return None
        return "mtp" if value in facts().mtp_methods else value

    @property
    def drafts(self) -> int | None:
        return whole(self.spec.get("num_speculative_tokens")) if self.spec else None

    @property
    def draft_has_kv(self) -> bool:
        """Whether drafting adds layers to the KV cache (MTP, EAGLE; not n-grams)."""
        return self.spec is not None and self.method not in (None, *DRAFTERS_WITHOUT_KV)

    # ---------------------------------------------------------------------------------- ports

    @property
    def side_port(self) -> int:
        port = plain_int(self.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", ""))
        return port if port is not None else 5600

    @property
    def side_host(self) -> str | None:
        return self.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST")

    @property
    def host(self) -> str:
        """The host it runs on: as said, or the address it lets its peers reach it by."""
        said = self.side_host or ""
        return self.engine.host or ("" if said in LOOPBACK else said)

    @property
    def api_port(self) -> int:
        port = self.args.integer("port")
        return 8000 if port is None else port

    @property
    def side_ports(self) -> range:
        """One side-channel port a data-parallel rank (base_scheduler.py)."""
        return range(self.side_port, self.side_port + min(self.dp, 4096))


def positive(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def connectors_in(config: dict[str, Any], depth: int) -> Iterator[Connector]:
    name, extra = config.get("kv_connector"), config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    if isinstance(name, str):
        role, module = config.get("kv_role"), config.get("kv_connector_module_path")
        yield Connector(name, role if isinstance(role, str) else None, extra,
                        module if isinstance(module, str) else None, depth)  # fmt: skip
    children = extra.get("connectors")
    for child in children if isinstance(children, list) and depth < 8 else []:
        if isinstance(child, dict):
            yield from connectors_in(child, depth + 1)


def merged(config: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`config` with --hf-overrides laid over it, nested dicts merged."""
    out = dict(config)
    for key, value in over.items():
        below = out.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        out[key] = merged(below, value) if both and isinstance(below, dict) else value
    return out


def apart(one: Side, other: Side) -> bool:
    """Whether two engines are known to run on different hosts."""
    return bool(one.host and other.host) and one.host != other.host


def pairs(sides: list[Side]) -> Iterator[tuple[Side, Side]]:
    """Every prefill engine with every decode engine."""
    for prefill in (s for s in sides if s.role == "prefill"):
        for decode in (s for s in sides if s.role == "decode"):
            yield prefill, decode
