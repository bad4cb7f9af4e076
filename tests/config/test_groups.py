"""An arm put on other devices stays the arm that was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from twolane.cli import cli
from twolane.config import Arm, Campaign, groups, load_campaign, regrouped
from twolane.errors import QuestionError

DEMO = Path(__file__).parents[2] / "configs/demo.yaml"


def arm(name: str = "split_1p1d") -> tuple[Campaign, Arm]:
    demo = load_campaign(DEMO)
    return demo, next(one for one in demo.arms if one.name == name)


def test_groups_get_other_devices_and_nothing_else_changes() -> None:
    demo, split = arm()
    there = regrouped(demo, split, ["GROUP_A=6", "GROUP_B=4"])
    (moved,) = there.arms
    assert [engine.devices for engine in moved.layout.engines] == [(6,), (4,)]
    assert there.models.node.groups == {"GROUP_A": (6,), "GROUP_B": (4,)}
    back = [replace(e, devices=old.devices) for e, old in zip(
        moved.layout.engines, split.layout.engines, strict=True)]  # fmt: skip
    assert tuple(back) == split.layout.engines


def test_a_group_that_is_not_named_stays_where_it_is() -> None:
    demo, split = arm()
    (moved,) = regrouped(demo, split, ["GROUP_B=3"]).arms
    assert [engine.devices for engine in moved.layout.engines] == [(0,), (3,)]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["GROUP_A"], "is not a group with its devices"),
        (["GROUP_A="], "is not a group with its devices"),
        (["GROUP_A=-1"], "is not a group with its devices"),
        (["GROUP_C=1"], "no engine of the arm is on a group 'GROUP_C'"),
        (["GROUP_A=1"], "device 1 would be in GROUP_A and in GROUP_B"),
        (["GROUP_A=2,2"], "device 2 is named twice for GROUP_A"),
        (["GROUP_A=" + "1" * 5000], "is not a group with its devices"),
        (["GROUP_A=3", "GROUP_A=4"], "GROUP_A is given twice"),
    ],
)
def test_what_cannot_be_is_refused_with_the_options_name(words: list[str], what: str) -> None:
    demo, split = arm()
    with pytest.raises(QuestionError, match=what) as refused:
        regrouped(demo, split, words)
    assert refused.value.place == "--group"
    assert refused.value.remedy


def test_a_group_of_gpus_keeps_its_number_and_cores_need_not() -> None:
    demo, split = arm()
    assert regrouped(demo, split, ["GROUP_A=2,3"]).models.node.groups["GROUP_A"] == (2, 3)
    node = replace(demo.models.node, platform="gpu")
    gpus = replace(demo, models=replace(demo.models, node=node))
    with pytest.raises(QuestionError, match="GROUP_A had 1 GPUs, 2 are named"):
        regrouped(gpus, split, ["GROUP_A=2,3"])


def test_the_example_uses_what_is_here_or_says_nothing() -> None:
    _, split = arm()
    assert groups.example(split, {7, 5}) == "--group GROUP_A=5 --group GROUP_B=7"
    assert groups.example(split, {7}) == ""


@pytest.mark.parametrize(
    ("here", "remedy"),
    [
        ({4, 5}, "name devices of this host, for one: --group GROUP_A=4 --group GROUP_B=5"),
        ({4}, "take a host with 2 of them, then name those with --group"),
    ],
)
def test_up_on_a_host_with_other_devices_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: set[int], remedy: str
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: here)
    words = ["up", str(DEMO), "split_1p1d", "--port", "0", "--out", str(tmp_path)]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 2, told.output
    assert remedy in told.output


def test_the_files_of_an_arm_are_written_for_the_devices_that_are_named(tmp_path: Path) -> None:
    words = ["up", str(DEMO), "split_1p1d", "--write", str(tmp_path / "w"), "--group", "GROUP_A=9"]
    told = CliRunner().invoke(cli, words)
    assert told.exit_code == 0, told.output
    unit = (tmp_path / "w/systemd/twolane-split_1p1d-prefill_a.service").read_text()
    assert "CPUAffinity=9\n" in unit
