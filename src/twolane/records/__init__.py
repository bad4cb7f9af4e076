"""What is written down: cells, requests, runs, samples and events, one JSON line each.

Rules of this package: plain frozen structs and their JSONL reader and writer, no arithmetic beyond
what a field needs to exist. Times are CLOCK_MONOTONIC nanoseconds (`*_ns`), comparable only
within one boot of one host. Files are appended and flushed line by line, a torn last line is
tolerated, and nothing is rewritten: summaries are recomputed from these.

Schema history
    1  first
"""

from twolane.records.cells import (
    AnyCell,
    Cell,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    TraceCell,
)
from twolane.records.events import Event
from twolane.records.files import (
    UNREADABLE,
    Appender,
    BadLine,
    read_json,
    read_jsonl,
    write_json,
)
from twolane.records.findings import Finding, Findings, PostMortem, Severity
from twolane.records.outcomes import CellSummary, Code, NeedleAnswer, NeedleResult, Seal
from twolane.records.requests import EngineTimes, Ledger, Request, Role
from twolane.records.runs import SCHEMA, EngineMeta, RunMeta, Sample

__all__ = [
    "SCHEMA",
    "UNREADABLE",
    "AnyCell",
    "Appender",
    "BadLine",
    "Cell",
    "CellSummary",
    "Code",
    "EngineMeta",
    "EngineTimes",
    "Event",
    "Finding",
    "Findings",
    "FreshCell",
    "GridCell",
    "InterferenceCell",
    "Ledger",
    "MixCell",
    "NeedleAnswer",
    "NeedleCell",
    "NeedleResult",
    "PostMortem",
    "RampCell",
    "Request",
    "Role",
    "RunMeta",
    "Sample",
    "Seal",
    "Severity",
    "TraceCell",
    "read_json",
    "read_jsonl",
    "write_json",
]
