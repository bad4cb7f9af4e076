"""What the supported vLLM knows: options, variables, connectors, models. Data, read once.

`vllm_facts.json` is written by scripts/vllm-facts from an installed vLLM; nothing here imports it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

Kind = Literal["flag", "str", "int", "float", "human_int", "int_or_auto", "json", "json_or_str"]


class Option(msgspec.Struct, frozen=True):
    """One command-line option: its spellings, the kind of its value, choices if closed."""

    names: list[str]
    kind: Kind
    choices: list[str] = []
    nargs: str = ""


class Facts(msgspec.Struct, frozen=True):
    """One vLLM version. `options` by dest; `connectors` says which keep the hybrid KV manager."""

    version: str
    options: dict[str, Option]
    variables: frozenset[str]
    variable_choices: dict[str, list[str]]
    connectors: dict[str, bool]
    kv_transfer_fields: frozenset[str]
    mtp_methods: frozenset[str]
    speculative_methods: frozenset[str]
    stateful_architectures: frozenset[str]
    mla_model_types: frozenset[str]


@cache
def facts() -> Facts:
    text = files("twolane.diagnosis").joinpath("vllm_facts.json").read_bytes()
    return msgspec.json.decode(text, type=Facts)


@cache
def spellings() -> dict[str, str]:
    """Every spelling of every option -> its dest."""
    return {name: dest for dest, option in facts().options.items() for name in option.names}
