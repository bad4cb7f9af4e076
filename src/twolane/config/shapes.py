"""The shape of campaign.yaml: which keys it has, and of what type their values are.

Rules of this file: data alone; what the values mean together is judged in campaign.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import ConfigDict, Field

from twolane.config.cells import MOST_SECONDS
from twolane.config.models import VariableName
from twolane.config.source import Name, Shape

_DURATION = r"^\d+(\.\d+)?[smh]$"


class ProxyShape(Shape):
    """What an arm may ask of the proxy in front of its engines, by the options' own names."""

    connector: Literal["auto", "pull", "push", "push-at-once"] | None = None
    tokenise_once: bool | None = None
    split_from: int | None = Field(default=None, ge=0)
    backlog: int | None = Field(default=None, ge=1)
    decode_limit: int | None = Field(default=None, ge=1)
    kv_limit: float | None = Field(default=None, gt=0, le=1)

    model_config = ConfigDict(strict=True)  # `backlog: true` is no number

    def words(self) -> Iterator[str]:
        """The options as they stand on the proxy's command line."""
        for name, value in self.model_dump(exclude_none=True).items():
            option = f"--{name.replace('_', '-')}"
            if value is not False:
                yield from (option,) if value is True else (option, str(value))


class ArmShape(Shape):
    layout: str
    budget: int | str | None = None
    args: list[str | int | float] = []
    env: dict[VariableName, str | int | float | bool] = {}
    proxy: ProxyShape = ProxyShape()
    factor: str = ""


class SloShape(Shape):
    """A service level: what a request must meet, and the share of those sent that must."""

    ttft_ms: float | None = Field(default=None, gt=0)
    tpot_ms: float | None = Field(default=None, gt=0)
    gap_ms: float | None = Field(default=None, gt=0)
    share: float = Field(default=0.9, gt=0, le=1)


class CampaignShape(Shape):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    models: str
    model: str
    context: int | str
    arms: dict[Name, ArmShape] = Field(min_length=1)
    cells: list[str] = Field(min_length=1)
    gates: list[str] = []
    greedy: list[int | str] = []
    blocks: int = Field(default=1, ge=1, le=1000)
    order: Literal["abba", "random"] = "abba"
    swap_groups: bool = True
    seed: int = Field(default=1, ge=-(2**63), lt=2**63)  # what every record can hold
    margin: float = Field(default=0.03, gt=0, lt=1)
    start_timeout_s: float = Field(default=900, gt=0, le=MOST_SECONDS)
    allow: list[str] = []
    slos: dict[str, SloShape] = {}
    beside_others: bool = False
    time_budget: str | None = Field(default=None, pattern=_DURATION)
