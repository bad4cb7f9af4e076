"""What made the figures: the machine, the versions, and every engine as it was started."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from twolane.analysis.arms import budget_of
from twolane.analysis.results import Results, Run
from twolane.records import EngineMeta
from twolane.report.answer import NOTHING
from twolane.report.facts import anchor
from twolane.report.markup import Child, Markup, details, el, join, scroll, table
from twolane.report.metrics import day, number

MOST = 4  # runs whose commands stand side by side


def machine(results: Results) -> Markup:
    first = results.runs[0].meta
    facts = {
        "campaign": results.campaign,
        "model": f"{first.model}, context {first.context:,} tokens",
        "runs": f"{len(results.runs)}, blocks: {len(results.blocks)}",
        "started": day(first.started_at),
        "config hash": first.config_hash,
        **dict(map(_fact, first.host.items())),
    }
    gpus = first.host.get("gpus") or []
    return join(
        el("h3", "Machine"),
        _list(facts),
        _gpus(gpus) if gpus else None,
        el("h3", "Versions"),
        _list(dict(sorted(first.versions.items()))),
        el("h3", "Engines"),
        details("Every engine of every run", _engines(results), class_="data"),
        _started(results),
    )


def _list(facts: Mapping[str, str]) -> Markup:
    pairs = [el("div", el("dt", key), el("dd", value)) for key, value in facts.items()]
    return el("dl", pairs, class_="facts")


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> Markup:
    """Every GPU as NVML told it, one row each."""
    names = list(dict.fromkeys(name for gpu in gpus for name in gpu))
    rows = [[_fact((name, gpu.get(name, "")))[1] for name in names] for gpu in gpus]
    caption = "GPUs of the host, one by one"
    head = [_fact((name, ""))[0] for name in names]
    return details(caption, scroll(table(head, rows, caption=caption, class_="cards"), caption))


def _fact(item: tuple[str, Any]) -> tuple[str, str]:
    """A host fact with its name in words; bytes as GiB."""
    key, value = item
    if key == "gpus" and isinstance(value, list):
        counts = Counter(str(gpu.get("name", "GPU")) for gpu in value)
        return "GPUs", ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
    if key.endswith("_bytes") and isinstance(value, int):
        return key.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB"
    return key.replace("_", " "), _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list) and len(value) > 1 and all(type(one) is int for one in value):
        return _runs(value)
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(one)}" for key, one in value.items())
    return msgspec.json.encode(value, order="sorted").decode()


def _runs(values: Sequence[int]) -> str:
    """Whole numbers with neighbours joined: `0 to 63`."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    few = 3
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) >= few else ", ".join(map(str, run)) for run in runs
    )


_KV_BLOCK = "KV block, tokens"


def _engines(results: Results) -> Markup:
    head = ("arm", "block", "engine", "role", "group", "devices", "budget", "KV tokens")
    rows: list[tuple[str, ...]] = [
        (run.arm, str(run.block + 1), *_engine(engine))
        for run in results.runs
        for engine in run.meta.engines
    ]
    caption = "Engines and where they ran"
    names, kept = without_empty((*head, _KV_BLOCK, "ready, s"), rows)
    told = "A block is every arm once; a KV block is what an engine\u2019s cache is given out in."
    return join(
        el("p", told, class_="lede") if _KV_BLOCK in names else None,
        scroll(table(names, kept, caption=caption, class_="cards"), caption),
    )


def without_empty(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """A table without the columns in which no row has anything."""
    kept = [i for i, _ in enumerate(head) if any(row[i] not in ("", NOTHING) for row in rows)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _engine(engine: EngineMeta) -> tuple[str, ...]:
    return (
        engine.name,
        engine.role,
        engine.group,
        ", ".join(map(str, engine.devices)),
        _whole(budget_of(engine.argv)),
        _whole(engine.kv_tokens),
        _whole(engine.block_size),
        number(engine.ready_s),
    )


def _whole(value: int | None) -> str:
    return f"{value:,}" if value is not None else NOTHING


def _started(results: Results) -> Child:
    """How each run's engines were started; of many runs, in one fold."""
    each = [_commands(run) for run in results.runs]
    return details(f"How each of {len(each)} runs was started", each) if len(each) > MOST else each


def _commands(run: Run) -> Markup:
    """Command lines and environments, to start the same engines by hand."""
    texts = [_command(engine) for engine in run.meta.engines]
    return details(
        join("How ", el("span", run.arm, class_="arm"), f" was started, block {run.block + 1}"),
        [el("pre", text, tabindex="0") for text in texts],
        id_=anchor(run.id),
    )


def _command(engine: EngineMeta) -> str:
    variables = [f"{key}={shlex.quote(value)}" for key, value in sorted(engine.env.items())]
    return f"# {engine.name}\n" + " \\\n  ".join([*variables, _folded(engine.argv)])


def _folded(argv: list[str]) -> str:
    """A command line with one option a line."""
    lines: list[str] = []
    for word in argv:
        if lines and not word.startswith("--"):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return " \\\n  ".join(lines)
