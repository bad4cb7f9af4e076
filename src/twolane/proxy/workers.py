"""Several processes that listen on one port, each a proxy of its own.

The kernel spreads connections among them (SO_REUSEPORT). They share nothing: each counts its own
handoffs, sees its own load and admits its share of the limits, so that a limit holds over all of
them, but one worker may refuse while another has room. Metrics are told by whoever is asked, for
all (`Board`).

Rules of this file: processes and files; no requests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

from twolane.errors import AnswerError, QuestionError
from twolane.proxy.config import ProxyConfig

RunOne = Callable[[ProxyConfig, Callable[[int], None]], None]
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


def run(config: ProxyConfig, one: RunOne, ready: Callable[[int], None]) -> None:
    """Run `config.workers` workers until they end; signals go to all of them.

    `ready` is told the port once all accept. Raises AnswerError where one ends by itself, after
    the others were told to stop; QuestionError where the port is taken.
    """
    with _held_port(config) as port, tempfile.TemporaryDirectory() as folder:
        reader, writer = os.pipe()
        config = replace(config.for_worker(), port=port, shared=Path(folder))
        pids = {_start(replace(config, worker=i), one, writer) for i in range(config.workers)}
        os.close(writer)
        parent = _Parent(pids)
        if _count(reader, config.workers) == config.workers:
            ready(port)
        parent.wait()


@contextlib.contextmanager
def _held_port(config: ProxyConfig) -> Iterator[int]:
    """The port that all will listen on, kept for them while none does yet."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            holder.bind((config.host, config.port))
        except OSError as error:
            raise QuestionError(
                f"cannot listen: {error.strerror}",
                place=f"{config.host}:{config.port}",
                remedy="give another --port, or 0 for a free one",
            ) from None
        yield int(holder.getsockname()[1])


def _start(config: ProxyConfig, one: RunOne, writer: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        one(config, lambda _: _accepting(writer))
        code = 0
    except BaseException as error:  # whatever it is, a worker must not run on as its parent
        sys.stderr.write(f"worker {config.worker}: {error}\n")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _accepting(writer: int) -> None:
    os.write(writer, b".")
    os.close(writer)


def _count(reader: int, wanted: int) -> int:
    """How many workers accept; fewer than `wanted` where some have ended before."""
    with os.fdopen(reader, "rb") as file:
        return len(file.read(wanted))


class _Parent:
    """Waits for the workers and passes signals on."""

    def __init__(self, pids: set[int]) -> None:
        self._left = pids
        self._told = False
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._told = self._told or number != signal.SIGHUP
        for pid in self._left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self) -> None:
        failed = False
        while self._left:
            pid, status = os.wait()
            self._left.discard(pid)
            failed = failed or status != 0
            if not self._told:
                failed = True
                self._pass_on(signal.SIGTERM, None)
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        if failed:
            raise AnswerError("a worker ended by itself", remedy="its last words are on stderr")


class Board:
    """Where workers leave their metrics for each other."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._folder = folder
        self._worker = worker

    def leave(self, text: bytes) -> None:
        draft = self._folder / f"{self._worker}.draft"
        draft.write_bytes(text)
        draft.replace(self._folder / f"{self._worker}.prom")

    def with_others(self, text: bytes) -> bytes:
        """Our exposition and what the others left last, each sample with its worker's number."""
        texts = {int(p.stem): p.read_bytes() for p in self._folder.glob("*.prom")}
        return merged(texts | {self._worker: text})


def merged(texts: dict[int, bytes]) -> bytes:
    """One exposition of several workers': families together, a label `worker` in each sample."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for worker, text in sorted(texts.items()):
        family = b""
        for line in text.splitlines():
            if line.startswith(b"#"):
                family = line.split(b" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, b'worker="%d"' % worker))
    lines = [line for name, head in heads.items() for line in (*head, *samples.get(name, ()))]
    return b"\n".join(lines) + b"\n"


def _labelled(sample: bytes, label: bytes) -> bytes:
    name, found, rest = sample.partition(b"{")
    if found:
        return b"%b{%b,%b" % (name, label, rest)
    name, _, value = sample.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)
