"""models.yaml: the node's groups, and per model the layouts that engines can run in.

A layout is either one engine (`gpus` or `cores`), several copies of one (`copies`), or a pair
(`prefill`, `decode`) that names engine layouts. `$GROUP_A` stands for a group of the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

import twolane.models.needle
from twolane.config import source
from twolane.config.arguments import arguments, places, variable_text
from twolane.config.source import Lost, Name, Path_, Shape, YamlFile, nearest
from twolane.config.trimmed import untrim
from twolane.errors import Faults

Platform = Literal["cpu", "gpu"]
Role = Literal["both", "prefill", "decode"]

# ----------------------------------------------------------------------------- what others use


@dataclass(frozen=True)
class Node:
    """A host: groups of devices that belong together, GPUs or, without any, CPU cores."""

    platform: Platform
    groups: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Engine:
    """One vLLM server to be: role, group, flags and variables as the user gave them.

    `places` maps an option or variable name to its `file:line:col`.
    """

    name: str
    role: Role
    group: str
    devices: tuple[int, ...]
    tp: int
    args: tuple[str, ...]
    env: Mapping[str, str]
    place: str
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Engines on groups; a split if it has a prefill and a decode side.

    `proxy` holds options of `twolane proxy` that an arm asks for, as words of its command line.
    """

    name: str
    engines: tuple[Engine, ...]
    proxy: tuple[str, ...] = ()

    @property
    def split(self) -> bool:
        return any(e.role == "decode" for e in self.engines)

    def swapped(self, groups: Mapping[str, tuple[str, tuple[int, ...]]]) -> Layout:
        """The same layout with each engine moved to `groups[its group]` = (name, devices)."""
        moved = tuple(
            replace(e, group=groups[e.group][0], devices=groups[e.group][1])
            if e.group in groups
            else e
            for e in self.engines
        )
        return replace(self, engines=moved)


@dataclass(frozen=True)
class Model:
    """A model and its layouts. `path` is a folder or a hub name; `name` is what clients ask for."""

    name: str
    path: str
    layouts: Mapping[str, Layout]


@dataclass(frozen=True)
class Models:
    path: Path
    node: Node
    models: Mapping[str, Model]


# ------------------------------------------------------------------------------ the file's shape

Devices = str | list[int]

VariableName = Annotated[str, Field(pattern=r"^[^=]+$")]
"""What a system takes as the name of an environment variable."""


def _engine_name(name: str) -> str:
    if "=" in name or "*" in name:
        raise ValueError("it stands before its engine's URL, NAME=URL*WEIGHT: no = and no *")
    if name in _TAKEN:
        raise ValueError(f"{name} is what twolane itself calls {_TAKEN[name]}: choose another name")
    return name


_TAKEN = {"proxy": "the router and its log", "devices": "the devices' readings"}
LayoutName = Annotated[Name, AfterValidator(_engine_name)]
"""Of a layout: its engine's log, label and service are called by it."""


class NodeShape(Shape):
    platform: Platform
    groups: dict[str, list[int]] = Field(min_length=1)


class LayoutShape(Shape):
    gpus: Devices | None = None
    cores: Devices | None = None
    tp: int = Field(default=1, ge=1)
    env: dict[VariableName, str | int | float | bool] = {}
    args: list[str | int | float] = []
    copies: str | list[str] | None = None
    prefill: str | list[str] | None = None
    decode: str | list[str] | None = None


class ModelShape(Shape):
    path: str
    args: list[str | int | float] = []
    env: dict[VariableName, str | int | float | bool] = {}
    layouts: dict[LayoutName, LayoutShape] = Field(min_length=1)


class ModelsShape(Shape):
    node: NodeShape
    models: dict[str, ModelShape] = Field(min_length=1)


# -------------------------------------------------------------------------------------- reading


def load_models(path: Path) -> Models:
    """Read models.yaml.

    Raises QuestionError or, at the fault's place, ConfigError; it has all mistakes of the file.
    """
    file = source.read(path)
    untrim(file)
    faults = Faults()
    shape, lost = file.salvaged(ModelsShape, faults)
    node = None
    if not lost.within(("node",)):
        with faults.kept():
            node = _node(file, shape.node)
    models: dict[str, Model] = {}
    for name, given in (shape.models or {}).items():
        with faults.kept():
            models[name] = _model(file, node, name, given, lost)
    faults.refuse()
    assert node is not None
    return Models(path, node, models)


def _node(file: YamlFile, shape: NodeShape) -> Node:
    seen: dict[int, str] = {}
    faults = Faults()
    for name, devices in shape.groups.items():
        at = ("node", "groups", name)
        if not devices:
            faults.add(file.fault(at, f"group {name} is empty", "list at least one device"))
        for i, device in enumerate(devices):
            if device < 0 or device in seen:
                where = f"already in {seen[device]}" if device in seen else "negative"
                what = f"device {device} of {name} is {where}"
                faults.add(file.fault((*at, i), what, "give each device one group"))
            seen[device] = name
    faults.refuse()
    return Node(shape.platform, {n: tuple(d) for n, d in shape.groups.items()})


def _model(file: YamlFile, node: Node | None, name: str, shape: ModelShape, lost: Lost) -> Model:
    """Raises ConfigError with all mistakes of one model; without a `node` its layouts rest."""
    faults = Faults()
    path = ""
    with faults.kept():
        path = _path(file, name, shape.path)
    at = ("models", name)
    for place, given in [
        ((*at, "args"), shape.args),
        *(((*at, "layouts", n, "args"), layout.args) for n, layout in shape.layouts.items()),
    ]:
        with faults.kept():
            arguments(file, place, given)
    layouts: dict[str, Layout] = {}
    if node is not None:
        reader = _LayoutReader(file, node, name, shape)
        for one in shape.layouts:
            if not _rests_on_lost(lost, (*at, "layouts"), one, shape.layouts[one]):
                with faults.kept():
                    layouts[one] = reader.layout(one)
    faults.refuse()
    return Model(name, path, layouts)


def _rests_on_lost(lost: Lost, layouts: Path_, name: str, shape: LayoutShape) -> bool:
    """Whether a layout, or an engine that it names, could not be read whole."""
    named = [shape.copies, shape.prefill, shape.decode]
    members = [m for one in named for m in ([one] if isinstance(one, str) else one or [])]
    nothing = not members and shape.gpus is None and shape.cores is None
    return (nothing and lost.misspelt((*layouts, name))) or any(
        lost.within((*layouts, one)) for one in (name, *members)
    )


def _path(file: YamlFile, name: str, path: str) -> str:
    """The model's folder, whole, or its name on the hub."""
    if path.startswith("<"):
        raise file.fault(
            ("models", name, "path"),
            f"the model's path is not filled in yet: {path}",
            "write a folder that holds the model's config.json and weights, or its name on the hub",
        )
    if path == "builtin:needle":
        return str(twolane.models.needle.path())
    if not path.startswith((".", "/")):
        return path
    folder = (file.path.parent / path).resolve()
    if not (folder / "config.json").is_file():
        raise file.fault(
            ("models", name, "path"),
            f"model folder {folder} has no config.json",
            "give a folder with a model's config.json, a hub name, or builtin:needle",
        )
    return str(folder)


@dataclass(frozen=True)
class _LayoutReader:
    file: YamlFile
    node: Node
    model: str
    shape: ModelShape

    def at(self, name: str, *more: str | int) -> tuple[str | int, ...]:
        return ("models", self.model, "layouts", name, *more)

    def layout(self, name: str) -> Layout:
        shape = self.shape.layouts[name]
        kinds = {
            "one engine (gpus or cores)": shape.gpus is not None or shape.cores is not None,
            "copies": bool(shape.copies),
            "a pair (prefill and decode)": bool(shape.prefill and shape.decode),
        }
        if sum(kinds.values()) != 1 or bool(shape.prefill) != bool(shape.decode):
            raise self.file.fault(
                self.at(name),
                f"layout {name} is {' and '.join(k for k, v in kinds.items() if v) or 'nothing'}",
                f"make it exactly one of: {', '.join(kinds)}",
            )
        engines = tuple(self._members(name, shape))
        self._refuse_shared_devices(name, engines)
        return Layout(name, engines)

    def _members(self, name: str, shape: LayoutShape) -> Iterator[Engine]:
        roles: list[tuple[str, Role, str | list[str] | None]] = [
            ("copies", "both", shape.copies),
            ("prefill", "prefill", shape.prefill),
            ("decode", "decode", shape.decode),
        ]
        if shape.gpus is not None or shape.cores is not None:
            yield self._engine(name, shape, "both")
        for key, role, members in roles:
            for member in [members] if isinstance(members, str) else members or []:
                inner = self.shape.layouts.get(member)
                if inner is None or (inner.gpus is None and inner.cores is None):
                    engines = [
                        n for n, s in self.shape.layouts.items() if (s.gpus or s.cores) is not None
                    ]
                    raise self.file.fault(
                        self.at(name, key),
                        f"{member!r} is not an engine of model {self.model}",
                        nearest(member, engines),
                    )
                yield self._engine(member, inner, role)

    def _refuse_shared_devices(self, name: str, engines: tuple[Engine, ...]) -> None:
        taken: dict[int, str] = {}
        for engine in engines:
            for device in engine.devices:
                if device in taken:
                    raise self.file.fault(
                        self.at(name),
                        f"device {device} is held by {taken[device]} and {engine.name}",
                        "two engines of a layout never share a device: use another group",
                    )
                taken[device] = engine.name

    def _engine(self, name: str, shape: LayoutShape, role: Role) -> Engine:
        key = "gpus" if self.node.platform == "gpu" else "cores"
        given = shape.gpus if key == "gpus" else shape.cores
        if given is None or (shape.gpus is not None and shape.cores is not None):
            raise self.file.fault(
                self.at(name),
                f"layout {name} does not say {key} alone, but node.platform is "
                f"{self.node.platform}",
                f"say {key}: $GROUP",
            )
        if shape.tp != 1 and key == "cores":
            raise self.file.fault(
                self.at(name, "tp"),
                f"tp {shape.tp} on cores",
                "leave tp out: one rank works with all cores of its group",
            )
        group, devices = self._devices(name, key, given)
        if len(devices) % shape.tp and self.node.platform == "gpu":
            raise self.file.fault(
                self.at(name, "tp"),
                f"tp {shape.tp} does not divide the {len(devices)} devices of {group}",
                f"use a divisor of {len(devices)}, or another group",
            )
        env = {k: variable_text(v) for k, v in {**self.shape.env, **shape.env}.items()}
        args = (
            *arguments(self.file, ("models", self.model, "args"), self.shape.args),
            *arguments(self.file, self.at(name, "args"), shape.args),
        )
        return Engine(
            name, role, group, devices, shape.tp, args, env,
            self.file.place(self.at(name)), self._places(name, shape),
        )  # fmt: skip

    def _devices(self, name: str, key: str, given: Devices) -> tuple[str, tuple[int, ...]]:
        if isinstance(given, list):
            for group, devices in self.node.groups.items():
                if list(devices) == given:
                    return group, devices
            return ",".join(map(str, given)), tuple(given)
        group = given.removeprefix("$")
        if not given.startswith("$") or group not in self.node.groups:
            raise self.file.fault(
                self.at(name, key),
                f"{given!r} is not a group of the node",
                nearest(given, [f"${g}" for g in self.node.groups]),
            )
        return group, self.node.groups[group]

    def _places(self, name: str, shape: LayoutShape) -> dict[str, str]:
        found: dict[str, str] = {}
        for prefix, args, env in (
            (("models", self.model), self.shape.args, self.shape.env),
            (self.at(name), shape.args, shape.env),
        ):
            found |= places(self.file, (*prefix, "args"), args)
            for variable in env:
                found[variable] = self.file.place((*prefix, "env", variable))
        return found
