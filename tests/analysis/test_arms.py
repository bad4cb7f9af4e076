"""What an arm is made of, from run.json alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.report.synthetic import make

from twolane.analysis.arms import alike, arms, budget_of, flags
from twolane.analysis.results import load


def test_kind_budget_and_devices(tmp_path: Path) -> None:
    found = arms(load(make(tmp_path / "r", blocks=2)).runs)
    assert [(a.name, a.kind, a.budget, a.devices) for a in found.values()] == [
        ("copies_2048", "copies", 2048, 2),
        ("copies_256", "copies", 256, 2),
        ("split_1p1d", "split", 2048, 2),
    ]
    assert found["copies_2048"].others == found["copies_256"].others
    assert found["copies_2048"].others != found["split_1p1d"].others


@pytest.mark.parametrize(
    ("argv", "budget"),
    [
        (["--max-num-batched-tokens", "256"], 256),
        (["--max-num-batched-tokens=512", "--port", "1"], 512),
        (["--max-num-batched-tokens"], None),
        (["--port", "8000"], None),
        ([], None),
    ],
)
def test_budget_in_either_spelling(argv: list[str], budget: int | None) -> None:
    assert budget_of(argv) == budget


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"env": {"CUDA_VISIBLE_DEVICES": "3"}}, True),
        ({"env": {"TWOLANE_KV_RUNS": "1"}}, False),
        ({"argv": ["--block-size", "128"]}, False),
        ({"proxy": ["proxy", "--port", "9", "--prefill", "p=http://b"]}, True),
        ({"proxy": ["proxy", "--port", "7", "--tokenise-once"]}, False),
    ],
)
def test_arms_run_alike_if_all_that_they_were_told_is(
    tmp_path: Path, changed: dict[str, Any], same: bool
) -> None:
    split = next(run for run in load(make(tmp_path / "r")).runs if run.arm == "split_1p1d")
    argv = ["proxy", "--port", "7", "--prefill", "p=http://a"]
    first = msgspec.structs.replace(split.meta, proxy={"argv": argv})
    engines = [
        msgspec.structs.replace(
            engine,
            argv=[*engine.argv, *changed.get("argv", [])],
            env={**engine.env, **changed.get("env", {})},
        )
        for engine in first.engines
    ]
    proxy = {"argv": changed.get("proxy", argv)}
    second = msgspec.structs.replace(first, arm="second", engines=engines, proxy=proxy)
    runs = [dataclasses.replace(split, meta=meta) for meta in (first, second)]
    assert alike(arms(runs).values()) == ([("split_1p1d", "second")] if same else [])


def test_short_options_of_a_command_line_are_flags_too_and_negative_numbers_are_none() -> None:
    argv = ["vllm", "serve", "m", "-tp", "2", "--seed", "-1", "-asc=4", "--enforce-eager", "-q"]
    assert flags(argv) == {
        "-tp": "2", "--seed": "-1", "-asc": "4", "--enforce-eager": "given", "-q": "given",
    }  # fmt: skip


def test_a_long_option_is_the_same_with_underscores() -> None:
    argv = ["--api_server_count", "2", "--max_num_batched_tokens=512", "--a_b.c_d", "x_y", "-a_b"]
    assert flags(argv) == {
        "--api-server-count": "2", "--max-num-batched-tokens": "512", "--a-b.c_d": "x_y",
        "-a_b": "given",
    }  # fmt: skip
    assert budget_of(argv) == 512


@pytest.mark.parametrize("text", ["\u00b2", "9" * 5000, "-1", ""])
def test_a_budget_that_is_no_number_is_none(text: str) -> None:
    assert budget_of(["--max-num-batched-tokens", text]) is None
