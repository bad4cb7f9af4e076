"""A missing or wrong engine is named before anything starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from twolane.config import Layout, load_campaign
from twolane.engines import installed
from twolane.errors import QuestionError

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


@pytest.fixture
def layouts() -> list[Layout]:
    return [arm.layout for arm in load_campaign(DEMO).arms]


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == module else real(name, *a)
    )


def test_what_the_locks_install_is_right(layouts: list[Layout]) -> None:
    installed.require("cpu", layouts)


@pytest.mark.parametrize("module", ["vllm", "nixl"])
def test_a_missing_engine(
    monkeypatch: pytest.MonkeyPatch, layouts: list[Layout], module: str
) -> None:
    without(monkeypatch, module)
    with pytest.raises(QuestionError, match="not installed") as caught:
        installed.require("cpu", layouts)
    assert "scripts/setup" in caught.value.remedy


def test_copies_need_no_nixl(monkeypatch: pytest.MonkeyPatch, layouts: list[Layout]) -> None:
    without(monkeypatch, "nixl")
    installed.require("cpu", [layout for layout in layouts if not layout.split])


@pytest.mark.parametrize(
    ("version", "what"), [(None, "not the CPU build"), ("0.31.0", "0.31.0 is installed")]
)
def test_a_wrong_wheel(
    monkeypatch: pytest.MonkeyPatch, layouts: list[Layout], version: str | None, what: str
) -> None:
    def found(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)
    with pytest.raises(QuestionError, match=what):
        installed.require("cpu", layouts)
