"""Which runs of a campaign are done already, and where the next ones are to be written.

Rules of this file: what is done is read off the disk alone, by the keys in run.json, so that it
holds after a power cut on this host and for results that were carried over from another one. A
run that was cut is never continued, since its engines are gone: it is set aside, whole, and done
again. Nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from twolane.errors import QuestionError
from twolane.plan import PlannedRun
from twolane.records import RunMeta, read_json

CUT = "cut"
"""Beside `runs`: runs that did not come to their end and were done again. No figure reads it."""


def latest_folder(results: Path, name: str) -> Path | None:
    """The newest folder that campaigns called `name` wrote under `results`, if there is one."""
    found = None
    for n in range(1, 10_000):
        folder = results / (name if n == 1 else f"{name}-{n}")
        if not (folder / "runs").exists():
            break
        found = folder
    return found


def left_over(planned: Sequence[PlannedRun], folder: Path) -> tuple[PlannedRun, ...]:
    """Those of `planned` that `folder` does not hold as done; runs that were cut are set aside.

    Raises QuestionError if `folder` holds finished runs of another question.
    """
    done: dict[str, Path] = {}
    cut: list[Path] = []
    for run in sorted(path for path in (folder / "runs").iterdir() if path.is_dir()):
        key = finished_key(run)
        if key is None:
            cut.append(run)
        else:
            done[key] = run
    _require_same_question(done, (step.key for step in planned), folder)
    for run in cut:
        (folder / CUT).mkdir(exist_ok=True)
        run.rename(folder / CUT / run.name)
    return tuple(step for step in planned if step.key not in done)


def finished_key(run: Path) -> str | None:
    """Key of the run in folder `run`; None if it did not come to its end or cannot be read."""
    try:
        meta = read_json(run / "run.json", RunMeta)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    key = meta.config.get("key")
    return key if meta.status == "done" and isinstance(key, str) else None


def _require_same_question(done: dict[str, Path], planned: Iterable[str], folder: Path) -> None:
    keys = set(planned)
    foreign = [run.name for key, run in done.items() if key not in keys]
    if foreign:
        raise QuestionError(
            f"{len(foreign)} finished runs here belong to another question, first {foreign[0]}",
            place=str(folder),
            remedy="the campaign was changed since: run it without --resume, into a new folder",
        )
