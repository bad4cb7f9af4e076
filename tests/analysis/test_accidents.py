"""Anything may happen to the files: nothing raises, and no figure changes without a code."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.report.synthetic import make

from twolane.analysis.points import measure
from twolane.analysis.results import load
from twolane.comparison import as_json, compare_folders
from twolane.records import RunMeta, read_json, write_json
from twolane.report import html
from twolane.seal import close_run

FILES = ("run.json", "cells.jsonl", "requests.jsonl", "needle.json", "metrics.jsonl")
Values = dict[tuple[str, str], dict[str, float | None]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, every run sealed as its end does it."""
    folder = make(tmp_path_factory.mktemp("whole") / "demo", blocks=2)
    for run in load(folder).runs:
        meta = read_json(run.folder / "run.json", RunMeta)
        write_json(run.folder / "run.json", close_run(run.folder, meta))
    return folder


def clean(folder: Path) -> Values:
    return {(one.run.id, one.cell.id): one.values for one in measure(load(folder)) if not one.codes}


@st.composite
def accidents(draw: st.DrawFn, data: bytes) -> bytes:
    """What `data` may become: cut, doubled, zeroed, overwritten, lines swapped or repeated."""
    kind = draw(
        st.sampled_from(["cut", "lose", "double", "zero", "write", "swap", "repeat", "empty"])
    )
    start = draw(st.integers(0, max(len(data) - 1, 0)))
    end = min(len(data), start + draw(st.sampled_from([1, 2, 7, 100, 5_000])))
    lines = data.splitlines(keepends=True)
    one, other = (draw(st.integers(0, len(lines) - 1)) for _ in "ab")
    if kind == "swap":
        lines[one], lines[other] = lines[other], lines[one]
    if kind == "repeat":
        lines.insert(other, lines[one])
    if kind in ("swap", "repeat"):
        return b"".join(lines)
    middle = {
        "cut": b"", "lose": b"", "empty": b"", "double": data[start:end] * 2,
        "zero": bytes(end - start), "write": draw(st.binary(min_size=1, max_size=3)),
    }[kind]  # fmt: skip
    if kind == "empty":
        return b""
    return data[:start] + middle + (b"" if kind == "cut" else data[end:])


@pytest.mark.parametrize("name", FILES)
@settings(
    max_examples=int(os.environ.get("TWOLANE_ACCIDENTS", "8")), deadline=None, derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(data=st.data())
def test_no_figure_changes_without_a_code(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    before = clean(whole)
    folder = tmp_path_factory.mktemp("hurt") / "demo"
    shutil.copytree(whole, folder)
    path = load(folder).runs[data.draw(st.integers(0, 5))].folder / name
    path.write_bytes(data.draw(accidents(path.read_bytes())))

    after = clean(folder)
    assert {place: before[place] for place in after} == after
    results = load(folder)
    measure(results)
    assert len(after) == len(before) or len(results.faults)
    assert as_json(compare_folders(folder))["format"] == 1
    assert html(load(folder)).endswith("</html>\n")


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_files_place_is_named_and_not_waited_for(
    whole: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(whole, folder)
    run = load(folder).runs[0]
    (run.folder / name).unlink()
    os.mkfifo(run.folder / name)
    found = load(folder)
    assert run.id not in {one.id for one in found.runs}
    assert any("neither a file nor a folder" in fault.why for fault in found.faults)
