"""campaign.yaml: which arms, through which cells, in how many blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from twolane.config import identity, owned, source
from twolane.config.arguments import arguments, places, variable_text
from twolane.config.cells import (
    GREEDY_ANSWER,
    parse_cell,
    parse_size,
    tokens_needed,
)
from twolane.config.models import (
    Engine,
    Layout,
    Model,
    Models,
    load_models,
)
from twolane.config.shapes import ArmShape, CampaignShape
from twolane.config.source import Lost, Path_, YamlFile, nearest
from twolane.errors import ConfigError, Faults, QuestionError
from twolane.records import AnyCell, NeedleCell

G = TypeVar("G")
R = TypeVar("R")

_SECONDS_IN = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Arm:
    """A layout with its knob values; `factor` says what the arm is there to vary."""

    name: str
    layout: Layout
    factor: str


@dataclass(frozen=True)
class Campaign:
    name: str
    path: Path
    models: Models
    model: Model
    context: int  # --max-model-len of every engine, tokens
    arms: tuple[Arm, ...]
    gates: tuple[NeedleCell, ...]
    greedy: tuple[int, ...]  # prompt lengths whose greedy answers must agree between arms
    cells: tuple[AnyCell, ...]
    blocks: int
    order: Literal["abba", "random"]
    swap_groups: bool
    seed: int
    margin: float
    start_timeout_s: float
    allow: tuple[str, ...] = ()  # rules of preflight whose errors do not stop it
    slos: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    beside_others: bool = False  # whether other runs may use other devices of this host meanwhile
    time_budget_s: float | None = None  # no run is begun that would end after it
    file_blocks: int | None = None  # as many as the file says, where `blocks` may be another number

    def resolved(self) -> dict[str, Any]:
        """Everything that decides what runs, as plain data for run.json."""
        plain: dict[str, Any] = msgspec.to_builtins(
            {
                "name": self.name,
                "model": {
                    "name": self.model.name,
                    "path": self.model.path,
                    "content": self._content(),
                },
                "node": asdict(self.models.node),
                "context": self.context,
                "arms": {a.name: {"factor": a.factor, **_plain(a.layout)} for a in self.arms},
                "gates": self.gates,
                "greedy": self.greedy,
                "cells": self.cells,
                "blocks": self.blocks,
                **({"file_blocks": self.file_blocks} if self._other_blocks else {}),
                "order": self.order,
                "swap_groups": self.swap_groups,
                "seed": self.seed,
                "margin": self.margin,
                **({"slos": self.slos} if self.slos else {}),
            }
        )
        return plain

    @property
    def _other_blocks(self) -> bool:
        return self.file_blocks not in (None, self.blocks)

    def _content(self) -> str:
        """The model's identity on every host; where no engine reads its weights, without them."""
        engines = [engine for arm in self.arms for engine in arm.layout.engines]
        dummy = all(identity.has_dummy_weights(engine.args) for engine in engines)
        return identity.of_model(self.model.path, weights=not dummy)

    def digest(self) -> str:
        """Hash of what runs (not of where the files lie): equal campaigns have equal digests."""
        plain = self.resolved()
        plain.pop("file_blocks", None)
        plain["model"] = {"name": self.model.name, "path": identity.of_model(self.model.path)}
        for arm in plain["arms"].values():
            for engine in arm["engines"]:
                del engine["place"], engine["places"]
        text = msgspec.json.encode(plain, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16]


def _plain(layout: Layout) -> dict[str, Any]:
    """A layout as run.json holds it: what nobody asked for is not there, as in older folders."""
    return {key: value for key, value in asdict(layout).items() if key != "proxy" or value}


def load_campaign(path: Path) -> Campaign:
    """Read campaign.yaml and the models.yaml that it names.

    Raises QuestionError or, at the fault's place, ConfigError; it has all mistakes of both files.
    """
    file = source.read(path)
    if isinstance(file.data.get("models"), dict):
        raise file.fault(
            ("models",),
            "this is a models file, not a campaign",
            "name a campaign, which says `models: FILE`; see configs/demo.yaml",
        )
    faults = Faults()
    shape, lost = file.salvaged(CampaignShape, faults)
    models = None
    if ("models",) not in lost:
        with faults.kept():
            models = load_models(path.parent / shape.models)
    reader = _Reader(file, shape, lost, faults)
    model = reader.model(models)
    context = reader.context()
    gates, greedy, cells = reader.gates(context), reader.greedy(context), reader.cells(context)
    arms = reader.arms(model, context)
    faults.refuse()
    assert models is not None
    assert model is not None
    assert context is not None
    return Campaign(
        name=shape.name,
        path=path,
        models=models,
        model=model,
        context=context,
        arms=arms,
        gates=gates,
        greedy=greedy,
        cells=cells,
        blocks=shape.blocks,
        file_blocks=shape.blocks,
        order=shape.order,
        swap_groups=shape.swap_groups,
        seed=shape.seed,
        margin=shape.margin,
        start_timeout_s=shape.start_timeout_s,
        allow=tuple(shape.allow),
        slos={name: slo.model_dump(exclude_none=True) for name, slo in shape.slos.items()},
        beside_others=shape.beside_others,
        time_budget_s=_seconds(shape.time_budget) if shape.time_budget else None,
    )


@dataclass(frozen=True)
class _Reader:
    """What the file means, piece by piece: a faulty one is kept, and the next is read.

    What rests on a piece that could not be read is not judged: without a model no arm's layout,
    without a context no cell's length.
    """

    file: YamlFile
    shape: CampaignShape
    lost: Lost
    faults: Faults

    def model(self, models: Models | None) -> Model | None:
        name = self.shape.model
        if models is None or ("model",) in self.lost:
            return None
        if name not in models.models:
            remedy = nearest(name, list(models.models))
            self.faults.add(
                self.file.fault(("model",), f"no model {name!r} in {models.path}", remedy)
            )
        return models.models.get(name)

    def context(self) -> int | None:
        if ("context",) not in self.lost:
            with self.faults.kept():
                return _size(self.file, ("context",), self.shape.context)
        return None

    def gates(self, context: int | None) -> tuple[NeedleCell, ...]:
        return tuple(self._of_each("gates", self.shape.gates, context, _gate))

    def greedy(self, context: int | None) -> tuple[int, ...]:
        return tuple(self._of_each("greedy", self.shape.greedy, context, _greedy))

    def cells(self, context: int | None) -> tuple[AnyCell, ...]:
        found: dict[str, AnyCell] = {}

        def once(file: YamlFile, at: Path_, text: str, context: int | None) -> AnyCell:
            cell = _cell(file, at, text, context)
            if cell.id in found:  # a cell's requests are told apart by its id alone
                raise file.fault(
                    at, f"cell {cell.id!r} a second time", "use blocks to repeat a measurement"
                )
            found[cell.id] = cell
            return cell

        return tuple(self._of_each("cells", self.shape.cells, context, once))

    def _of_each(
        self,
        key: str,
        given: Sequence[G] | None,
        context: int | None,
        read: Callable[[YamlFile, Path_, G, int | None], R],
    ) -> Iterator[R]:
        for i, one in enumerate(given or ()):
            if (key, i) not in self.lost:
                with self.faults.kept():
                    yield read(self.file, (key, i), one, context)

    def arms(self, model: Model | None, context: int | None) -> tuple[Arm, ...]:
        made: list[Arm] = []
        for name, shape in (self.shape.arms or {}).items():
            with self.faults.kept():
                if (arm := self._arm(name, shape, model, context)) is not None:
                    made.append(arm)
        return tuple(made)

    def _refuse_contradictions(
        self, at: Path_, words: Sequence[str], shape: ArmShape, context: int
    ) -> None:
        """Raises ConfigError where the arm's own arguments would lose to a key."""
        faults = Faults()
        stands = places(self.file, (*at, "args"), shape.args)
        for owner in _owners(shape, context):
            for option, value in owned.against(words, {owner.option: owner.value}).items():
                spelt = next((s for s in stands if s.replace("_", "-") == option), option)
                place = stands.get(spelt, self.file.place((*at, "args")))
                what = f"{option} {value} of arm {at[-1]}, but {owner.says}"
                faults.add(ConfigError(what, place=place, remedy=owner.remedy))
        faults.refuse()

    def _arm(
        self, name: str, shape: ArmShape, model: Model | None, context: int | None
    ) -> Arm | None:
        at = ("arms", name)
        words: list[str] = []
        with self.faults.kept():
            words = arguments(self.file, (*at, "args"), shape.args)
        if model is None or context is None:
            return None
        if shape.layout not in model.layouts:
            raise self.file.fault(
                (*at, "layout"),
                f"model {model.name} has no layout {shape.layout!r}",
                nearest(shape.layout, list(model.layouts)),
            )
        if shape.budget is not None:
            size = _size(self.file, (*at, "budget"), shape.budget)
            shape = shape.model_copy(update={"budget": size})
        self._refuse_contradictions(at, words, shape, context)
        knobs = [*words, "--max-model-len", str(context)]
        stands = places(self.file, (*at, "args"), shape.args)
        stands |= {"--max-model-len": self.file.place(("context",))}
        if shape.budget is not None:
            knobs += ["--max-num-batched-tokens", str(shape.budget)]
            stands["--max-num-batched-tokens"] = self.file.place((*at, "budget"))
        env = {k: variable_text(v) for k, v in shape.env.items()}
        layout = model.layouts[shape.layout]
        engines = tuple(_knobbed(engine, knobs, env, stands) for engine in layout.engines)
        proxy = tuple(shape.proxy.words())
        return Arm(name, replace(layout, engines=engines, proxy=proxy), shape.factor or name)


def _seconds(text: str) -> float:
    return float(text[:-1]) * _SECONDS_IN[text[-1]]


def _size(file: YamlFile, at: Path_, given: int | str) -> int:
    try:
        return parse_size(str(given))
    except QuestionError as error:
        key = f"{at[-1]} " if isinstance(at[-1], str) else ""
        raise file.fault(at, f"{key}{error.what}", error.remedy) from None


@dataclass(frozen=True)
class _Owner:
    """A key that sets an option of every engine it holds for, and what to do where args differ."""

    option: str
    value: int
    says: str
    remedy: str


def _owners(shape: ArmShape, context: int) -> Iterator[_Owner]:
    yield _Owner(
        "--max-model-len", context, f"the campaign's context is {context}, which every engine gets",
        "take it out, or make context what it says; arms of another context are another campaign",
    )  # fmt: skip
    if shape.budget is not None:
        yield _Owner(
            "--max-num-batched-tokens", int(shape.budget), f"its budget is {shape.budget}",
            "say it once: take one of the two out",
        )  # fmt: skip


def _greedy(file: YamlFile, at: Path_, given: int | str, context: int | None) -> int:
    size = _size(file, at, given)
    if context is not None and size + GREEDY_ANSWER > context:
        raise file.fault(
            at,
            f"a greedy prompt of {size} tokens and {GREEDY_ANSWER} of its answer, context is "
            f"{context}",
            "raise context, or shorten the prompt",
        )
    return size


def _cell(file: YamlFile, at: Path_, text: str, context: int | None) -> AnyCell:
    try:
        cell = parse_cell(text)
    except QuestionError as error:
        raise file.fault(at, error.what, error.remedy) from None
    if context is not None and (needs := tokens_needed(cell)) > context:
        raise file.fault(
            at,
            f"cell {text!r} needs {needs} tokens for a prompt and its answer, context is {context}",
            "raise context, or shorten the prompt or the answer",
        )
    return cell


def _gate(file: YamlFile, at: Path_, text: str, context: int | None) -> NeedleCell:
    cell = _cell(file, at, text, context)
    if not isinstance(cell, NeedleCell):
        raise file.fault(at, f"{text!r} is not a gate", "write e.g. needle 6000")
    return cell


def _knobbed(
    engine: Engine, knobs: list[str], env: Mapping[str, str], stands: Mapping[str, str]
) -> Engine:
    return replace(
        engine,
        args=(*engine.args, *knobs),
        env={**engine.env, **env},
        places={**engine.places, **stands},
    )
