"""The plugin changes NIXL's pause where it is asked to, and nothing otherwise."""

from __future__ import annotations

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace

import pytest

from twolane.engines import nixl_delay


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for NIXL's Python binding: it hands back the configuration it was given."""
    api = ModuleType("nixl_cu13._api")
    bind = SimpleNamespace(nixlAgent=lambda name, config: (name, config.pthrDelay))
    api.nixlBind = bind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nixl_cu13", ModuleType("nixl_cu13"))
    monkeypatch.setitem(sys.modules, "nixl_cu13._api", api)
    return bind


@pytest.mark.parametrize(("value", "delay"), [("1000", 1000), ("", 0), ("soon", 0), (None, 0)])
def test_the_pause_is_what_the_variable_says(
    binding: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, value: str | None, delay: int
) -> None:
    monkeypatch.delenv(nixl_delay.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(nixl_delay.VARIABLE, value)
    nixl_delay.register()
    assert binding.nixlAgent("x", SimpleNamespace(pthrDelay=0)) == ("x", delay)


def test_vllm_finds_the_plugin() -> None:
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [p.load() for p in points if p.name == "twolane_nixl_delay"] == [nixl_delay.register]
