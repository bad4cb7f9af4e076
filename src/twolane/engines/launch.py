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
    """One Launch per engine of `layout`, on ports that are free now.

    Raises QuestionError where the YAML asks for a port that is taken.
    """
    chosen = iter(ports.choose(2 * len(layout.engines)))
    made: list[Launch] = []
    for engine in layout.engines:
        port = _asked_port(engine.args, "--port")
        if port is None:
            port = next(chosen)
        else:
            ports.require_free(port, what=f"engine {engine.name}")
        side = _side_channel(engine, next(chosen)) if engine.role != "both" else None
        made.append(
            Launch(
                engine,
                tuple(argv(model, engine, platform, port)),
                environment(engine, platform, side),
                port,
                side,
            )
        )
    return made


def _side_channel(engine: Engine, chosen: int) -> int:
    if SIDE_CHANNEL not in engine.env:
        return chosen
    port = int(engine.env[SIDE_CHANNEL])
    ports.require_free(port, what=f"side channel of {engine.name}")
    return port


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


def _asked_port(args: Sequence[str], flag: str) -> int | None:
    for i, arg in enumerate(args):
        if _flag(arg) == flag:
            value = arg.split("=", 1)[1] if "=" in arg else args[i + 1]
            return int(value)
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
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # See nixl_delay.py: without it a split's engine has half a core.
            nixl_delay.VARIABLE: "1000",
        }
    else:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, engine.devices))
    if side_channel is not None:
        env |= {
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            SIDE_CHANNEL: str(side_channel),
            "VLLM_KV_CACHE_LAYOUT": "HND",
        }
    return env | dict(engine.env)
