"""Command lines that vLLM's own parser refuses: unknown options, and values that are none."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterable, Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import SYMPTOM
from twolane.diagnosis.rule import Context, Hit, Match, Rule
from twolane.diagnosis.vllm_args import Problem
from twolane.diagnosis.vllm_facts import spellings

GONE = {
    "--swap-space": "remove it",
    "--disable-log-requests": "remove it: requests are not logged unless --enable-log-requests",
    "--task": "--runner or --convert",
    "--num-scheduler-steps": "remove it",
    "--use-v2-block-manager": "remove it",
    "--guided-decoding-backend": "--structured-outputs-config.backend",
    "--max-seq-len-to-capture": "--max-cudagraph-capture-size",
}
NEAR = 0.75  # of difflib's ratio, with the prefix that all names share left out
LONGEST = 200  # characters of a value or of choices in a fix
PREFIX = re.compile(r"^(?:-+|VLLM_|TWOLANE_)")


def nearest_of(name: str, known: Iterable[str]) -> str:
    """The known name that `name` is probably a slip of; empty where none is near."""
    bare = {PREFIX.sub("", one): one for one in sorted(known)}
    close = difflib.get_close_matches(PREFIX.sub("", name), bare, n=1, cutoff=NEAR)
    return bare[close[0]] if close else ""


# --------------------------------------------------------------------------------- unknown options


def unknown_options(side: Side) -> Iterator[Hit]:
    for problem in side.args.problems:
        if problem.kind == "unknown":
            value = f"{problem.option} {problem.value}".strip()
            yield Hit(value, problem.option, fix=f"{without(problem.option)}.".replace("?.", "?"))


def without(option: str) -> str:
    """What to write instead of an option that vLLM does not have."""
    if option in GONE:
        return f"{option}: {GONE[option]}"
    if not option.startswith("-"):
        return f"{option}: remove it, or quote what belongs together"
    meant = nearest_of(option, spellings())
    return f"{option}: did you mean {meant}?" if meant else f"{option}: remove it"


def unrecognized(found: list[Match], _: Context) -> str:
    """argparse names what it had left in one line: options, and behind them their values."""
    words = [word.partition("=")[0] for match in found for word in match.groups[0].split()]
    options = [word for word in words if word.startswith("-")] or words
    return f"{'; '.join(map(without, dict.fromkeys(options)))}.".replace("?.", "?")


# --------------------------------------------------------------------------------------- values

TROUBLE = {
    "ambiguous": "can mean {near}",
    "missing": "has no value",
    "value": "needs a value of kind {near}",
    "choice": "takes one of {near}",
    "flag": "takes no value: write the option alone, or its --no- form",
}


def bad_values(side: Side) -> Iterator[Hit]:
    for problem in side.args.problems:
        if problem.kind != "unknown" and problem.option != "--kv-cache-dtype":
            yield Hit(f"{problem.option} {problem.value[:80]}".strip(), problem.option,
                      fix=remedy(problem))  # fmt: skip


def remedy(problem: Problem) -> str:
    if problem.kind == "value" and problem.near.lower().startswith("json"):
        return as_json(problem.option, problem.value)
    what = TROUBLE[problem.kind].format(near=problem.near[:LONGEST])
    return f"{problem.option} {what}."


def as_json(option: str, given: str) -> str:
    """How to write `given`, meant as JSON, on a command line."""
    meant = rewritten(given)
    example = f"{option} '{meant}'" if meant else f"""{option} '{{"key": "value"}}'"""
    was = f"{option} was given {given[:LONGEST]}, which is no JSON object" if given else option
    return f"{was}: write single quotes outside and double quotes inside, {example}."


def rewritten(given: str) -> str:
    """A Python dict's text as the JSON that it stands for; empty where it is none."""
    try:
        value = ast.literal_eval(given)
        return json.dumps(value) if isinstance(value, dict) and "'" not in json.dumps(value) else ""
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ""


REPRESENTED = re.compile(r"input_value=(.*), input_type=")
CONVERTED = re.compile(r"Value (.*) cannot be converted to <function loads")
CHOSEN = re.compile(r"invalid choice: (.*?) \(choose from (.*?)\)?$")
KIND = re.compile(r"invalid (\w+) value: (.*)$")


def refused(found: list[Match], _: Context) -> str:
    return " ".join(dict.fromkeys(refusal(match.groups[0], match.line) for match in found))


def refusal(name: str, line: str) -> str:
    """The remedy for one of argparse's errors, with the value where the line has it."""
    option = name.partition("/")[0]
    if "Invalid JSON" in line:
        shown = REPRESENTED.search(line)
        return as_json(option, literal(shown[1]) if shown else "")
    if loaded := CONVERTED.search(line):
        return as_json(option, loaded[1])
    said = wrong_value(line)
    return f"{option} {said}." if said else ""


def wrong_value(line: str) -> str:
    """What argparse's own words say of an option, after its name; empty where they are others."""
    if choice := CHOSEN.search(line):
        return f"takes one of {choice[2][:LONGEST]}, not {choice[1]}"
    if kind := KIND.search(line):
        return f"needs a value of kind {kind[1]}, not {kind[2][:LONGEST]}"
    if "expected" in line:
        return "has no value, or one too few: write it behind the option"
    return TROUBLE["flag"] if "ignored explicit" in line else ""


def literal(text: str) -> str:
    """What Python's repr `text` stands for; a text that pydantic cut short as it is."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def whatever(found: list[Match], _: Context) -> str:
    option, said = found[0].groups
    return f"{option.partition('/')[0]}: {said[:LONGEST]}. Correct its value, or leave it out."


RULES = (
    Rule(
        id="ENV04",
        title="option that this vLLM does not have",
        severity="error",
        when=(
            "an option that is no option of 0.32 nor an unambiguous abbreviation of one "
            "(--swap-space, --disable-log-requests and others of old recipes; a slip of the pen)"
        ),
        so="The engine refuses to start.",
        fix="Remove it, or write the name that was meant: the finding names the nearest.",
        source="engine/arg_utils.py",
        confirmed="executed",
        seen="utils/argparse_utils.py",
        log=(r"unrecognized arguments: (.+)",),
        engine=unknown_options,
        tell=unrecognized,
    ),
    Rule(
        id="ENV11",
        title="option with a value that vLLM does not take",
        severity="error",
        when=(
            "an option of 0.32 with a value that its converter or its list of choices refuses, or "
            "that should be JSON and is none (single quotes inside)"
        ),
        so="The engine refuses to start.",
        fix="Write a value of the kind that the option takes (see the finding's value).",
        source="engine/arg_utils.py; utils/argparse_utils.py",
        confirmed="executed",
        seen="utils/argparse_utils.py",
        log=(
            r"error: argument (?!--kv-cache-dtype)(--?[\w/, -]+): "
            r"(?:invalid|expected|ignored|Value .* cannot be converted)",
            r"error: ambiguous option: (\S+)",
            r"error: argument (--?[\w/, -]+): [^\n]*\n\s*Invalid JSON",
        ),
        over_lines="Invalid JSON",
        engine=bad_values,
        tell=refused,
    ),
    Rule(
        id="ENV13",
        title="option that vLLM's parser refuses",
        severity="error",
        when="argparse ended the start over an option, and no other rule knows its reason",
        so="The engine refuses to start.",
        fix="Correct the option's value, or leave it out.",
        source="engine/arg_utils.py (parse_dataclass); utils/argparse_utils.py",
        confirmed="executed",
        seen="engine/arg_utils.py",
        rank=SYMPTOM,  # a rule that knows the reason comes first
        unless=("ENV11", "CFG01", "CFG02", "CFG03", "CFG05"),
        log=(
            r"error: argument (?!--kv-cache-dtype)(--?[\w/, -]+): "
            r"(?!invalid|expected|ignored|Value )(.+)",
        ),
        tell=whatever,
    ),
)
