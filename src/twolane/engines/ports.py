"""Free ports, and proof that a port is free."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from twolane.errors import AnswerError, QuestionError

# Below the kernel's ephemeral range, so that no outgoing connection takes a chosen port between
# the choice and the engine's bind, a minute later.
_FIRST, _LAST = 20000, 32000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether an engine could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose(count: int, *, exclude: set[int] | None = None) -> list[int]:
    """`count` distinct free ports, at random so that two campaigns rarely want the same.

    Raises AnswerError if so many are not free.
    """
    taken = set(exclude or ())
    last = min(_LAST, _ephemeral_start() - 1)
    candidates = random.sample(range(_FIRST, last), k=min(last - _FIRST, 4000))
    found: list[int] = []
    for port in candidates:
        if port not in taken and is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise AnswerError(
        f"only {len(found)} of {count} ports are free between {_FIRST} and {last}",
        place="127.0.0.1",
        remedy="end the processes that hold them",
    )


def require_free(port: int, *, what: str, host: str = "127.0.0.1") -> None:
    """Raises QuestionError unless `port` is free."""
    if not is_free(port, host):
        raise QuestionError(
            f"port {port} for {what} is taken", place=f"{host}:{port}",
            remedy="end the process that holds it, or give another port (0 picks a free one)",
        )  # fmt: skip


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768
