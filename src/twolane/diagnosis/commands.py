"""What `twolane check --engines` and `twolane diagnose` do: files in, text, JSON and code out.

Exit codes: 0 nothing found, 1 findings, 2 a bad question (raised as QuestionError).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from twolane.diagnosis.deployment import Deployment, Side, read_deployment
from twolane.diagnosis.findings import exit_code, to_json, to_text
from twolane.diagnosis.postmortem import diagnose
from twolane.diagnosis.preflight import Places, check
from twolane.errors import QuestionError

_HEAD = 65536
_STAMPED = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d ")


class Said(NamedTuple):
    text: str
    json: str
    code: int


def load_deployment(path: Path) -> Deployment:
    """The deployment in `path`; the model's config.json is read where the engines name a folder.

    Raises QuestionError if the file cannot be read or is no deployment.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise QuestionError(
            f"cannot be read: {error}", place=str(path), remedy="name a readable JSON file"
        ) from error
    deployment = read_deployment(content, str(path))
    if not any(engine.argv for engine in deployment.engines):
        raise QuestionError(
            "no engine with a command line",
            place=str(path),
            remedy='give "engines": [{"name": ..., "role": ..., "argv": [...]}]',
        )
    return with_model(deployment)


def with_model(deployment: Deployment) -> Deployment:
    """The deployment with the config.json of its model, if it has none and the model is here."""
    if deployment.model_config is not None:
        return deployment
    for engine in deployment.engines:
        model = Side(engine, deployment).args.model
        for path in config_paths(model) if model else ():
            if (config := model_config(path)) is not None:
                return msgspec.structs.replace(deployment, model_config=config)
    return deployment


def config_paths(model: str) -> list[Path]:
    """Where the config.json of `model` may be: in its folder, or in the hub's cache, newest first.

    The cache lies where huggingface_hub has it: HF_HUB_CACHE, HF_HOME/hub or ~/.cache.
    """
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    try:
        snapshots = (cache / f"models--{model.replace('/', '--')}").glob("snapshots/*/config.json")
        cached = sorted(snapshots, key=_age)
    except (OSError, ValueError):  # no name of a file
        cached = []
    return [Path(model) / "config.json", *cached]


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:  # a link into a cache that was cleaned
        return 0.0


def model_config(path: Path) -> dict[str, object] | None:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def run_check(deployment: Deployment, places: Places | None = None) -> Said:
    """Preflight of `deployment`, as text, as JSON, and the exit code."""
    findings = check(deployment, places)
    return Said(to_text(findings), to_json(findings), exit_code(findings))


def run_diagnose(
    logs: Sequence[Path],
    engines: Path | None = None,
    before: Path | None = None,
    after: Path | None = None,
) -> Said:
    """Post-mortem of `logs` and of two metric scrapes, as text, as JSON, and the exit code."""
    if (before is None) != (after is None):
        raise QuestionError(
            "one metrics scrape alone says nothing",
            place="--metrics-before, --metrics-after",
            remedy="give both: figures are differences of two scrapes",
        )
    if not logs and before is None:
        raise QuestionError("no log and no metrics given", remedy="name at least one engine log")
    _refuse_unreadable(logs)
    deployment = load_deployment(engines) if engines is not None else None
    answer = diagnose(logs, deployment, before, after)
    if not answer.findings:
        _refuse_foreign(logs)
    text = to_text(answer.findings, answer.cause)
    return Said(text, to_json(answer), exit_code(answer.findings))


def _refuse_unreadable(logs: Sequence[Path]) -> None:
    """Raises QuestionError if there are logs and none of them holds text: silence is no health."""
    unreadable = [(log, why) for log in logs if (why := _why_unreadable(log))]
    if logs and len(unreadable) == len(logs):
        log, why = unreadable[0]
        raise QuestionError(
            why, place=str(log), remedy="name the file that the engine's output went to, as UTF-8"
        )


def _refuse_foreign(logs: Sequence[Path]) -> None:
    """Raises QuestionError if none of these files, in which nothing was found, is of vLLM."""
    if logs and not any(_is_of_vllm(log) for log in logs):
        raise QuestionError(
            "this is no log of vLLM: it never names vLLM, and no line of it has its format",
            place=str(logs[0]),
            remedy="name the file that the engine's output went to",
        )


def _is_of_vllm(log: Path) -> bool:
    """By the first and the last of its bytes; what is not a file, such as a pipe, may be."""
    if not log.is_file():
        return True
    with log.open("rb") as file:
        head = file.read(_HEAD)
        file.seek(max(0, file.seek(0, os.SEEK_END) - _HEAD))
        seen = head + file.read(_HEAD)
    return b"vllm" in seen.lower() or _STAMPED.search(seen) is not None


def _why_unreadable(log: Path) -> str:
    """Why nothing could be found in `log`, from its first bytes; empty for text."""
    if not log.is_file():
        return ""  # a pipe, or missing: reading it says so
    with log.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        return "the log is empty"
    # A crash may leave a page of zeros in a log; a third of them is another kind of file.
    if head.count(0) * 3 > len(head):
        return "not a text log: binary, or UTF-16"
    return ""
