"""`twolane export`: a results folder as tables (CSV, Parquet), as JSON of its cells, or as
`vllm bench serve` writes it.

Rules of this file: values are those of `analysis`, under the same names; every row carries its
reason codes, so that nobody who reads the table alone takes a spoilt point for a good one. Rows are
written as they are read: a folder may hold a million requests.
"""

from __future__ import annotations

import csv
import importlib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from twolane import __version__, seal
from twolane.analysis.foreign import DIFFERENCES
from twolane.analysis.measures import (
    VERSION,
    e2e_ns,
    token_counts,
    tpot_ns,
    ttft_from_due_ns,
    ttft_ns,
    worst_gap_ns,
)
from twolane.analysis.points import Measured, measure
from twolane.analysis.results import Results, Run, load
from twolane.analysis.units import unit_of
from twolane.clock import MS, NS
from twolane.errors import QuestionError
from twolane.records import FreshCell, GridCell, MixCell, Request, TraceCell

Format = Literal["csv", "parquet", "json", "vllm-bench"]
Row = dict[str, Any]

REQUEST_COLUMNS: Final[dict[str, str]] = {
    "run": "string", "arm": "string", "block": "int64", "cell": "string", "id": "string",
    "role": "string", "index": "int64", "shot": "int64", "user": "int64", "send_ns": "int64",
    "due_ns": "int64", "ttft_ms": "float64", "ttft_from_due_ms": "float64", "tpot_ms": "float64",
    "e2e_ms": "float64", "worst_gap_ms": "float64", "prompt_tokens": "int64",
    "cached_tokens": "int64", "output_tokens": "int64", "status": "int64",
    "finish_reason": "string", "needle": "string", "error": "string", "codes": "string",
}  # fmt: skip
"""Columns of requests.csv and requests.parquet and their Arrow types; Parquet has `gaps_ns` and
`tokens` besides, as lists."""

CELL_COLUMNS: Final[dict[str, str]] = {
    "run": "string", "arm": "string", "block": "int64", "cell": "string", "measure": "string",
    "value": "float64", "codes": "string",
}  # fmt: skip
"""One row a run, cell and measure; an infinite value is a request that never answered."""

_BATCH = 20_000
_ALONE: Final = ("grid", "fresh", "short", "long", "trace")
"""Roles that `vllm bench serve` would have sent."""


def export(results: Path, form: Format, out: Path) -> list[Path]:
    """Write `results` into the folder `out`; the files written, none of no cell.

    Raises QuestionError if there are no such results, or Parquet's library is not installed.
    """
    loaded = load(results)
    measured = measure(loaded)
    if out.exists() and not out.is_dir():
        raise QuestionError("it is a file", place=str(out), remedy="name a folder with --out")
    if form == "json" and measured:
        out.mkdir(parents=True, exist_ok=True)
        return [_json(out / "cells.json", loaded, measured)]
    table = _csv if form == "csv" else _parquet
    if form == "vllm-bench":
        out.mkdir(parents=True, exist_ok=True)
        return [_vllm(one, out) for one in measured if isinstance(one.cell, _LIKE_VLLM)]
    if form == "parquet":
        _arrow()
    if not measured:
        return []
    out.mkdir(parents=True, exist_ok=True)
    return [
        table(out / f"cells.{form}", CELL_COLUMNS, _cell_rows(measured)),
        table(out / f"requests.{form}", REQUEST_COLUMNS, _request_rows(measured)),
    ]


def _place(one: Measured) -> Row:
    return {
        "run": one.run.id,
        "arm": one.run.arm,
        "block": one.run.block + 1,  # from 1, as everywhere a person reads it
        "cell": one.cell.id,
        "codes": " ".join(dict.fromkeys(code.code for code in one.codes)),
    }


def _cell_rows(measured: Iterable[Measured]) -> Iterator[Row]:
    for one in measured:
        place = _place(one)
        for name, value in one.values.items():
            yield place | {"measure": name, "value": value}


def _request_rows(measured: Iterable[Measured]) -> Iterator[Row]:
    for one in measured:
        place = _place(one)
        for request in one.run.requests(cell=one.cell.id):
            yield place | _request(request)


def _request(request: Request) -> Row:
    return {
        "id": request.id,
        "role": request.role,
        "index": request.index,
        "shot": request.shot,
        "user": request.user,
        "send_ns": request.send_ns,
        "due_ns": request.due_ns,
        "ttft_ms": _ms(ttft_ns(request)),
        "ttft_from_due_ms": _ms(ttft_from_due_ns(request)),
        "tpot_ms": _ms(tpot_ns(request)),
        "e2e_ms": _ms(e2e_ns(request)),
        "worst_gap_ms": _ms(worst_gap_ns(request)),
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "status": request.status,
        "finish_reason": request.finish_reason,
        "needle": request.needle,
        "error": request.error,
        "gaps_ns": request.gaps_ns,
        "tokens": token_counts(request),
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / MS


# -------------------------------------------------------------------------------------- tables


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A name beside `path`, which becomes it when all is written."""
    beside = path.with_name(f"{path.name}.tmp")
    yield beside
    beside.replace(path)


def _csv(path: Path, columns: dict[str, str], rows: Iterable[Row]) -> Path:
    with _whole(path) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        raise QuestionError(
            "Parquet needs the library pyarrow, which is not installed",
            place="--format parquet",
            remedy=f"{sys.executable} -m pip install pyarrow, or use --format csv",
        ) from None


def _parquet(path: Path, columns: dict[str, str], rows: Iterable[Row]) -> Path:
    arrow = _arrow()
    parquet = importlib.import_module("pyarrow.parquet")
    fields = [arrow.field(name, getattr(arrow, kind)()) for name, kind in columns.items()]
    if columns is REQUEST_COLUMNS:
        fields += [arrow.field(name, arrow.list_(arrow.int64())) for name in ("gaps_ns", "tokens")]
    schema = arrow.schema(fields)
    with _whole(path) as beside, parquet.ParquetWriter(str(beside), schema) as writer:
        for batch in _batches(rows):
            writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
    return path


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    yield batch


# ---------------------------------------------------------------------------------------- JSON


SCHEMA: Final = 1
"""Of cells.json: raised when a key of it is renamed, goes away, or means something else."""


def _json(path: Path, results: Results, measured: Sequence[Measured]) -> Path:
    """Every cell with its measures, units, codes and what was asked, and every run's versions."""
    document: Row = {
        "schema": SCHEMA,
        "twolane": __version__,
        "measures_version": VERSION,
        "campaign": results.runs[0].meta.campaign,
        "runs": {run.id: _run(run) for run in results.runs},
        "cells": [_cell(one) for one in measured],
    }
    with _whole(path) as beside:
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    return path


def _run(run: Run) -> Row:
    meta = run.meta
    return {
        "arm": meta.arm,
        "block": meta.block + 1,
        "order": meta.order + 1,
        "layout": meta.layout,
        "model": meta.model,
        "context": meta.context,
        "seed": meta.seed,
        "status": meta.status,
        "started_at": meta.started_at,
        "ended_at": meta.ended_at,
        "versions": meta.versions,
        "config_hash": meta.config_hash,
    }


def _cell(one: Measured) -> Row:
    """One cell of one run. JSON has no infinity: what a request that never answered has made
    infinite is null, and `never` says so; a value that is not known is null alone."""
    return {
        "run": one.run.id,
        "arm": one.run.arm,
        "block": one.run.block + 1,
        "cell": one.cell.id,
        "asked": one.cell,
        "codes": one.codes,
        "measures": {
            name: {
                "value": value if value is not None and math.isfinite(value) else None,
                "unit": unit_of(name),
                **({"never": True} if value == math.inf else {}),
            }
            for name, value in one.values.items()
        },
    }


# ------------------------------------------------------------------------------ vllm bench serve


_LIKE_VLLM: Final = (GridCell, FreshCell, MixCell, TraceCell)


_LONGEST: Final = 100


def _vllm(one: Measured, out: Path) -> Path:
    """One run's cell, in the fields and by the definitions of `vllm bench serve`."""
    requests = [r for r in one.run.requests(cell=one.cell.id) if r.role in _ALONE]
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in one.cell.id)
    if len(name.encode()) > _LONGEST:  # a trace's path may be of any length
        name = f"{name[-40:]}-{seal.of_bytes(one.cell.id.encode())[:8]}"
    path = out / f"{one.run.arm}-block{one.run.block + 1}-{name}.json"
    with _whole(path) as beside:
        beside.write_bytes(msgspec.json.encode(_vllm_result(one, requests)) + b"\n")
    return path


def _vllm_result(one: Measured, requests: Sequence[Request]) -> Row:
    good = [r for r in requests if r.error is None and r.first_ns is not None]
    begin = min((r.send_ns for r in requests), default=0)
    duration = (max((r.end_ns or r.send_ns for r in requests), default=0) - begin) / NS
    tokens_in = sum(r.prompt_tokens or 0 for r in good)
    tokens_out = sum(r.output_tokens for r in good)
    meta = one.run.meta
    return {
        "date": meta.started_at,
        "endpoint_type": "openai",
        "backend": "twolane",
        "label": one.run.arm,
        "model_id": meta.model,
        "tokenizer_id": meta.model,
        "num_prompts": len(requests),
        "request_rate": _rate(one),
        "burstiness": 1.0,
        "max_concurrency": one.cell.users if isinstance(one.cell, GridCell) else None,
        "duration": duration,
        "completed": len(good),
        "failed": len(requests) - len(good),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": _per(len(good), duration),
        "request_goodput": None,
        "output_throughput": _per(tokens_out, duration),
        "total_token_throughput": _per(tokens_in + tokens_out, duration),
        **_statistics(good),
        **_columns(requests),
        "twolane": {
            "run": one.run.id,
            "block": one.run.block + 1,
            "cell": one.cell.id,
            "codes": [msgspec.to_builtins(code) for code in one.codes],
            "values": {k: v for k, v in one.values.items() if v is not None and np.isfinite(v)},
            "definitions_that_differ": list(DIFFERENCES["vllm bench serve"][:3]),
        },
    }


def _rate(one: Measured) -> float | str:
    if isinstance(one.cell, MixCell):
        return one.cell.rate
    return "inf"


def _per(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _columns(requests: Sequence[Request]) -> Row:
    """A row a request, failed ones with zeros, as vLLM has them with --save-detailed."""
    good = [r.error is None and r.first_ns is not None for r in requests]
    return {
        "input_lens": [r.prompt_tokens or r.prompt_asked for r in requests],
        "output_lens": [r.output_tokens * ok for r, ok in zip(requests, good, strict=True)],
        "ttfts": [_seconds(ttft_ns(r)) * ok for r, ok in zip(requests, good, strict=True)],
        "itls": [[gap / NS for gap in r.gaps_ns] for r in requests],
        "latencies": [_seconds(e2e_ns(r)) * ok for r, ok in zip(requests, good, strict=True)],
        "start_times": [r.send_ns / NS for r in requests],
        "queue_times": [(r.send_ns - r.due_ns) / NS for r in requests],
        "generated_texts": [r.text or "" for r in requests],
        "errors": [
            "" if ok else r.error or "no first token" for r, ok in zip(requests, good, strict=True)
        ],
    }


def _seconds(ns: float | None) -> float:
    return (ns or 0.0) / NS


def _statistics(good: Sequence[Request]) -> Row:
    """Mean, median, deviation and p99 as vLLM takes them: interpolated, without failed requests."""
    samples: dict[str, list[float]] = {
        "ttft": [_ms(ttft_ns(r)) or 0.0 for r in good],
        "tpot": [_vllm_tpot_ms(r) for r in good if r.output_tokens > 1],
        "itl": [gap / MS for r in good for gap in r.gaps_ns],
        "e2el": [_ms(e2e_ns(r)) or 0.0 for r in good],
    }
    found: Row = {}
    for name, sample in samples.items():
        values = np.asarray(sample or [0.0])
        found[f"mean_{name}_ms"] = float(values.mean())
        found[f"median_{name}_ms"] = float(np.median(values))
        found[f"std_{name}_ms"] = float(values.std())
        found[f"p99_{name}_ms"] = float(np.percentile(values, 99))
    return found


def _vllm_tpot_ms(request: Request) -> float:
    """(latency - TTFT) / (N - 1), whatever the first event held."""
    return ((e2e_ns(request) or 0) - (ttft_ns(request) or 0)) / (request.output_tokens - 1) / MS
