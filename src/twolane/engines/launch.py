"""From a layout to the command and environment of each engine.

What vLLM needs for a prefill/decode pair, and what the measurement needs, is derived here and
nowhere else; whatever the user's YAML says wins. The result is written to run.json, so nothing
is hidden.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twolane.config import Engine, Layout, Model
from twolane.config.models import Platform
from twolane.engines import nixl_delay, ports
from twolane.errors import QuestionError

_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"


@dataclass(frozen=True)
class Launch:
    """All that is needed to start one engine."""

    engine: Engine
    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    side_channel_port: int | None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def launches(model: Model, layout: Layout, platform: Platform) -> list[Launch]:
    """One Launch per engine of `layout`, on the ports that the YAML asks for or that are free now.

    Raises QuestionError where the YAML asks for something that is no port.
    """
    chosen = iter(ports.choose(2 * len(layout.engines)))
    made: list[Launch] = []
    for engine in layout.engines:
        port = _port(engine, "--port", _value(engine.args, "--port"), next(chosen))
        asked, split = engine.env.get(SIDE_CHANNEL), engine.role != "both"
        side = _port(engine, SIDE_CHANNEL, asked, next(chosen)) if split else None
        command = tuple(argv(model, engine, platform, port))
        made.append(Launch(engine, command, environment(engine, platform, side), port, side))
    return made


def require_ports(made: Sequence[Launch]) -> None:
    """Raises QuestionError unless every port of these launches is free."""
    for launch in made:
        ports.require_free(launch.port, what=f"engine {launch.engine.name}")
        if launch.side_channel_port is not None:
            what = f"side channel of {launch.engine.name}"
            ports.require_free(launch.side_channel_port, what=what)


def _port(engine: Engine, name: str, asked: str | None, chosen: int) -> int:
    if asked is None:
        return chosen
    if not asked.isdecimal() or not 0 < int(asked) < 65536:
        raise QuestionError(
            f"{name} of {engine.name} is {asked!r}",
            place=engine.places.get(name, engine.place),
            remedy="give a port between 1 and 65535, or none: a free one is then chosen",
        )
    return int(asked)


def argv(model: Model, engine: Engine, platform: Platform, port: int) -> list[str]:
    """The server's command line; flags that the user gave are not given again."""
    command = (
        # The CPU wheel's distribution is not called `vllm`, so its `vllm` command cannot find
        # its own version; the module that the command would run works.
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model.path]
        if platform == "cpu"
        else [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model.path]
    )
    wanted: list[tuple[str, str | None]] = [
        ("--served-model-name", model.name),
        ("--host", "127.0.0.1"),
        ("--port", str(port)),
        ("--enable-prompt-tokens-details", None),
        ("--enable-per-request-metrics", None),
    ]
    if platform == "gpu":
        wanted.append(("--tensor-parallel-size", str(engine.tp)))
    if engine.role != "both":
        wanted.append(("--kv-transfer-config", json.dumps(_connector(engine))))
    for flag, value in wanted:
        if not given(engine.args, flag):
            command += [flag] if value is None else [flag, value]
    return [*command, *engine.args]


def _connector(engine: Engine) -> dict[str, str]:
    return {"kv_connector": "NixlConnector", "kv_role": _ROLES[engine.role]}


def given(args: Sequence[str], flag: str) -> bool:
    """Whether `args` sets `flag`, in any of the spellings that vLLM's parser takes."""
    plain = flag.replace("_", "-")
    return any(_flag(a) == plain or _flag(a).startswith(plain + ".") for a in args)


def _flag(arg: str) -> str:
    return arg.split("=", 1)[0].replace("_", "-") if arg.startswith("--") else ""


def _value(args: Sequence[str], flag: str) -> str | None:
    """What `args` gives `flag`; empty where the value is missing."""
    for i, arg in enumerate(args):
        if _flag(arg) == flag:
            return arg.split("=", 1)[1] if "=" in arg else "".join(args[i + 1 : i + 2])
    return None


def environment(engine: Engine, platform: Platform, side_channel: int | None) -> dict[str, str]:
    """Variables for one engine; the user's own win."""
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # /reset_prefix_cache exists only in this mode; engines listen on loopback alone.
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if platform == "cpu":
        cores = ",".join(map(str, engine.devices))
        env |= {
            # Without this, vLLM guesses the platform from the name of its distribution.
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "OMP_NUM_THREADS": str(len(engine.devices)),
            # See nixl_delay.py: without it a split's engine has half a core.
            nixl_delay.VARIABLE: "1000",
        }
        if not given(engine.args, "--kv-cache-memory-bytes"):  # the variable would win
            env["VLLM_CPU_KVCACHE_SPACE"] = "1"
    else:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, engine.devices))
    if side_channel is not None:
        env |= {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            SIDE_CHANNEL: str(side_channel),
            "VLLM_KV_CACHE_LAYOUT": "HND",
        }
    return env | dict(engine.env)
