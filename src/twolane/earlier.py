"""What campaigns of the same model took on this host before, whatever they were called.

Rules of this file: it reads; it takes a folder by its first readable run. Folders that were copied
here from another host, or were measured on other devices, teach nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from twolane import devices
from twolane.config import Campaign
from twolane.records import UNREADABLE, Event, RunMeta, read_json, read_jsonl

MOST_FOLDERS = 12
"""The newest; older ones are of an older twolane, and reading takes time."""

_MOST_BYTES = 20 << 20  # of one folder's events: the largest campaign that was published has 0.6 MB


def events(folder: Path) -> Iterator[Event]:
    """Events of one campaign's folder; none if there are none."""
    path = folder / "events.jsonl"
    return read_jsonl(path, Event, []) if path.exists() else iter(())


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
