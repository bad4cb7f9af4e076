"""A vLLM command line, read as vLLM's own parser reads it, without vLLM.

Rules of this file: pure and total. Whatever is wrong becomes a Problem, never an exception; the
order of steps is that of FlexibleArgumentParser.parse_args (utils/argparse_utils.py of 0.32):
underscores to dashes up to the first dot, -O forms, dotted JSON keys gathered and appended, then
argparse with abbreviations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from twolane.diagnosis.vllm_facts import Option, facts, spellings

ProblemKind = Literal["unknown", "ambiguous", "missing", "value", "choice", "flag"]
NEGATIVE = re.compile(r"^-\d+$|^-\d*\.\d+$")  # argparse's own test
HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
HUGE = 2**63
JSON_LISTS = ("allowed_headers", "allowed_methods", "allowed_origins", "custom_histogram_buckets")
COUNTS = (  # config/parallel.py: Field(ge=1)
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "prefill_context_parallel_size",
    "decode_context_parallel_size",
)


class Problem(msgspec.Struct, frozen=True):
    """One thing that makes vLLM's parser stop: `option` as spelt, and the offending `value`."""

    kind: ProblemKind
    option: str
    value: str = ""
    near: str = ""  # what it may have meant, or the choices


class Arguments(msgspec.Struct, frozen=True):
    """Parsed values by dest, the options as they were spelt, and what could not be parsed."""

    model: str | None
    values: dict[str, Any]
    spelt: dict[str, str]
    problems: list[Problem]

    def integer(self, dest: str) -> int | None:
        value = self.values.get(dest)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, dest: str) -> str | None:
        value = self.values.get(dest)
        return value if isinstance(value, str) else None

    def mapping(self, dest: str) -> dict[str, Any] | None:
        value = self.values.get(dest)
        return value if isinstance(value, dict) else None

    def flag(self, dest: str) -> bool | None:
        """True for --x, False for --no-x, None where it was not given."""
        value = self.values.get(dest)
        return value if isinstance(value, bool) else None


def parse(argv: Sequence[str]) -> Arguments:
    """The arguments of `argv`, with or without `vllm serve` or `python -m ...` before them."""
    reader = _Reader(gather_dotted(dashed(after_program(argv))))
    reader.run()
    model = reader.positional or reader.values.get("model")
    return Arguments(model if isinstance(model, str) else None, reader.values, reader.spelt,
                     reader.problems)  # fmt: skip


def after_program(argv: Sequence[str]) -> list[str]:
    """`argv` from the first word after the program: wrappers, interpreter and `serve` go."""
    words = [str(word) for word in argv]
    for i, word in enumerate(words[:64]):
        if word == "-m" and i + 1 < len(words) and words[i + 1].startswith("vllm"):
            rest = words[i + 2 :]
            return rest[1:] if rest[:1] == ["serve"] else rest
        if word == "serve" and (i == 0 or words[i - 1].rsplit("/", 1)[-1] == "vllm"):
            return words[i + 1 :]
    return words


def dashed(words: list[str]) -> list[str]:
    out: list[str] = []
    for i, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, tail = name.partition(".")
            out.append(head.replace("_", "-") + dot + tail + equals + value)
        elif word.startswith("-O") and word != "-O":
            out += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        elif word == "-O" and words[i + 1 : i + 2] in (["0"], ["1"], ["2"], ["3"]):
            out.append("--optimization-level")
        else:
            out.append(word)
    return out


def gather_dotted(words: list[str]) -> list[str]:
    """`--json.key value` pairs merged into one JSON argument each, appended at the end."""
    plain: list[str] = []
    gathered: dict[str, dict[str, Any]] = {}
    queue = list(reversed(words))
    while queue:
        word = queue.pop()
        name, equals, value = word.partition("=")
        if not (word.startswith("-") and "." in name) or NEGATIVE.match(word) or " " in name:
            plain.append(word)
            continue
        if not equals:
            value = queue.pop() if queue else ""
        appended = name.endswith("+")
        key, *path = name.rstrip("+").split(".")
        place = gathered.setdefault(key, {})
        put(place, path, value.split(",") if appended else loose_json(value), appended)
    for key, content in gathered.items():
        plain += [key, json.dumps(content)]
    return plain


def put(place: dict[str, Any], path: list[str], value: Any, append: bool) -> None:
    for part in path[:-1]:
        below = place.get(part)
        if not isinstance(below, dict):
            below = place[part] = {}
        place = below
    had = place.get(path[-1])
    both = isinstance(had, list) and isinstance(value, list)
    place[path[-1]] = had + value if append and both else value


def loose_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        number = human_int(text)
        return text if number is None else number


def human_int(text: str) -> int | None:
    """`1k` is 1,000, `1K` is 1,024, `25.6k` is 25,600; None where it is no such number."""
    match = HUMAN.fullmatch(text.strip())
    if match is None:
        return plain_int(text)
    number, suffix = match.groups()
    if suffix.islower():
        value = int(float(number) * 1000 ** POWERS[suffix])
    elif "." in number:
        return None
    else:
        value = int(number) * 1024 ** POWERS[suffix.lower()]
    return value if value < HUGE else None


def plain_int(text: str) -> int | None:
    try:
        value = int(text.strip())
    except ValueError:
        return None
    return value if -HUGE < value < HUGE else None


class _Reader:
    """argparse's walk over prepared words: options, their values, one positional model."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.at = 0
        self.positional: str | None = None
        self.values: dict[str, Any] = {}
        self.spelt: dict[str, str] = {}
        self.problems: list[Problem] = []

    def run(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if looks_like_option(word):
                self.option(word)
            elif self.positional is None:
                self.positional = word
            else:
                self.problems.append(Problem("unknown", word))

    def option(self, word: str) -> None:
        name, equals, given = word.partition("=")
        matches = resolve(name)
        if len(matches) != 1:
            kind: ProblemKind = "ambiguous" if matches else "unknown"
            self.problems.append(Problem(kind, name, given, ", ".join(matches[:3])))
            if not equals and not matches:  # what follows an unknown option is probably its value
                self.take("?")
            return
        full = matches[0]
        dest = spellings()[full]
        option = facts().options[dest]
        self.spelt[dest] = full
        if option.kind == "flag":
            self.flag(dest, full, equals, given)
        else:
            texts = [given] if equals else self.take(option.nargs)
            self.store(dest, full, option, texts)

    def flag(self, dest: str, name: str, equals: str, given: str) -> None:
        if equals:
            self.problems.append(Problem("flag", name, given))
        self.values[dest] = not (name.startswith("--no-") and len(facts().options[dest].names) > 1)

    def take(self, nargs: str) -> list[str]:
        most = {"": 1, "?": 1}.get(nargs, len(self.words))
        start = self.at
        while self.at < len(self.words) and self.at - start < most:
            if looks_like_option(self.words[self.at]):
                break
            self.at += 1
        return self.words[start : self.at]

    def store(self, dest: str, name: str, option: Option, texts: list[str]) -> None:
        if not texts:
            if option.nargs != "?":
                self.problems.append(Problem("missing", name))
            return
        if texts[0] in ("", "None") and option.kind != "str":  # vLLM's optional_type: not given
            return
        for text in texts:
            problem = judge(name, option, text)
            if problem:
                self.problems.append(problem)
                return
        if option.nargs in ("+", "*"):
            self.values[dest] = [convert(option.kind, text) for text in texts]
        else:
            self.values[dest] = convert(option.kind, texts[0])


def looks_like_option(word: str) -> bool:
    if len(word) < 2 or word[0] != "-" or NEGATIVE.match(word):
        return False
    return resolve(word.partition("=")[0]) != [] or " " not in word


def resolve(name: str) -> list[str]:
    """The spellings that `name` can mean: itself, or what it abbreviates."""
    names = spellings()
    if name in names:
        return [name]
    if not name.startswith("--") or len(name) < 3:
        return []
    return sorted(full for full in names if full.startswith(name))


def judge(name: str, option: Option, text: str) -> Problem | None:
    value = convert(option.kind, text)
    if value is None:
        return Problem("value", name, text, option.kind)
    dest = spellings()[name]
    if option.kind == "json" and dest not in JSON_LISTS and not isinstance(value, dict):
        return Problem("value", name, text, "JSON object")
    if dest in COUNTS and isinstance(value, int) and value < 1:
        return Problem("value", name, text, "positive whole number")
    if option.choices and text not in option.choices:
        return Problem("choice", name, text, ", ".join(option.choices))
    return None


def convert(kind: str, text: str) -> Any:
    """The value of `text` as vLLM's converter would give it, None where that would refuse it."""
    if kind == "int_or_auto" and text.strip().lower() in ("auto", "-1"):
        return -1
    return CONVERTERS[kind](text)


def decimal(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def strict_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def json_or_text(text: str) -> Any:
    value = strict_json(text)
    return text if value is None else value


CONVERTERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "flag": str,
    "int": plain_int,
    "float": decimal,
    "human_int": human_int,
    "int_or_auto": human_int,
    "json": strict_json,
    "json_or_str": json_or_text,
}
