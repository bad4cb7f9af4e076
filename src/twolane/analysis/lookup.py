"""From what a person types to a run, a cell or a request.

Rules of this file: exact names win; otherwise a part of a name does, if it means one thing alone.
Every refusal says what there is to choose from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from twolane.analysis.results import Results, Run, load
from twolane.errors import QuestionError
from twolane.records import CellSummary, Request

SHOWN = 8


def find_run(text: str, under: Path) -> tuple[Results, Run]:
    """The run that `text` names: a run's folder, a campaign's folder with one run, or (part of) an
    id or an arm in a campaign's folder, as `FOLDER/ID`, or in any folder in `under`.

    An arm of several blocks is its first; `ARM/2` is its second.
    Raises QuestionError where it names none, or several.
    """
    path = Path(text)
    if (path / "run.json").is_file():
        results = load(path.resolve().parent.parent)
        return results, _one(results.runs, path.resolve().name, str(path))
    if (path / "runs").is_dir():
        results = load(path)
        return results, _one(results.runs, "", text)
    if path.parent != Path() and (path.parent / "runs").is_dir():
        results = load(path.parent)
        return results, _one(results.runs, path.name, text)
    if path.name.isdecimal() and (path.parent.parent / "runs").is_dir():
        results = load(path.parent.parent)
        return results, _one(_of_block(results, int(path.name), text), path.parent.name, text)
    return _anywhere(text, under)


def _of_block(results: Results, number: int, place: str) -> list[Run]:
    runs = [run for run in results.runs if run.block + 1 == number]
    if not runs:
        there = sorted({run.block + 1 for run in results.runs})
        raise QuestionError(
            f"there is no block {number}",
            place=place,
            remedy=f"blocks measured here: {', '.join(map(str, there))}",
        )
    return runs


def _anywhere(text: str, under: Path) -> tuple[Results, Run]:
    folders = [one.parent for one in sorted(under.glob("*/runs")) if one.is_dir()]
    every = [(results, run) for folder in folders for results in [load(folder)]
             for run in results.runs]  # fmt: skip
    if not every:
        raise QuestionError(
            f"there is no run {text!r}",
            place=str(under),
            remedy="name a run's folder, or say with --out where results lie",
        )
    run = _one([run for _, run in every], text, str(under))
    return next(pair for pair in every if pair[1] is run)


def _one(runs: Sequence[Run], text: str, place: str) -> Run:
    if not runs:
        raise QuestionError(
            "no run can be read here",
            place=place,
            remedy="name a folder whose `runs` hold a run.json; twolane report says what else lies "
            "there",
        )
    exact = [run for run in runs if text in (run.id, run.arm)]
    close = exact or [run for run in runs if text in run.id or text in run.arm]
    if len({(run.folder.parent, run.arm) for run in close}) == 1:
        return min(close, key=lambda run: (run.block, not run.finished))
    what = f"no run is called {text!r}" if not close else f"{len(close)} runs may be meant"
    raise QuestionError(
        what if text else f"it holds {len(runs)} runs",
        place=place,
        remedy=f"name one of: {_some(map(_named, close or runs))}",
    )


def _named(run: Run) -> str:
    return f"{run.id} ({run.arm}, block {run.block + 1})"


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f", and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more


def find_target(run: Run, text: str) -> CellSummary | Request:
    """A cell of `run` by (part of) its id, or a request by its id or a part that only it has.

    Of several shots (`aggressor`) it is the one whose first token took the median time; of an even
    number, the shorter of the middle two.
    Raises QuestionError where there is none, or several.
    """
    exact = [cell for cell in run.cells if cell.cell.id == text]
    cells = exact or [cell for cell in run.cells if text in cell.cell.id]
    if len(cells) == 1:
        return cells[0]
    if not cells and (request := _request(run, text)) is not None:
        return request
    several = f"{len(cells)} cells may be meant by {text!r}"
    raise QuestionError(
        several if cells else f"no cell or request is {text!r}",
        place=run.id,
        remedy=f"name one of: {_some(repr(cell.cell.id) for cell in cells or run.cells)}",
    )


def _request(run: Run, text: str) -> Request | None:
    close: list[Request] = []
    for request in run.requests():
        if request.id == text:
            return request
        if text in request.id:
            close.append(request)
    if len(close) > 1 and all(request.role == "aggressor" for request in close):
        return _median_shot(close)
    if len(close) > 1:
        raise QuestionError(
            f"{len(close)} requests may be meant by {text!r}",
            place=run.id,
            remedy=f"name one of: {_some(request.id for request in close)}",
        )
    return close[0] if close else None


def _median_shot(shots: Sequence[Request]) -> Request:
    """Those without a first token come last."""

    def wait(shot: Request) -> float:
        return float("inf") if shot.first_ns is None else shot.first_ns - shot.send_ns

    return sorted(shots, key=wait)[(len(shots) - 1) // 2]
