"""Results of other clients, read for comparison: `vllm bench serve` and AIPerf.

Rules of this file: where a file tells every request, its values are computed anew by our own
definitions; where it holds a summary alone, that is taken as it stands. Either way what its
definitions differ in is told with it, and nothing of it enters a verdict: other clients are no
blocks of this campaign, and none of them knows a reason code. Formats as vLLM 0.32 writes them
(`--save-result`, with `--save-detailed` every request) and AIPerf (profile_export.jsonl, every
request; profile_export_aiperf.json, a summary).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from twolane.analysis.measures import Window
from twolane.analysis.stats import Values, summarise
from twolane.clock import MS, NS
from twolane.errors import QuestionError
from twolane.records import GridCell, Request

Tool = Literal["vllm bench serve", "AIPerf"]
Json = Mapping[str, Any]

_CHECKS = "no reason codes: neither in-flight, cache, lengths nor the client itself were checked"
_SUMMARY = (
    "percentiles interpolate and leave failed requests out; ours are nearest rank, and a failed "
    "request counts as infinite",
    "throughput is over the whole duration, ramp-up and drain included; ours is over the window",
)
DIFFERENCES: Final[Mapping[Tool, tuple[str, ...]]] = {
    "vllm bench serve": (
        "TTFT begins before the request is serialised and a connection is opened; ours with its "
        "first byte",
        "an event is stamped after it was parsed; ours in the socket's read, before that",
        "an event is any chunk with a choice, also one without text; ours must carry tokens",
        "tokens of an event are not told: spread evenly, the first event has one",
        _CHECKS,
    ),
    "AIPerf": (
        "tokens are counted by AIPerf's own tokenizer unless it was told otherwise; ours are the "
        "server's",
        "a worst pause is known only where inter_chunk_latency was exported",
        "tokens of an event are not told: spread evenly, the first event has one",
        _CHECKS,
    ),
}


@dataclass(frozen=True)
class Foreign:
    """One run of another client. `values` have our names; `recomputed` says by whose definitions:
    ours over its requests, or its own summary."""

    source: str
    tool: Tool
    users: int | None
    requests: int
    failed: int
    recomputed: bool
    values: Values
    differences: tuple[str, ...]


# What looking into a file of another shape than expected raises.
_UNREADABLE: Final = (
    *(OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    *(RecursionError, msgspec.MsgspecError),
)


def is_foreign(path: Path) -> bool:
    """Whether `path` is a file, as other clients write them, and not a results folder."""
    return path.is_file()


def load(path: Path) -> list[Foreign]:
    """Every run in a file of another client. Raises QuestionError if none of them wrote it."""
    try:
        return [_read(path, one) for one in _objects(path.read_bytes())]
    except _UNREADABLE as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise QuestionError(
            f"not a result that can be read: {why}",
            place=str(path),
            remedy="give a results folder, the file of `vllm bench serve --save-result "
            "--save-detailed`, or AIPerf's profile_export.jsonl or profile_export_aiperf.json",
        ) from None


def _objects(data: bytes) -> list[list[Json]]:
    """Files of one object, of one a line with requests (AIPerf), or of one a line with runs."""
    try:
        whole = msgspec.json.decode(data)
    except msgspec.DecodeError:
        lines = [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
    else:
        lines = [whole]
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise ValueError("it holds no JSON objects")
    return [lines] if "metadata" in lines[0] else [[line] for line in lines]


def _read(path: Path, lines: Sequence[Json]) -> Foreign:
    first = lines[0]
    if isinstance(first.get("metadata"), dict):
        return _aiperf_records(path, lines)
    if "aiperf_version" in first or isinstance(first.get("request_latency"), dict):
        return _aiperf_summary(path, first)
    if "request_throughput" in first and "duration" in first:
        return _vllm(path, first)
    raise ValueError("neither vllm bench serve nor AIPerf writes such an object")


# ------------------------------------------------------------------------------ vllm bench serve


def _vllm(path: Path, told: Json) -> Foreign:
    users = told.get("max_concurrency")
    users = users if isinstance(users, int) else None
    completed, failed = int(told.get("completed") or 0), int(told.get("failed") or 0)
    known = all(isinstance(told.get(name), list) for name in ("ttfts", "itls", "start_times"))
    label = f"{path.name} {told.get('label') or told.get('date') or ''}".strip()
    if known:
        requests = list(_vllm_requests(told))
        return _recomputed(label, "vllm bench serve", users, requests)
    values: Values = {
        "throughput_tok_s": _number(told, "output_throughput"),
        "failed": float(failed),
        "requests": float(completed + failed),
    }
    for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el")):
        values[f"{ours}_p50_ms"] = _number(told, f"median_{theirs}_ms")
        for p in (90, 95, 99):
            values[f"{ours}_p{p}_ms"] = _number(told, f"p{p}_{theirs}_ms")
    return _summarised(label, "vllm bench serve", (completed + failed, failed), values, users)


def _vllm_requests(told: Json) -> Iterable[Request]:
    columns = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")
    count = len(told["start_times"])
    for i, (start, ttft, itl, prompt, output, error) in enumerate(
        zip(*(_column(told, name, count) for name in columns), strict=True)
    ):
        # A request that failed has no length; some of them have no error text either.
        bad = str(error or "") or ("failed" if not output else None)
        yield _request(
            i,
            send_ns=round(start * NS),
            ttft_ns=round(ttft * NS) if ttft else None,
            gaps=[round(gap * NS) for gap in itl or []],
            prompt=int(prompt or 0),
            output=int(output or 0),
            error=bad,
        )


def _column(told: Json, name: str, count: int) -> list[Any]:
    found = told.get(name)
    return found if isinstance(found, list) and len(found) == count else [None] * count


# --------------------------------------------------------------------------------------- AIPerf


def _aiperf_records(path: Path, lines: Sequence[Json]) -> Foreign:
    measured = [one for one in lines if one["metadata"].get("benchmark_phase") != "warmup"]
    requests = [_aiperf_request(i, one) for i, one in enumerate(measured)]
    found = _recomputed(path.name, "AIPerf", None, requests)
    if any("inter_chunk_latency" in (one.get("metrics") or {}) for one in measured):
        return found
    known = {name: v for name, v in found.values.items() if "worst_gap" not in name}
    return replace(found, values=known)


def _aiperf_request(index: int, told: Json) -> Request:
    about, metrics, error = told["metadata"], told.get("metrics") or {}, told.get("error")
    ttft, whole = _ns(metrics, "time_to_first_token"), _ns(metrics, "request_latency")
    chunks = metrics.get("inter_chunk_latency")
    output = _count(metrics, "output_sequence_length")
    gaps: list[int] = []
    if chunks is not None:
        gaps = [round(gap * _UNITS[chunks.get("unit", "ms")]) for gap in chunks["value"]]
    elif ttft is not None and whole is not None and whole > ttft and output > 1:
        gaps = _evenly(whole - ttft, output - 1)  # for throughput; its pauses are not offered
    said = (error.get("message") or error.get("type")) if isinstance(error, dict) else None
    if about.get("was_cancelled"):
        said = said or "cancelled"
    return _request(
        index,
        send_ns=int(about["request_start_ns"]),
        ttft_ns=ttft,
        gaps=gaps,
        prompt=_count(metrics, "input_sequence_length"),
        output=output,
        error=str(said) if said else (None if ttft is not None else "no first token"),
    )


_UNITS: Final = {"ns": 1, "us": 1_000, "ms": MS, "s": NS, "sec": NS, "seconds": NS}


def _ns(metrics: Json, name: str) -> int | None:
    one = metrics.get(name)
    if not isinstance(one, dict) or not isinstance(one.get("value"), (int, float)):
        return None
    return round(float(one["value"]) * _UNITS[one.get("unit", "ms")])


def _count(metrics: Json, name: str) -> int:
    one = metrics.get(name)
    return int(one["value"]) if isinstance(one, dict) and one.get("value") else 0


def _aiperf_summary(path: Path, told: Json) -> Foreign:
    done, failed = _stat(told, "request_count", "avg"), _stat(told, "error_request_count", "avg")
    values: Values = {"throughput_tok_s": _stat(told, "output_token_throughput", "avg")}
    for ours, theirs in (
        ("ttft", "time_to_first_token"),
        ("tpot", "inter_token_latency"),
        ("e2e", "request_latency"),
    ):
        for p in (50, 90, 95, 99):
            values[f"{ours}_p{p}_ms"] = _milliseconds(told, theirs, f"p{p}")
    requests = int(done or 0) + int(failed or 0)
    return _summarised(path.name, "AIPerf", (requests, int(failed or 0)), values)


def _stat(told: Json, name: str, field: str) -> float | None:
    one = told.get(name)
    return _number(one, field) if isinstance(one, dict) else None


def _milliseconds(told: Json, name: str, field: str) -> float | None:
    value = _stat(told, name, field)
    return None if value is None else value * _UNITS[told[name].get("unit", "ms")] / MS


def _number(told: Json, name: str) -> float | None:
    value = told.get(name)
    return float(value) if isinstance(value, (int, float)) else None


# -------------------------------------------------------------------------------- what both share


def _request(
    index: int,
    *,
    send_ns: int,
    ttft_ns: int | None,
    gaps: list[int],
    prompt: int,
    output: int,
    error: str | None,
) -> Request:
    first = None if ttft_ns is None else send_ns + ttft_ns
    last = None if first is None else first + sum(gaps)
    rest = _evenly(max(output - 1, 0), len(gaps)) if gaps else []
    return Request(
        id=str(index), cell="foreign", role="grid", index=index, send_ns=send_ns, due_ns=send_ns,
        prompt_asked=prompt, prompt_tokens=prompt or None, output_tokens=output,
        first_ns=first, last_ns=last, end_ns=last or send_ns, gaps_ns=gaps if first else [],
        tokens=[1, *rest] if first else [], error=error,
    )  # fmt: skip


def _evenly(total: int, parts: int) -> list[int]:
    """Whole numbers that sum to `total`, as equal as may be."""
    marks = [total * i // parts for i in range(parts + 1)]
    return [after - before for before, after in pairwise(marks)]


def _recomputed(label: str, tool: Tool, users: int | None, requests: Sequence[Request]) -> Foreign:
    failed = sum(request.error is not None for request in requests)
    cell = GridCell(id=label, users=users or 0, prompt=0, output=0, requests=len(requests))
    values = summarise(cell, requests, _window(requests, users))
    return Foreign(label, tool, users, len(requests), failed, True, values, DIFFERENCES[tool])


def _summarised(
    label: str, tool: Tool, counts: tuple[int, int], values: Values, users: int | None = None
) -> Foreign:
    """`counts` are requests and, of them, those that failed."""
    differences = (*_SUMMARY, *(d for d in DIFFERENCES[tool] if "spread evenly" not in d))
    return Foreign(label, tool, users, *counts, False, values, differences)


def _window(requests: Sequence[Request], users: int | None) -> Window | None:
    """From when in-flight first reaches its target (its greatest number, where none was asked) to
    when the last request is issued."""
    moments = sorted(_changes(requests))
    if not moments:
        return None
    running, reached = 0, []
    for at, change in moments:
        running += change
        reached.append((running, at))
    target = min(users or len(requests), max(count for count, _ in reached))
    begin = next(at for count, at in reached if count >= target)
    end = max(request.send_ns for request in requests)
    return (begin, end) if end > begin else None


def _changes(requests: Iterable[Request]) -> Iterable[tuple[int, int]]:
    for request in requests:
        yield request.send_ns, 1
        yield request.end_ns or request.send_ns, -1
