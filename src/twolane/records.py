"""What is written down: cells, requests, runs, samples and events, one JSON line each.

Rules of this file: plain frozen structs and their JSONL reader and writer, no arithmetic beyond
what a field needs to exist. Times are CLOCK_MONOTONIC nanoseconds (`*_ns`), comparable only
within one boot of one host. Files are appended and flushed line by line, a torn last line is
tolerated, and nothing is rewritten: summaries are recomputed from these.

Schema history
    1  first
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

SCHEMA = 1

# --------------------------------------------------------------------------------------- cells


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """One workload at one setting. `id` is its canonical text, e.g. `c64 in1024 out1024 n256`."""

    id: str


class GridCell(Cell, frozen=True, kw_only=True, tag="grid"):
    """Closed loop: `users` requests in flight, each `prompt` tokens in and `output` out.

    Bounded by `requests` issued in the window, or by `seconds` of window; exactly one is set.
    """

    users: int
    prompt: int
    output: int
    requests: int | None = None
    seconds: float | None = None


class InterferenceCell(Cell, frozen=True, kw_only=True, tag="interference"):
    """`victims` streams already decode, then one aggressor of `prompt` tokens arrives.

    Three phases: quiet, hit (aggressor's send to its first token), recovery. One null shot
    (the aggressor replaced by a sleep of `null_s`) comes first, then `shots` real ones.
    """

    victims: int
    prompt: int
    victim_prompt: int = 64
    aggressor_output: int = 16
    quiet_s: float = 4.0
    recovery_s: float = 4.0
    null_s: float = 4.0
    shots: int = 1


class NeedleCell(Cell, frozen=True, kw_only=True, tag="needle"):
    """The gate: prompts of exactly `prompt` tokens, one for each planted fact."""

    prompt: int
    depths: tuple[float, ...] = (0.05, 0.5, 0.95)


class FreshCell(Cell, frozen=True, kw_only=True, tag="fresh"):
    """`requests` new prompts of `prompt` tokens, one after the other, `output` tokens each."""

    prompt: int
    output: int = 64
    requests: int = 1


class RampCell(Cell, frozen=True, kw_only=True, tag="ramp"):
    """Conversations that grow in `turns` equal steps to a prompt of `prompt` tokens.

    Every turn sends the whole history and asks for a planted fact. User n + 1 begins when user n
    has had the answer to a turn of `after` tokens or more.
    """

    prompt: int
    users: int = 1
    turns: int = 8
    after: int = 0
    output: int = 64


class MixCell(Cell, frozen=True, kw_only=True, tag="mix"):
    """Open loop: Poisson arrivals at `rate` requests a second over `seconds` of window.

    A `share` of them has `prompt` tokens, the others `short`; all of them get `output` tokens.
    """

    prompt: int
    share: float
    rate: float
    short: int = 512
    output: int = 64
    seconds: float = 60.0


class TraceCell(Cell, frozen=True, kw_only=True, tag="trace"):
    """The first `requests` lines of a file, sent when it says, `speed` times as fast.

    With a `rate` they are sent as Poisson arrivals instead, so many a second.
    """

    path: str
    prompt: int
    requests: int
    speed: float = 1.0
    rate: float | None = None


AnyCell = GridCell | InterferenceCell | NeedleCell | FreshCell | RampCell | MixCell | TraceCell
"""`prompt` is in each of them the longest prompt, in tokens."""

# ------------------------------------------------------------------------------------ requests

Role = Literal[
    "grid",
    "warmup",
    "victim",
    "aggressor",
    "null",
    "needle",
    "greedy",
    "probe",
    "fresh",
    "turn",
    "short",
    "long",
    "trace",
    "own",
]


class EngineTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine's own account of one request, from its `metrics` object, in milliseconds."""

    queue_ms: float | None = None
    first_token_ms: float | None = None  # counts from *scheduled*, not from arrival
    cached_tokens: int | None = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The proxy's account of one request: absolute stamps of its steps and the engines' times.

    `split` went through a prefill and a decode engine, `direct` through one engine. Stamps that
    never happened are absent. `analysis.attribution` turns this and the client's own stamps into
    parts that sum to the TTFT.
    """

    path: Literal["split", "direct"]
    boot: str  # clock.boot_id(): subtract from a client's stamp only if it is the same
    received_ns: int
    p_engine: str | None = None
    p_dispatch_ns: int | None = None
    p_response_ns: int | None = None
    p_times: EngineTimes | None = None
    d_engine: str | None = None
    d_dispatch_ns: int | None = None
    d_first_ns: int | None = None  # first body bytes from the answering engine
    d_times: EngineTimes | None = None
    end_ns: int | None = None
    handoff: str | None = None  # final state: admitted, released, expired
    remote_tokens: int | None = None  # prompt tokens whose KV the handoff covers


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request as the client saw it.

    `gaps_ns[i]` is the time from token event i to i+1, so event 0 arrived at `first_ns` and
    sum(gaps_ns) = last_ns - first_ns. `tokens[i]` is the number of tokens event i carried,
    as counted by the server; an empty list means one each. `status` 0 means that no HTTP status
    arrived. A request failed if and only if `error` is set. `shot` numbers the repetitions of an
    interference cell from 0, the null shot. In a conversation `index` is the turn and `user` its
    speaker; the first `history_prompt` tokens of its prompt are those of the turn before, the
    first `history` tokens also hold that turn's answer: so much an engine may have cached.
    `needle` judges an answer that was to begin with a planted fact: "ok", or how it missed.
    """

    id: str
    cell: str
    role: Role
    index: int
    send_ns: int
    due_ns: int
    shot: int = 0
    user: int = 0
    worker: int = 0
    history_prompt: int = 0
    history: int = 0
    needle: str | None = None
    prompt_asked: int = 0
    output_asked: int = 0
    status: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    end_ns: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    finish_reason: str | None = None  # "stopped_by_client" where the cell ended the stream
    error: str | None = None
    engine_times: EngineTimes | None = None
    ledger: Ledger | None = None
    text: str | None = None
    # Last, so that a reader that needs only the fields above skips the long part cheaply.
    gaps_ns: list[int] = []
    tokens: list[int] = []


# --------------------------------------------------------------------------------------- gates


class NeedleAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One needle prompt's outcome; `reason` says why it missed, empty if it did not."""

    request: str
    length: int
    depth: float
    expected: str
    got: str
    ok: bool
    reason: str = ""


class NeedleResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """needle.json: every needle answer, and the greedy probes compared across arms.

    `greedy` maps a probe's id (length and seed) to the token ids or text the arm produced.
    `inherited_from` names another run when the gate was taken over from it.
    """

    answers: list[NeedleAnswer] = []
    greedy: dict[str, str] = {}
    inherited_from: str | None = None

    @property
    def passed(self) -> bool:
        return bool(self.answers) and all(a.ok for a in self.answers)


class Code(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a point enters no verdict: a reason code of docs/how-we-measure.md and its evidence."""

    code: str
    why: str
    value: float | None = None
    limit: float | None = None


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell was when it ended, so that a later change of its files is seen (see seal.py).

    Its requests were `count` lines of together `size` bytes, the first one at byte `start` of
    requests.jsonl. `lines` is the digest of these lines in order; `summary` that of the cell's own
    line, less this seal, and of the run it belongs to. `measures` is the version of the
    definitions by which its values were taken.
    """

    count: int
    start: int
    size: int
    lines: str
    summary: str
    measures: int


class CellSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of cells.jsonl: a cell's values by metric name, and its seal.

    Every value can be recomputed from requests.jsonl; the analysis does so where there is no seal
    that holds, or other definitions made them. Names end in their unit (`_ms`, `_s`, `_tok_s`,
    `_tokens`). JSON has no infinity: a value of a request that never answered is null, and its
    name is in `never`.
    """

    cell: AnyCell
    started_ns: int
    ended_ns: int
    window_ns: tuple[int, int] | None = None
    values: dict[str, float | None] = {}
    never: list[str] = []
    codes: list[Code] = []
    seal: Seal | None = None


# ------------------------------------------------------------------------------------ the run


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


# ------------------------------------------------------------------------------------ findings

Severity = Literal["error", "warn", "info"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, where, why it matters and what to do.

    `where` is `file:line:col`, an engine's name with the option, or a log's name and line;
    `evidence` is verbatim. `certainty`: `executed` on vLLM 0.32, read in its `source`, `reported`.
    """

    rule: str
    severity: Severity
    where: str
    title: str
    consequence: str
    fix: str
    source: str
    certainty: Literal["executed", "source", "reported"]
    value: str = ""
    evidence: list[str] = []
    count: int = 1
    rank: int = 0  # 0 is a cause; see diagnosis/findings.py


class PostMortem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What logs and metrics said of a cell (`about` is its id) or of the end of a run (empty)."""

    about: str = ""
    cause: str | None = None
    findings: list[Finding] = []


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """findings.json: what was known before the engines started, and what was learnt after."""

    preflight: list[Finding] = []
    postmortems: list[PostMortem] = []


# ------------------------------------------------------------------------------------- events


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of events.jsonl in the campaign's folder: what the live view shows.

    `step` is one of: begin, place, launch, ready, gate, cell, phase, stop, done, failed, note, end.
    begin and end are those of one `twolane run`; a campaign that was resumed has several.
    """

    t_ns: int
    run: str
    step: str
    text: str
    arm: str | None = None
    cell: str | None = None
    done: int | None = None  # of `total`, where the step counts
    total: int | None = None
    expect_s: float | None = None  # how long this step should take
    rates: list[float] | None = None  # victims' tokens per second over the last second


# ------------------------------------------------------------------------------- JSONL on disk

T = TypeVar("T", bound=msgspec.Struct)


class Appender:
    """Appends structs to a JSONL file, one complete line per write, flushed to the kernel.

    A torn last line left by a crash is closed with a newline first, so that it spoils no
    neighbour.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def append(self, record: msgspec.Struct) -> None:
        self.write(msgspec.json.encode(record) + b"\n")

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[os.write(self._fd, left) :]

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BadLine(msgspec.Struct, frozen=True):
    """A line that could not be read: counted and shown, never silently dropped."""

    path: str
    line: int
    why: str


def read_jsonl(path: Path, of: type[T], bad: list[BadLine]) -> Iterator[T]:
    """Records of type `of` from `path`; unreadable lines are appended to `bad` and skipped."""
    decoder = msgspec.json.Decoder(of)
    if not path.exists():
        bad.append(BadLine(str(path), 0, "file is missing"))
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                torn = "" if line.endswith(b"\n") else "torn last line: "
                bad.append(BadLine(str(path), number, f"{torn}{error}"))


def write_json(path: Path, record: msgspec.Struct) -> None:
    """Replace `path` atomically with `record`, indented for people."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    beside = path.with_name(path.name + ".tmp")
    beside.write_bytes(text + b"\n")
    beside.replace(path)


def read_json(path: Path, of: type[T]) -> T:
    """One record from `path`.

    Raises OSError if it cannot be opened, msgspec.DecodeError if it is not such a record.
    """
    return msgspec.json.decode(path.read_bytes(), type=of)
