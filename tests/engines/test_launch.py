"""From a layout to commands: what the user says wins, and what is no port is refused in place."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from twolane.config import Engine, Layout, Model, load_campaign
from twolane.engines.launch import SIDE_CHANNEL, environment, launches, require_ports
from twolane.errors import QuestionError

DEMO = load_campaign(Path(__file__).parents[2] / "configs/demo.yaml")
SPLIT = next(arm.layout for arm in DEMO.arms if arm.layout.split)
MODEL: Model = DEMO.model


def changed(*args: str, **env: str) -> tuple[Engine, Layout]:
    """The split's prefill engine with more arguments and variables, and a layout of it alone."""
    base = SPLIT.engines[0]
    engine = dataclasses.replace(base, args=(*base.args, *args), env={**base.env, **env})
    return engine, Layout("alone", (engine,))


def test_kv_memory_asked_for_as_an_option_is_not_overruled_by_the_variable() -> None:
    asked, _ = changed("--kv-cache-memory-bytes", "2G")
    plain, _ = changed()
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(asked, "cpu", None)
    assert environment(plain, "cpu", None)["VLLM_CPU_KVCACHE_SPACE"] == "1"


def test_asked_ports_are_taken_as_they_are() -> None:
    _, layout = changed("--port=23456", **{SIDE_CHANNEL: "23457"})
    (launch,) = launches(MODEL, layout, "cpu")
    assert (launch.port, launch.side_channel_port) == (23456, 23457)
    assert launch.env[SIDE_CHANNEL] == "23457"


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "65536"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(QuestionError, match="is "):
        launches(MODEL, changed("--port", text)[1], "cpu")
    with pytest.raises(QuestionError, match=SIDE_CHANNEL):
        launches(MODEL, changed(**{SIDE_CHANNEL: text})[1], "cpu")
    if not text:
        with pytest.raises(QuestionError, match="--port"):
            launches(MODEL, changed("--port")[1], "cpu")


def test_a_taken_port_is_named_before_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        made = launches(MODEL, changed(**{SIDE_CHANNEL: port})[1], "cpu")
        with pytest.raises(QuestionError, match="side channel of prefill_a"):
            require_ports(made)
