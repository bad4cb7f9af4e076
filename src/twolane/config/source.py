"""A YAML file whose every value knows its line and column.

Rules of this file: it knows YAML and positions, not what twolane's keys mean. Shapes are pydantic
models; a validation error becomes a ConfigError at the value (or key) that caused it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, create_model
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from twolane.errors import ConfigError, Faults, QuestionError

Path_ = tuple[str | int, ...]  # keys and indices from the document's root to a value
M = TypeVar("M", bound="Shape")


class Shape(BaseModel):
    """Base of every file shape: frozen; unknown keys and numbers without end are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text.encode()) > _LONGEST_NAME:
        raise ValueError(
            "it stands in names of files and in tables: no slash or control character, at the "
            f"beginning no blank, dot or dash, at most {_LONGEST_NAME} bytes"
        )
    return text


_NAME = re.compile(r"[^\s/.-][^/\x00-\x1f\x7f]*")
_LONGEST_NAME = 100
Name = Annotated[str, AfterValidator(_name)]
"""Of an arm: it becomes part of the names of files, and stands in one line of every table."""

# People paste `--flag '{"a": 1}'` into flow lists, as the documents of the field print it. YAML
# ends a plain scalar at `{`. Each character that would end it is exchanged for a private-use one
# before parsing and back afterwards, one for one, so that every column stays true.
_JSON_IN_FLOW = re.compile(r"(?:--[\w.-]+|\.\.\.)[ =]+'\{[^'\n]*\}'")
_UNSAFE = "{}[],:'\"#"
_HIDE = {ord(c): 0xE000 + i for i, c in enumerate(_UNSAFE)}
_SHOW = {0xE000 + i: c for i, c in enumerate(_UNSAFE)}


def _hide_json(line: str) -> str:
    if line.lstrip().startswith("#"):
        return line
    in_flow = "[" in line or "{" in line.split("'{", 1)[0]
    return _JSON_IN_FLOW.sub(lambda m: m.group().translate(_HIDE), line) if in_flow else line


class _TooMuchError(Exception):
    """A few lines of aliases that stand for more than any memory holds."""


def _shown(node: Any, left: list[int]) -> Any:
    """Plain Python values of a parsed node, hidden characters restored.

    `left` counts down the values that may still come: an alias stands for all that it names.
    """
    left[0] -= 1
    if left[0] < 0:
        raise _TooMuchError(f"its aliases stand for more than {_MOST_VALUES:,} values")
    if isinstance(node, Mapping):
        return {_shown(k, left): _shown(v, left) for k, v in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str | bytes):
        return [_shown(v, left) for v in node]
    if isinstance(node, str):
        return str(node).translate(_SHOW)
    return node


_MOST_VALUES = 100_000
"""The largest campaign that comes along has some 300."""

_MOST_CHARACTERS = 1 << 20  # of a file; a device has no end


def _key(node: Any) -> Any:
    return _shown(node, [_MOST_VALUES])


@dataclass(frozen=True)
class YamlFile:
    """A parsed file: `data` in plain values, `root` with positions."""

    path: Path
    data: Any
    root: Any

    def place(self, at: Path_ = ()) -> str:
        """`file:line:col`, both from 1, of the value at `at`, or of the nearest thing above it."""
        line, column = _position(self.root, at)
        return f"{self.path}:{line + 1}:{column + 1}"

    def key_place(self, at: Path_) -> str:
        """`file:line:col` of the key at `at` itself rather than of its value."""
        node = self.root
        try:
            for step in at[:-1]:
                node = node[step]
            line, column = node.lc.key(next(k for k in node if _key(k) == at[-1]))
        except (KeyError, IndexError, StopIteration, AttributeError, TypeError):
            return self.place(at[:-1])  # it came there from another entry
        return f"{self.path}:{line + 1}:{column + 1}"

    def fault(self, at: Path_, what: str, remedy: str) -> ConfigError:
        return ConfigError(what, place=self.place(at), remedy=remedy)

    def shaped(self, shape: type[M]) -> M:
        """The file as `shape`. Raises ConfigError that names every faulty value and key."""
        faults = Faults()
        found, _ = self.salvaged(shape, faults)
        faults.refuse()
        return found

    def salvaged(self, shape: type[M], faults: Faults) -> tuple[M, Lost]:
        """The file as `shape`, as far as it can be read; what cannot is kept in `faults`.

        A faulty value, and what lacks a key that it needs, is taken out of `data`; a faulty item
        of a list has an empty one in its place. Lost says where; a key of the root that is lost
        and has no default is None. Raises ConfigError where nothing is left to read.
        """
        lost: dict[Path_, int] = {}
        open_: set[str] = set()
        strange: set[Path_] = set()
        for attempt in range(_MOST_ATTEMPTS):
            wanted = _without(shape, open_) if open_ else shape
            try:
                return wanted.model_validate(self.data), Lost(lost.keys() - strange, strange)
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False)
                if not attempt:
                    for fault in self._faults(found, shape):
                        faults.add(fault)
                strange |= {tuple(f["loc"]) for f in found if f["type"] == "extra_forbidden"}
                for one in found:
                    self._take_out(one, lost, open_, attempt)
        faults.refuse()
        raise self.fault((), "it cannot be read", "see configs/ for the shape")

    def _take_out(self, fault: Any, lost: dict[Path_, int], open_: set[str], attempt: int) -> None:
        """Take out the value of `fault`; `lost` tells in which attempt what was."""
        at: Path_ = tuple(fault["loc"])
        if any(lost.get(at[:depth]) == attempt for depth in range(1, len(at) + 1)):
            return  # it is gone with another fault of the same value
        if fault["type"] == "missing" and len(at) == 1:
            open_.add(str(at[0]))
            lost[at] = attempt
            return
        at = _standing(self.data, at[:-1] if fault["type"] == "missing" else at)
        holder = self.data
        for step in at[:-1]:
            holder = holder[step]
        if isinstance(holder, list) and isinstance(at[-1], int):
            if at not in lost:  # its neighbours keep their numbers; most types have an empty text
                holder[at[-1]] = ""
            elif holder[at[-1]] == "":
                holder[at[-1]] = 0
            else:
                self._take_out({"type": "", "loc": at[:-1]}, lost, open_, attempt)
        elif isinstance(holder, dict):
            holder.pop(at[-1], None)
        lost[at] = attempt

    def _faults(self, found: Sequence[Any], shape: type[Shape]) -> Iterator[ConfigError]:
        strange: dict[Path_, list[str]] = {}  # unknown keys, by where they stand
        wrong: dict[Path_, list[Any]] = {}  # faults of one value: a union has several
        for fault in found:
            at: Path_ = tuple(fault["loc"])
            if fault["type"] == "extra_forbidden":
                strange.setdefault(at[:-1], []).append(str(at[-1]))
                yield ConfigError(
                    f"unknown key {at[-1]!r} in {_dotted(at[:-1])}",
                    place=self.key_place(at),
                    remedy=nearest(str(at[-1]), known_keys(shape, at[:-1])),
                )
            elif fault["type"] != "missing":
                wrong.setdefault(_standing(self.data, at), []).append(fault)
        for fault in found:
            at = tuple(fault["loc"])
            if fault["type"] == "missing" and not _misspelt(str(at[-1]), strange.get(at[:-1], ())):
                yield self.fault(at, f"{_dotted(at)} is missing", f"add the key {at[-1]!r}")
        for at, faults in wrong.items():
            said = ", or ".join(dict.fromkeys(fault["msg"] for fault in faults))
            got = faults[0].get("input")
            yield self.fault(at, f"{_dotted(at)} is {got!r}: {said}", "correct this value")


@dataclass(frozen=True)
class Lost:
    """Places of a file whose values could not be read, and those of keys that nobody knows."""

    at: Set[Path_]
    strange: Set[Path_] = frozenset()

    def __contains__(self, at: Path_) -> bool:
        """Whether the value at `at`, or something that it stands in, is lost."""
        return any(at[:depth] in self.at for depth in range(1, len(at) + 1))

    def within(self, at: Path_) -> bool:
        """Whether something of what stands at `at` is lost, or all of it."""
        return at in self or any(lost[: len(at)] == at for lost in self.at)

    def misspelt(self, at: Path_) -> bool:
        """Whether a key that nobody knows stands at `at`: it may be what is missing there."""
        return any(key[:-1] == at for key in self.strange)


_MOST_ATTEMPTS = 20
"""A round takes out all that it finds; what holds it goes in the next, and the tree is flat."""


def _without(shape: type[M], keys: Set[str]) -> type[M]:
    """`shape` where these keys may be missing."""
    optional: dict[str, Any] = dict.fromkeys(keys, (Any, None))
    made: type[M] = create_model(shape.__name__, __base__=shape, **optional)
    return made


def _misspelt(key: str, strange: Sequence[str]) -> bool:
    """Whether a missing key stands there after all, in other letters."""
    return bool(difflib.get_close_matches(key, strange, n=1, cutoff=_NEAR))


def _dotted(at: Path_) -> str:
    return repr(".".join(str(p) for p in at)) if at else "the file"


def _standing(data: Any, at: Path_) -> Path_:
    """As much of `at` as stands in the file: pydantic adds which type of a union it tried."""
    for depth, step in enumerate(at):
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return at[:depth] or at
    return at


def _position(root: Any, at: Path_) -> tuple[int, int]:
    line, column, node = 0, 0, root
    for step in at:
        try:
            if isinstance(node, CommentedMap):
                key = next(k for k in node if _key(k) == step)
                line, column = node.lc.value(key) if node[key] is not None else node.lc.key(key)
                node = node[key]
            elif isinstance(node, CommentedSeq) and isinstance(step, int):
                line, column = node.lc.item(step)
                node = node[step]
            else:
                break
        except (KeyError, IndexError, StopIteration, AttributeError, TypeError):
            break  # TypeError: a tagged mapping, as `!!omap`, keeps no places
    return line, column


def known_keys(shape: type[Shape], at: Path_) -> list[str]:
    """The keys that `shape` knows at the mapping `at`, for naming the nearest one."""
    here: Any = shape
    for step in at:
        field = here.model_fields.get(str(step)) if _is_shape(here) else None
        here = field.annotation if field else here
        while not _is_shape(here):
            inner = [a for a in getattr(here, "__args__", ()) if a is not type(None)]
            if not inner:
                return []
            here = inner[-1]
    return sorted(here.model_fields) if _is_shape(here) else []


def _is_shape(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Shape)


_NEAR = 0.5  # how like a known word another must be to be meant for it


def nearest(word: str, known: Sequence[str]) -> str:
    """A remedy that names the known word nearest to `word`."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=_NEAR)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(known)}" if known else "remove it"


def read(path: Path) -> YamlFile:
    """Parse `path`.

    Raises QuestionError if it cannot be read, ConfigError at the place of a YAML fault or of a
    duplicate key.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except FileNotFoundError:
        raise QuestionError(
            "no such file", place=str(path), remedy="check the path, or start from configs/"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file has
        raise QuestionError(
            f"cannot be read: {error}", place=str(path), remedy="give a readable UTF-8 file"
        ) from None
    if len(text) > _MOST_CHARACTERS:
        raise QuestionError(
            f"more than {_MOST_CHARACTERS:,} characters",
            place=str(path),
            remedy="name a campaign.yaml or models.yaml; see configs/ for the shape",
        )
    return parse(text, path)


def parse(text: str, path: Path) -> YamlFile:
    """Parse YAML `text`; `path` is for the places of faults. Raises as `read` does."""
    yaml = YAML(typ="rt")
    yaml.allow_duplicate_keys = False
    try:
        root = yaml.load("\n".join(_hide_json(line) for line in text.split("\n")))
        data = _shown(root, [_MOST_VALUES])
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        what = str(error.problem or error.context).translate(_SHOW)
        remedy = "keep one of the two" if "duplicate" in what else "correct the YAML here"
        raise ConfigError(what.splitlines()[0], place=place, remedy=remedy) from None
    except _TooMuchError as error:
        raise ConfigError(
            str(error), place=f"{path}:1:1", remedy="write out what they stand for, or use fewer"
        ) from None
    except (YAMLError, ValueError, TypeError, LookupError, RecursionError) as error:
        # A forbidden character, a list as a key, `0x_` or nesting past any sense carries no mark.
        raise ConfigError(
            f"not YAML: {(str(error) or type(error).__name__).splitlines()[0]}",
            place=f"{path}:1:1",
            remedy="save it as plain UTF-8 YAML",
        ) from None
    if not isinstance(root, CommentedMap):
        raise ConfigError(
            "not a mapping of keys", place=f"{path}:1:1", remedy="see configs/ for the shape"
        )
    file = YamlFile(path, data, root)
    if (at := _unwritable(data)) is not None:
        raise file.fault(at, "a character that no command line can hold", "remove it")
    return file


_NOWHERE = re.compile("[\0\ud800-\udfff]")


def _unwritable(value: Any, at: Path_ = ()) -> Path_ | None:
    """Where a text holds a NUL, or half of a pair of surrogates; None if none does."""
    if isinstance(value, str):
        return at if _NOWHERE.search(value) else None
    if isinstance(value, Mapping):
        inside = [((*at, key), one) for key, one in value.items()]
        if any(_unwritable(key) is not None for key in value):
            return at
    elif isinstance(value, list):
        inside = [((*at, number), one) for number, one in enumerate(value)]
    else:
        return None
    return next((found for here, one in inside if (found := _unwritable(one, here))), None)
