"""A campaign as a results folder remembers it, so that an arm that won can be started from it.

Rules of this file: it reads what `Campaign.resolved` wrote into run.json, and no YAML. Old
folders lack what later versions added; what a start needs was always there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import twolane.models.needle
from twolane.config.campaign import Arm, Campaign
from twolane.config.models import Engine, Layout, Model, Models, Node
from twolane.errors import QuestionError
from twolane.records import UNREADABLE, RunMeta, read_json

START_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class _Arm:
    factor: str
    name: str
    engines: tuple[Engine, ...]
    proxy: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Model:
    name: str
    path: str


@dataclass(frozen=True)
class _Config:
    """The part of a run's `config` that says how its arms are started."""

    name: str
    model: _Model
    node: Node
    context: int
    arms: dict[str, _Arm]


def load_results(folder: Path) -> Campaign:
    """The campaign whose results lie in `folder`: its arms, with nothing left to measure.

    Raises QuestionError where no run there remembers how it was started.
    """
    for path in sorted(folder.glob("runs/*/run.json")):
        try:
            return _campaign(path, read_json(path, RunMeta).config)
        except (OSError, *UNREADABLE):
            continue  # torn, or of something else than a campaign: another run may tell
    raise QuestionError(
        "no run here says how its engines were started",
        place=str(folder),
        remedy="name a campaign's results folder, e.g. results/demo, or its YAML file",
    )


def _campaign(path: Path, config: Mapping[str, Any]) -> Campaign:
    kept = msgspec.convert(config, _Config)
    arms = tuple(
        Arm(name, Layout(arm.name, arm.engines, arm.proxy), arm.factor)
        for name, arm in kept.arms.items()
    )
    model = Model(kept.model.name, _here(kept.model.path), {a.layout.name: a.layout for a in arms})
    return Campaign(
        name=kept.name,
        path=path,
        models=Models(path, kept.node, {model.name: model}),
        model=model,
        context=kept.context,
        arms=arms,
        gates=(),
        greedy=(),
        cells=(),
        blocks=1,
        order="abba",
        swap_groups=False,
        seed=1,
        margin=0.03,
        start_timeout_s=START_TIMEOUT_S,
    )


def _here(path: str) -> str:
    """The model's path on this host: the bundled one lies where twolane is installed."""
    bundled = twolane.models.needle.path()
    is_bundled = Path(path).parts[-3:] == bundled.parts[-3:]
    return str(bundled) if is_bundled and not Path(path).exists() else path
