"""One run: its engines, what it was made of, and what its engines said meanwhile."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from twolane.records.cells import AnyCell

SCHEMA = 1


class EngineMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One engine as it really ran."""

    name: str
    role: Literal["both", "prefill", "decode"]
    group: str
    devices: list[int]
    url: str
    argv: list[str]
    env: dict[str, str]
    log: str
    pid: int | None = None
    side_channel_port: int | None = None
    ready_s: float | None = None
    kv_tokens: int | None = None  # KV capacity in tokens, read from the engine
    block_size: int | None = None
    strayed: list[str] = []  # threads found outside the engine's cores and brought back
    exit_code: int | None = None


class RunMeta(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: what ran, on what, how, and how it ended. Written at start and once at the end.

    Written with its defaults: a schema that is left out could not be told from a later one.
    `continues` names the run, cut in a ramp, whose cells and turns were taken over into this one.
    `freed` says what its devices were found to hold after the engines were gone.
    `seal` holds, once the run has ended, digests of this record less the seal and of the run's
    other files, by file name.
    """

    schema: int = SCHEMA
    id: str
    campaign: str
    arm: str
    model: str
    layout: str
    context: int
    block: int
    order: int  # position of this run in its campaign, from 0
    seed: int
    started_at: str  # UTC, ISO 8601
    boot: str
    config: dict[str, Any]  # the resolved campaign, models and arm
    config_hash: str
    versions: dict[str, str]
    host: dict[str, Any]  # cpu model, cores, memory, kernel; GPU names, UUIDs and links
    cells: list[AnyCell]
    engines: list[EngineMeta] = []
    proxy: dict[str, Any] = {}
    status: Literal["running", "done", "failed", "interrupted"] = "running"
    error: str | None = None
    ended_at: str | None = None
    continues: str | None = None
    freed: dict[str, float] = {}
    seal: dict[str, str] = {}


class Sample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of metrics.jsonl: a filtered scrape of one source.

    Keys of `values` are Prometheus sample names with their labels less `engine` and
    `model_name`, as `name{label="value"}`; several engines of one process are summed.
    `mark` names the moment where the campaign asked for it, e.g. `begin:<cell id>`.
    """

    t_ns: int
    source: str  # engine name, or "devices"
    values: dict[str, float]
    mark: str | None = None
