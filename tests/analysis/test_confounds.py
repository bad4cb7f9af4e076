"""The confound ledger: what differs between arms besides the thing under test."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.report.synthetic import make

from twolane.analysis.confounds import Confound, between, confounds
from twolane.analysis.results import load
from twolane.records import EngineMeta, RunMeta, read_json, write_json

Edit = Callable[[RunMeta], RunMeta]


def found(folder: Path) -> dict[str, Confound]:
    return {one.what: one for one in confounds(load(folder))}


def edit(folder: Path, arm: str, change: Edit) -> None:
    """Changes the descriptions of an arm's runs."""
    for run in load(folder).of_arm(arm):
        path = run.folder / "run.json"
        write_json(path, change(read_json(path, RunMeta)))


def engines(change: Callable[[EngineMeta], EngineMeta]) -> Edit:
    return lambda meta: msgspec.structs.replace(meta, engines=[change(e) for e in meta.engines])


def test_the_declared_factor_is_listed_as_a_knob(tmp_path: Path) -> None:
    ledger = found(make(tmp_path / "r"))
    budget = ledger["flag --max-num-batched-tokens"]
    assert budget.severity == "knob"
    assert budget.values == {"copies_2048": "2048", "copies_256": "256", "split_1p1d": "2048"}
    assert "flag --port" not in ledger
    assert not [one for one in ledger.values() if one.severity == "severe"]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("versions", lambda m: msgspec.structs.replace(m, versions={"vllm": "0.31.0"})),
        ("host", lambda m: msgspec.structs.replace(m, host={"cpu": "another"})),
        ("context", lambda m: msgspec.structs.replace(m, context=4096)),
        ("devices", engines(lambda e: msgspec.structs.replace(e, devices=[e.devices[0] + 4]))),
        ("devices shared by engines", engines(lambda e: msgspec.structs.replace(e, devices=[0]))),
    ],
)
def test_a_severe_difference_is_named_for_the_arms_that_have_it(
    tmp_path: Path, what: str, change: Edit
) -> None:
    folder = make(tmp_path / "r")
    edit(folder, "split_1p1d", change)
    assert found(folder)[what].severity == "severe"
    ledger = confounds(load(folder))
    assert what in between(ledger, "copies_2048", "split_1p1d")
    assert between(ledger, "copies_2048", "copies_256") == ()


def test_less_kv_is_mild(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    edit(folder, "split_1p1d", engines(lambda e: msgspec.structs.replace(e, kv_tokens=1_000)))
    assert found(folder)["KV capacity, tokens"].severity == "mild"


def test_arms_that_swap_groups_between_blocks_are_on_the_same_devices(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", blocks=2)
    assert "devices" not in found(folder)
    assert "group" not in " ".join(found(folder))


def test_an_arm_that_always_runs_first_is_listed(tmp_path: Path) -> None:
    assert found(make(tmp_path / "one"))["place in the order"].severity == "mild"


def test_blocks_that_only_one_arm_has_do_not_separate_it_from_the_others(tmp_path: Path) -> None:
    """An arm's third block on another day's host enters no comparison with one that has two."""
    folder = make(tmp_path / "r", blocks=3)
    for run in load(folder).runs:
        if run.block == 2:
            if run.arm == "copies_256":
                shutil.rmtree(run.folder)
                continue
            path = run.folder / "run.json"
            meta = read_json(path, RunMeta)
            write_json(path, msgspec.structs.replace(meta, host={"cpu": "another"}))
    ledger = confounds(load(folder))
    assert "host" in {one.what for one in ledger}
    assert between(ledger, "copies_256", "copies_2048") == ()
    assert between(ledger, "copies_2048", "split_1p1d") == ()


def test_arms_that_never_met_in_a_block_are_compared_by_all_that_they_have() -> None:
    met = Confound(
        "host", "severe", {"a": "x", "b": "y"}, "", by_block={"a": {0: "x"}, "b": {1: "y"}}
    )
    assert met.separates("a", "b")
