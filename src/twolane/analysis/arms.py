"""What an arm is made of, read from its engines as they ran: kind, token budget, devices.

Rules of this file: facts of run.json alone. An arm's facts are those of its first run that started.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Literal

from twolane.analysis.results import Run
from twolane.records import EngineMeta, RunMeta

Kind = Literal["one engine", "copies", "split"]
_BUDGET = "--max-num-batched-tokens"
_PLACES = frozenset({_BUDGET, "--port", "--host"})
# Where an engine runs, not how; the devices themselves are on record elsewhere.
PLACE_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES", "PATH", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_NIXL_SIDE_CHANNEL_PORT",
    }
)  # fmt: skip
_PROXY_PLACES = frozenset({"--host", "--port", "--ledger", "--prefill", "--decode", "--aggregated"})


@dataclass(frozen=True)
class Arm:
    """One arm's layout; `budget` is None where its engines were not told one, or not the same."""

    name: str
    kind: Kind
    layout: str
    budget: int | None
    devices: int
    engines: int
    factor: str = ""
    others: tuple[str, ...] = ()  # every setting besides the budget and the ports

    @property
    def split(self) -> bool:
        return self.kind == "split"


def arms(runs: Iterable[Run]) -> dict[str, Arm]:
    """Every arm with at least one run whose engines are on record, in the order they first ran."""
    found: dict[str, Arm] = {}
    for run in runs:
        if run.meta.engines and run.arm not in found:
            found[run.arm] = replace(_arm(run.meta), name=run.arm)
    return found


def alike(arms: Iterable[Arm]) -> list[tuple[str, str]]:
    """Pairs of arms that are told to run in the same way: an A/A, what they differ by is noise."""
    return [(a.name, b.name) for a, b in combinations(arms, 2) if _same(a, b)]


def _same(a: Arm, b: Arm) -> bool:
    return (a.kind, a.budget, a.devices, a.others) == (b.kind, b.budget, b.devices, b.others)


def _arm(meta: RunMeta) -> Arm:
    roles = {engine.role for engine in meta.engines}
    kind: Kind = "one engine" if len(meta.engines) == 1 else "copies"
    return Arm(
        name=meta.arm,
        kind="split" if roles & {"prefill", "decode"} else kind,
        layout=meta.layout,
        budget=budget(meta.engines),
        devices=len({device for engine in meta.engines for device in engine.devices}),
        engines=len(meta.engines),
        factor=_factor(meta),
        others=(*sorted(_settings(engine) for engine in meta.engines), *_asked_of_proxy(meta)),
    )


def _settings(engine: EngineMeta) -> str:
    """An engine's command line and variables, without what names a budget or a place."""
    told = (f"{k}={v}" for k, v in sorted(engine.env.items()) if k not in PLACE_VARIABLES)
    return " ".join([*told, *_kept(engine.argv)])


def _asked_of_proxy(meta: RunMeta) -> list[str]:
    return [f"{name} {value}" for name, value in sorted(proxy_options(meta).items())]


def proxy_options(meta: RunMeta) -> dict[str, str]:
    """The options of the proxy in front of the engines that say how it works, not where."""
    given = flags([str(word) for word in meta.proxy.get("argv", [])])
    return {name: value for name, value in given.items() if name not in _PROXY_PLACES}


def _kept(argv: list[str]) -> list[str]:
    before = ["", *argv]
    return [
        word
        for word, last in zip(argv, before, strict=False)
        if _named(word.split("=", 1)[0]) not in _PLACES and _named(last) not in _PLACES
    ]


def _factor(meta: RunMeta) -> str:
    """What the campaign says that the arm is there to vary; empty where it says nothing."""
    declared = meta.config.get("arms")
    mine = declared.get(meta.arm) if isinstance(declared, dict) else None
    return str(mine.get("factor", "")) if isinstance(mine, dict) else ""


def budget(engines: Iterable[EngineMeta]) -> int | None:
    """`--max-num-batched-tokens` of the engines, if they agree on one."""
    found = {budget_of(engine.argv) for engine in engines}
    return found.pop() if len(found) == 1 else None


def budget_of(argv: list[str]) -> int | None:
    """`--max-num-batched-tokens` out of an engine's command line, in either spelling."""
    text = flags(argv).get(_BUDGET, "")
    return int(text) if _TOKENS.fullmatch(text) else None


_TOKENS = re.compile("[0-9]{1,9}")
_FLAG = re.compile(r"--?[A-Za-z]")  # a dash before a digit is a sign


def dummy_weights(engines: Iterable[EngineMeta]) -> bool:
    """Whether an engine was told to make its weights up, so that its answers mean nothing."""
    words = [word for engine in engines for word in engine.argv]
    told = any(a == "--load-format" and b == "dummy" for a, b in pairwise(words))
    return told or "--load-format=dummy" in words


def flags(argv: list[str]) -> dict[str, str]:
    """`--flag value`, `--flag=value` and bare `--flag` of a command line; short ones (`-tp 2`) too,
    by the name they were given; long ones with dashes, as vLLM reads `--a_b` too."""
    found: dict[str, str] = {}
    for here, after in zip(argv, [*argv[1:], "--"], strict=False):
        if _FLAG.match(here):
            name, equals, value = here.partition("=")
            bare = after == "--" or _FLAG.match(after)
            found[_named(name)] = value if equals else ("given" if bare else after)
    return found


def _named(option: str) -> str:
    """As vLLM's parser spells a long option: before its first dot, underscores are dashes."""
    if not option.startswith("--"):
        return option
    name, dot, rest = option.partition(".")
    return name.replace("_", "-") + dot + rest
