"""What campaigns of the same model took on this host before, whatever they were called.

Rules of this file: it reads; it takes a folder by its first readable run. Folders that were copied
here from another host, or were measured on other devices, teach nothing, and neither do runs whose
steps are not all there, or not in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from twolane import devices
from twolane.clock import NS
from twolane.config import Campaign
from twolane.records import UNREADABLE, Event, RunMeta, read_json, read_jsonl

MOST_FOLDERS = 12
"""The newest; older ones are of an older twolane, and reading takes time."""

_MOST_BYTES = 20 << 20  # of one folder's events: the largest campaign that was published has 0.6 MB


_MOST_S = 7 * 24 * 3600  # a run that took longer has a damaged stamp
_WITHIN = ("launch", "gate", "cell", "stop", "done", "failed")
_APART = Event(t_ns=0, run="", step="begin", text="")  # no step of one run ends in the next


def events(folder: Path) -> Iterator[Event]:
    """The steps of one campaign's runs, of those that can be believed; none if there are none."""
    path = folder / "events.jsonl"
    told = read_jsonl(path, Event, []) if path.exists() else ()
    for run in _runs(told):
        if _in_order(run) and _whole(run, folder / "runs"):
            yield _APART
            yield from run


def _runs(told: Iterable[Event]) -> Iterator[list[Event]]:
    """What lies between one launch and the next."""
    steps: list[Event] = []
    for event in told:
        if event.step in ("begin", "launch"):
            if steps:
                yield steps
            steps = []
        if event.step in _WITHIN:
            steps.append(event)
    if steps:
        yield steps


def _in_order(run: Sequence[Event]) -> bool:
    at = [event.t_ns for event in run]
    alone = len({(event.run, event.arm) for event in run}) == 1
    lasts = at[0] >= 0 and at[-1] - at[0] <= _MOST_S * NS
    return alone and lasts and at == sorted(at) and run[0].step == "launch"


def _whole(run: Sequence[Event], runs: Path) -> bool:
    """Whether its gates and cells are those that run.json names, as far as it came."""
    try:
        meta = read_json(runs / run[0].run / "run.json", RunMeta)
    except (OSError, ValueError, *UNREADABLE):
        return True
    if not meta.cells or meta.continues:
        return True
    asked = [cell.id for cell in meta.cells]
    driven = [event.cell for event in run if event.step == "cell"]
    gates = meta.config.get("gates")
    if isinstance(gates, list):
        asked = [str(gate.get("id")) for gate in gates if isinstance(gate, dict)] + asked
        driven = [e.cell for e in run if e.step == "gate" and e.cell != "greedy"] + driven
    return driven == (asked if run[-1].step == "done" else asked[: len(driven)])


def of_model(campaign: Campaign, results: Path) -> list[Path]:
    """Folders under `results` in which the campaign's model was measured on this host, the newest
    last."""
    if not results.is_dir():
        return []
    found = []
    for path in results.glob("*/events.jsonl"):
        known = path.stat()
        if known.st_size <= _MOST_BYTES:
            found.append((known.st_mtime_ns, path.parent))
    here = _host(devices.describe())
    newest = [folder for _, folder in sorted(found)][-MOST_FOLDERS:]
    return [folder for folder in newest if _alike(_first(folder), campaign, here)]


def _first(folder: Path) -> RunMeta | None:
    for path in sorted(folder.glob("runs/*/run.json")):
        try:
            return read_json(path, RunMeta)
        except (OSError, *UNREADABLE):
            continue
    return None


def _alike(meta: RunMeta | None, campaign: Campaign, here: tuple[Any, ...]) -> bool:
    if meta is None or meta.model != campaign.model.name:
        return False
    node = meta.config.get("node")
    kind = node.get("platform") if isinstance(node, dict) else None
    return kind == campaign.models.node.platform and _host(meta.host) == here


def _host(told: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a host decides how fast it is."""
    gpus, cores = told.get("gpus"), told.get("cores")
    names = [one.get("name") for one in gpus if isinstance(one, dict)] if gpus else []
    return told.get("cpu"), len(cores) if isinstance(cores, list) else cores, names
