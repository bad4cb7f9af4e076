"""What this host adds to a deployment: taken ports, free memory, nixl, the model's folder.

Rules of this file: reading only, and total: what cannot be read is left unknown. It is for engines
that will run here, in this interpreter; a deployment of other hosts is judged without it.
"""

from __future__ import annotations

import json
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from psutil import net_if_addrs

from twolane.diagnosis.deployment import Deployment, Side

LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def with_host(deployment: Deployment) -> Deployment:
    """`deployment` with what this host knows; call it before engines start, not while they run."""
    models = [Side(engine, deployment).args.model for engine in deployment.engines]
    trouble = next((t for m in models if m and (t := model_trouble(Path(m)))), "")
    return msgspec.structs.replace(
        deployment,
        listening=sorted(listening_ports()),
        nixl=find_spec("nixl") is not None,
        model_trouble=trouble,
        free_gib=free_gib(),
        addresses=sorted(addresses()),
    )


def free_gib(meminfo: Path = Path("/proc/meminfo")) -> float | None:
    """Memory that new processes can have without swapping."""
    try:
        rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(rows["MemAvailable"].split()[0]) / (1 << 20)
    except (OSError, ValueError, KeyError, IndexError):
        return None


def addresses() -> set[str]:
    """Every address of this host."""
    return {address.address for card in net_if_addrs().values() for address in card}


def listening_ports(tables: tuple[Path, ...] = TABLES) -> set[int]:
    """TCP ports on which somebody listens."""
    ports: set[int] = set()
    for table in tables:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in (row.split() for row in rows):
            if len(fields) > 3 and fields[3] == LISTEN:
                ports.add(int(fields[1].rsplit(":", 1)[-1], 16))
    return ports


def model_trouble(folder: Path) -> str:
    """What is wrong with a model's folder, or nothing; a name that is no folder is not judged."""
    if not folder.is_dir():
        return ""
    config = read_json(folder / "config.json")
    if config is None:
        return f"{folder}/config.json is missing or no JSON object"
    weights = sorted(folder.glob("*.safetensors"))
    short = next((t for w in weights if (t := short_weights(w))), "")
    return short or absent_weights(folder, weights)


def read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def absent_weights(folder: Path, weights: list[Path]) -> str:
    """Names the files that the index wants and the folder lacks."""
    index = read_json(folder / "model.safetensors.index.json") or {}
    wanted = index.get("weight_map")
    names = set(map(str, wanted.values())) if isinstance(wanted, dict) else set()
    missing = sorted(names - {path.name for path in weights})
    return f"{folder} lacks {', '.join(missing[:3])}" if missing else ""


def short_weights(path: Path) -> str:
    """Compares a safetensors file's size with what its header promises."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, size)))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name[:2] != "__"]
        promised = 8 + length + max(ends, default=0)
    except (OSError, ValueError, struct.error, TypeError, KeyError, IndexError, AttributeError):
        return f"{path}: its header cannot be read"
    return f"{path}: {size} bytes of {promised}" if size < promised else ""
