"""Variables of twolane's own plugins for vLLM: names, values, and engines without use for them.

The plugins themselves are in engines/ (kv_runs.py, nixl_ascending.py, nixl_delay.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.rules.arguments import nearest_of

OWN = "TWOLANE_"
RUNS, ASCENDING = "TWOLANE_KV_RUNS", "TWOLANE_NIXL_ASCENDING"
KNOWN = (RUNS, ASCENDING, "TWOLANE_NIXL_PROGRESS_DELAY_US", "TWOLANE_LOCKS")
SWITCHES = (RUNS, ASCENDING)


def asked(side: Side, name: str) -> bool:
    return side.env.get(name) == "1"


def unknown_names(side: Side) -> Iterator[Hit]:
    for name in sorted(side.env):
        if name.startswith(OWN) and name not in KNOWN:
            meant = nearest_of(name, KNOWN)
            fix = f"did you mean {meant}?" if meant else "remove it."
            yield Hit(name, name, fix=f"{name}: {fix}")


def no_switch(side: Side) -> Iterator[Hit]:
    for name in SWITCHES:
        if side.env.get(name, "0") not in ("0", "1"):
            yield Hit(f"{name}={side.env[name]}", name, fix=f"Write {name}=1, or leave it out.")


def without_transfers(side: Side) -> Iterator[Hit]:
    for name in SWITCHES:
        if asked(side, name) and not side.nixl:
            yield Hit(f"{name}=1", name, fix=f"Set {name} on the two engines of a split alone.")


def one_of_a_pair(prefill: Side, decode: Side) -> Iterator[Hit]:
    if asked(prefill, RUNS) != asked(decode, RUNS):
        bare = decode if asked(prefill, RUNS) else prefill
        yield Hit(f"{RUNS}=1, but not on {bare.name}", RUNS, side=bare.name,
                  fix=f"Set {RUNS}=1 on {bare.name} too.")  # fmt: skip
    posting, other = (prefill, decode) if prefill.push else (decode, prefill)
    if asked(other, ASCENDING) and not asked(posting, ASCENDING):
        fix = f"Set {ASCENDING}=1 on {posting.name}, which posts the transfers."
        value = f"{ASCENDING}=1, but not on {posting.name}"
        yield Hit(value, ASCENDING, side=posting.name, fix=fix)


RULES = (
    Rule(
        id="ENV14",
        title="variable that twolane does not have",
        severity="warn",
        when="TWOLANE_* in an engine's environment that none of twolane's plugins reads",
        so="The setting has no effect.",
        fix=f"Remove it, or write the name that was meant: {', '.join(KNOWN)}.",
        source="twolane's plugins for vLLM",
        rank=AFTERMATH,
        engine=unknown_names,
    ),
    Rule(
        id="ENV15",
        title="variable of twolane that is neither 1 nor 0",
        severity="warn",
        when=f"{RUNS} or {ASCENDING} with another value: only 1 turns it on",
        so="The setting has no effect.",
        fix="Write 1, or leave it out.",
        source="twolane's plugins for vLLM",
        rank=AFTERMATH,
        engine=no_switch,
    ),
    Rule(
        id="ENV16",
        title="remedy for transfers on an engine that transfers no KV",
        severity="warn",
        when=f"{RUNS} or {ASCENDING} is 1 on an engine without a NIXL connector",
        so=(
            f"No transfer gains by it; with {RUNS} the prefix cache no longer loses strictly what "
            "was longest unused."
        ),
        fix="Set it on the two engines of a split alone.",
        source="twolane's plugins for vLLM",
        rank=AFTERMATH,
        engine=without_transfers,
    ),
    Rule(
        id="ENV17",
        title="remedy for transfers on one engine of a pair only",
        severity="warn",
        when=(
            f"{RUNS} is 1 on one engine of a pair, or {ASCENDING} on the one that does not post "
            "the transfers (D pulls; with NixlPushConnector P pushes)"
        ),
        so="Blocks are joined only where they are neighbours on both sides: little or no effect.",
        fix="Set it on both engines.",
        source="twolane's plugins for vLLM",
        rank=AFTERMATH,
        pair=one_of_a_pair,
    ),
    Rule(
        id="ENV18",
        title="remedy for transfers that was asked for and not heard of",
        severity="warn",
        when=(
            f"{RUNS} or {ASCENDING} is 1 in a campaign's engine, and its log does not say that it "
            "took effect"
        ),
        so="The run measured engines without it.",
        fix=(
            "Install twolane into the environment that vLLM runs from, and let VLLM_PLUGINS, where "
            "it is set, name twolane_kv_runs and twolane_nixl_ascending."
        ),
        source="twolane's plugins for vLLM",
        rank=AFTERMATH,
    ),
)
