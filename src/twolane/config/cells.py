"""The cell grammar: one line of text names one workload.

    c64 in1024 out1024 n640        closed loop, 64 users; n640 requests, or 60s of window
    interference victims=2 prompt=60k shots=2
    needle 64k
    fresh 128k n=3                 new prompts, one after the other
    ramp 128k users=2 turns=8      conversations that grow turn by turn
    mix long=60k share=0.02 rate=20 60s     open loop, short prompts and some long ones
    trace FILE n=100 speed=2       prompts of one's own, or a Mooncake trace

Sizes: plain numbers, or with k (x 1,024) or m (x 1,048,576): `128k`, `1m`, `1.5k`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from twolane.config.traces import TraceLine, read_trace
from twolane.errors import Faults, QuestionError
from twolane.records import (
    AnyCell,
    FreshCell,
    GridCell,
    InterferenceCell,
    MixCell,
    NeedleCell,
    RampCell,
    TraceCell,
)

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)([kKmM]?)")
_FACTOR = {"": 1, "k": 1024, "m": 1024 * 1024}
_GRAMMAR = (
    "cells are e.g. 'c64 in1024 out1024 n640', 'c4 in512 out64 30s', "
    "'interference victims=2 prompt=60k', 'needle 64k', 'fresh 128k', 'ramp 128k users=2', "
    "'mix long=60k share=0.02 rate=20 60s'"
)

# A day of 100 a second. Every request has a record, and the plan of an open loop lies in memory.
_MOST_REQUESTS: Final = 10_000_000

# A week: no cell is meant to last longer, and what is written in milliseconds by mistake does.
MOST_SECONDS: Final = 7 * 24 * 3600.0

# Tokens of the answers that no cell says: gates.needle's, and those of the greedy probes.
NEEDLE_ANSWER: Final = 12
GREEDY_ANSWER: Final = 32
"""One wrong KV block changes so many, and they cost under a second."""

# Of a ramp's turn, tokens: one planted fact, and salt, fact and question. gates.conversation
# refuses what is too short exactly; this is for a message with a place in the file.
_FACT: Final = 30
_QUESTION: Final = 160


def parse_size(text: str) -> int:
    """Tokens in `text`: `6000`, `64k`, `1m`. Raises QuestionError."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _FACTOR[match[2].lower()] if match else 0.0
    if not match or size != int(size) or size < 1:
        raise QuestionError(
            f"{text!r} is not a size in tokens", remedy="write e.g. 6000, 64k or 1m"
        )
    return int(size)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)s?", text)
    if not match or not 0 < float(match[1]) <= MOST_SECONDS:
        raise QuestionError(
            f"{text!r} is not a duration", remedy="write seconds, e.g. 30s; at most a week"
        )
    return float(match[1])


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _plain(number: float) -> str:
    """The shortest text that reads back as `number`, without an exponent."""
    text = format(Decimal(repr(number)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_cell(text: str) -> AnyCell:
    """The cell that `text` names. Raises QuestionError naming the word and the grammar."""
    cell = _parsed(text)
    if (requests := _requests(cell)) > _MOST_REQUESTS:
        raise QuestionError(
            f"cell {text!r} would send {requests:,.0f} requests",
            remedy=f"at most {_MOST_REQUESTS:,}: a smaller n, rate or time",
        )
    return cell


def parse_cells(texts: Iterable[str]) -> list[AnyCell]:
    """The cells that `texts` name. Raises QuestionError that names every faulty one."""
    cells: list[AnyCell] = []
    faults = Faults()
    for text in texts:
        try:
            cells.append(parse_cell(text))
        except QuestionError as error:
            place = error.place or f"--cell {text!r}"
            faults.add(QuestionError(error.what, place=place, remedy=error.remedy))
    faults.refuse()
    return cells


def _requests(cell: AnyCell) -> float:
    """How many requests `cell` is sure to send; a loop with a time alone starts one a user."""
    if isinstance(cell, MixCell):
        return cell.rate * cell.seconds
    if isinstance(cell, GridCell):
        return cell.requests or cell.users
    if isinstance(cell, InterferenceCell):
        return cell.victims + cell.shots
    if isinstance(cell, FreshCell):
        return cell.requests
    return cell.users * cell.turns if isinstance(cell, RampCell) else 1


def tokens_needed(cell: AnyCell) -> int:
    """The context that `cell` takes: of its longest request the prompt and the answer."""
    match cell:
        case InterferenceCell():
            return max(cell.prompt + cell.aggressor_output, cell.victim_prompt + 1)
        case MixCell():
            return max(cell.prompt, cell.short) + cell.output
        case TraceCell():
            lines = read_trace(cell.path, cell.requests)
            return max(line.tokens + line.answer for line in lines)
        case NeedleCell():
            return cell.prompt + NEEDLE_ANSWER
        case _:
            return cell.prompt + cell.output


def _parsed(text: str) -> AnyCell:
    words = text.split()
    if not words:
        raise QuestionError("an empty cell", remedy=_GRAMMAR)
    if re.fullmatch(r"c\d{1,12}", words[0]):
        return _grid(words)
    if words[0] in _KINDS:
        return _KINDS[words[0]](words[1:])
    if words[0] == "needle" and len(words) == 2:
        prompt = parse_size(words[1])
        if prompt < 400:
            raise QuestionError(
                f"needle of {prompt} tokens", remedy="three facts and a question need 400 or more"
            )
        return NeedleCell(id=f"needle {prompt}", prompt=prompt)
    raise QuestionError(f"unknown cell {text!r}", remedy=_GRAMMAR)


def _grid(words: list[str]) -> GridCell:
    got: dict[str, Any] = {"users": int(words[0][1:])}
    for word in words[1:]:
        key, value = _grid_word(word, words)
        if key in got:
            raise QuestionError(f"{word!r}: {key} a second time", remedy="say it once")
        got[key] = value
    if got["users"] < 1 or not {"prompt", "output"} <= got.keys():
        raise QuestionError(f"cell {' '.join(words)!r} needs users, in and out", remedy=_GRAMMAR)
    if "requests" in got and "seconds" in got:
        raise QuestionError(
            f"cell {' '.join(words)!r} has two bounds", remedy="give requests (n640) or time (60s)"
        )
    if "seconds" not in got:
        # Ten rounds of every user: enough for a window that the start and tail cannot rule.
        got.setdefault("requests", 10 * got["users"])
        if got["requests"] < got["users"]:
            raise QuestionError(
                f"cell {' '.join(words)!r} has fewer requests than users",
                remedy=f"n{4 * got['users']} or more",
            )
    bound = f"n{got['requests']}" if "requests" in got else f"{got['seconds']:g}s"
    return GridCell(id=f"c{got['users']} in{got['prompt']} out{got['output']} {bound}", **got)


def _grid_word(word: str, words: list[str]) -> tuple[str, int | float]:
    if match := re.fullmatch(r"(in|out)(\S+)", word):
        return "prompt" if match[1] == "in" else "output", parse_size(match[2])
    if re.fullmatch(r"n\d{1,12}", word):
        return "requests", int(word[1:])
    if re.fullmatch(r"\d+(\.\d+)?s", word):
        return "seconds", _seconds(word)
    raise QuestionError(f"unknown word {word!r} in cell {' '.join(words)!r}", remedy=_GRAMMAR)


def _keywords(
    kind: str, words: list[str], known: Mapping[str, Callable[[str], int | float]]
) -> dict[str, Any]:
    """The values of `key=value` words. Raises QuestionError naming the word."""
    got: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in known or not value:
            raise QuestionError(
                f"unknown word {word!r} in a cell of kind {kind}",
                remedy=f"known: {', '.join(f'{k}=' for k in known)}",
            )
        if key in got:
            raise QuestionError(f"{word!r}: {key}= a second time", remedy="say it once")
        try:
            got[key] = known[key](value)
        except ValueError:
            raise QuestionError(f"{word!r} is not a number above 0", remedy=_GRAMMAR) from None
    return got


_INTERFERENCE: dict[str, Callable[[str], int | float]] = {
    "victims": int,
    "prompt": parse_size,
    "victim_prompt": parse_size,
    "aggressor_output": parse_size,
    "quiet": _seconds,
    "recovery": _seconds,
    "null": _seconds,
    "shots": int,
}


def _interference(words: list[str]) -> InterferenceCell:
    found = _keywords("interference", words, _INTERFERENCE)
    got = {f"{k}_s" if k in ("quiet", "recovery", "null") else k: v for k, v in found.items()}
    if not {"victims", "prompt"} <= got.keys() or got["victims"] < 1 or got.get("shots", 1) < 1:
        raise QuestionError(
            "an interference cell needs victims (1 or more) and prompt", remedy=_GRAMMAR
        )
    cell = InterferenceCell(id="", **got)
    rest = [w for w in words if not w.startswith(("victims=", "prompt="))]
    identity = " ".join(
        [f"interference victims={cell.victims} prompt={cell.prompt}", *sorted(rest)]
    )
    return InterferenceCell(id=identity, **got)


def _fresh(words: list[str]) -> FreshCell:
    """`fresh 128k n=3 out=64`."""
    prompt = _leading_size("fresh", words)
    found = _keywords("fresh", words[1:], {"n": int, "out": parse_size})
    cell = FreshCell(id="", prompt=prompt, requests=found.get("n", 1), output=found.get("out", 64))
    if cell.requests < 1:
        raise QuestionError("a fresh cell of no requests", remedy="n=1 or more")
    rest = _unusual(found, {"n": 1, "out": 64})
    return msgspec.structs.replace(cell, id=" ".join([f"fresh {prompt}", *rest]))


_RAMP: dict[str, Callable[[str], int | float]] = {
    "users": int,
    "turns": int,
    "after": parse_size,
    "out": parse_size,
}


def _ramp(words: list[str]) -> RampCell:
    """`ramp 128k users=2 turns=8 after=64k`; a second user starts half way unless told."""
    prompt = _leading_size("ramp", words)
    found = _keywords("ramp", words[1:], _RAMP)
    usual = {"users": 1, "turns": 8, "after": prompt // 2, "out": 64}
    of = usual | found
    if of["users"] < 1 or of["turns"] < 2:
        raise QuestionError("a ramp of no users or one turn", remedy="users=1 turns=2 or more")
    if prompt // of["turns"] < max(of["out"], _FACT * of["turns"]) + _QUESTION:
        raise QuestionError(
            f"a ramp to {prompt} tokens in {of['turns']} turns has too short turns",
            remedy="fewer turns, a shorter out=, or a longer prompt",
        )
    if of["after"] > prompt:
        raise QuestionError("after= is longer than the ramp", remedy=f"after={prompt} or less")
    identity = " ".join([f"ramp {prompt}", *_unusual(found, usual)])
    return RampCell(
        id=identity,
        prompt=prompt,
        users=of["users"],
        turns=of["turns"],
        after=of["after"],
        output=of["out"],
    )


_MIX: dict[str, Callable[[str], int | float]] = {
    "long": parse_size,
    "share": _positive,
    "rate": _positive,
    "short": parse_size,
    "out": parse_size,
}


def _mix(words: list[str]) -> MixCell:
    """`mix long=60k share=0.02 rate=20 short=512 out=64 60s`; without long, an open loop."""
    spans = [word for word in words if re.fullmatch(r"\d+(\.\d+)?s", word)]
    if len(spans) > 1:
        raise QuestionError("a mix cell has one time", remedy="write e.g. 60s once")
    found = _keywords("mix", [w for w in words if w not in spans], _MIX)
    seconds = _seconds(spans[0]) if spans else 60.0
    if "rate" not in found or ("long" in found) != ("share" in found):
        raise QuestionError(
            "a mix cell needs rate=, and long= and share= together", remedy=_GRAMMAR
        )
    if found.get("share", 0.0) > 1:
        raise QuestionError("a share is at most 1", remedy="write e.g. share=0.02")
    of = {"short": 512, "out": 64} | found
    head = [f"{key}={_plain(found[key])}" for key in ("share", "rate") if key in found]
    if "long" in found:
        head.insert(0, f"long={found['long']}")
    rest = _unusual(
        {k: found[k] for k in ("short", "out") if k in found}, {"short": 512, "out": 64}
    )
    return MixCell(
        id=" ".join(["mix", *head, *rest, f"{_plain(seconds)}s"]),
        prompt=of["long"] if "long" in of else of["short"],
        share=of.get("share", 0.0),
        rate=of["rate"],
        short=of["short"],
        output=of["out"],
        seconds=seconds,
    )


def _leading_size(kind: str, words: list[str]) -> int:
    if not words:
        raise QuestionError(f"a cell of kind {kind} needs a length", remedy=_GRAMMAR)
    return parse_size(words[0])


def _unusual(found: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """The words that differ from what is meant without them, in a fixed order."""
    return [f"{k}={found[k]}" for k in usual if k in found and found[k] != usual[k]]


def _trace(words: list[str]) -> TraceCell:
    """`trace FILE n=100 speed=2`, or `rate=5` in place of the file's own times."""
    if not words:
        raise QuestionError("a trace cell needs a file", remedy="trace FILE n=100 speed=2")
    path, found = words[0], _keywords("trace", words[1:], _TRACE)
    if found.get("n", 1) < 1 or ("rate" in found and "speed" in found):
        raise QuestionError("a trace of no requests, or of two paces", remedy="n=1, or one pace")
    lines = read_trace(path, found.get("n"))
    if "rate" not in found and any(line.timestamp is None for line in lines):
        raise QuestionError("the trace has no timestamps", place=path, remedy="give rate=")
    if (lasts := _lasts_s(lines, found)) > MOST_SECONDS:
        raise QuestionError(
            f"the trace would last {lasts:,.0f} s", place=path, remedy="at most a week: a smaller n"
        )
    pace = [f"{key}={_plain(found[key])}" for key in ("speed", "rate") if key in found]
    return TraceCell(
        id=" ".join(["trace", path, f"n={len(lines)}", *pace]),
        path=path,
        prompt=max(line.tokens for line in lines),
        requests=len(lines),
        speed=found.get("speed", 1.0),
        rate=found.get("rate"),
    )


def _lasts_s(lines: Sequence[TraceLine], found: Mapping[str, float]) -> float:
    """About how long sending takes, by its rate or its own times."""
    if "rate" in found:
        return len(lines) / found["rate"]
    return max(line.timestamp or 0.0 for line in lines) / 1000 / found.get("speed", 1.0)


_TRACE: dict[str, Callable[[str], int | float]] = {
    "n": int,
    "speed": _positive,
    "rate": _positive,
}

_KINDS: Final[Mapping[str, Callable[[list[str]], AnyCell]]] = {
    "interference": _interference,
    "fresh": _fresh,
    "ramp": _ramp,
    "mix": _mix,
    "trace": _trace,
}
