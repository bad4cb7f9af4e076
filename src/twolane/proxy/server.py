"""The process: listen, say where, end well.

SIGTERM stops listening and waits for what has begun; SIGINT ends at once. In both cases every
handoff is released or counted before the process ends. SIGHUP reads the configuration again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable

import uvloop

from twolane.errors import QuestionError, TwolaneError
from twolane.proxy import workers
from twolane.proxy.config import ProxyConfig
from twolane.proxy.service import Proxy

log = logging.getLogger(__name__)

_BACKLOG = 4096  # a burst must not wait a second for a repeated SYN


Reload = Callable[[], ProxyConfig]


def run(config: ProxyConfig, reload: Reload | None = None) -> None:
    """Serve until a signal. Prints `{"listening": "http://HOST:PORT"}` once it accepts.

    On SIGHUP the configuration becomes what `reload` says.
    """
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a stream takes two
    if config.workers > 1:
        workers.run(
            config,
            lambda one, ready: _run_one(one, ready, reload),
            lambda port: _say(config.host, port),
        )
    else:
        _run_one(config, lambda port: _say(config.host, port), reload)


def _run_one(config: ProxyConfig, ready: Callable[[int], None], reload: Reload | None) -> None:
    def started(port: int) -> None:
        # What exists now exists for good: left to the collector, it stalls every stream for some
        # milliseconds whenever the oldest generation is collected.
        gc.collect()
        gc.freeze()
        ready(port)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, started, reload))


def _say(host: str, port: int) -> None:
    sys.stdout.write(json.dumps({"listening": f"http://{host}:{port}"}) + "\n")
    sys.stdout.flush()


async def serve(
    config: ProxyConfig,
    ready: Callable[[int], None] | None = None,
    reload: Reload | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled. `ready` is told the port.

    Raises QuestionError where the address cannot be bound.
    """
    listener = _bind(config)
    proxy = Proxy(config)
    stop = _Stop()
    reloading = _Reloading(proxy, reload)
    try:
        await proxy.start()
        server = await asyncio.get_running_loop().create_server(
            proxy.client, sock=listener, backlog=_BACKLOG
        )
        if ready is not None:
            ready(listener.getsockname()[1])
        try:
            await stop.wait()
        finally:
            server.close()
        if not stop.at_once:
            await _drain(proxy, stop, config.drain_timeout_s)
    finally:
        listener.close()
        reloading.forget()
        stop.forget()
        await proxy.close()


def _bind(config: ProxyConfig) -> socket.socket:
    """Bound before the engines are warmed, so that a taken port is told at once."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if config.workers > 1:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise QuestionError(
            f"cannot listen: {error.strerror}",
            place=f"{config.host}:{config.port}",
            remedy="give another --port, or 0 for a free one",
        ) from None
    return listener


async def _drain(proxy: Proxy, stop: _Stop, timeout_s: float) -> None:
    """Until all is answered, the time is over, or somebody interrupts."""
    log.info("draining %d connections", len(proxy.clients))
    drained = asyncio.create_task(proxy.drain())
    interrupted = asyncio.create_task(stop.wait_at_once())
    await asyncio.wait(
        (drained, interrupted), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
    )
    for task in (drained, interrupted):
        task.cancel()


class _Reloading:
    """SIGHUP: the configuration is read again; where it is faulty, the old one stays. A signal that
    comes while new engines are warmed up is followed by another reading, when they are warm."""

    def __init__(self, proxy: Proxy, reload: Reload | None) -> None:
        self._proxy = proxy
        self._reload = reload
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._wanted = False
        with contextlib.suppress(ValueError, RuntimeError):
            self._loop.add_signal_handler(signal.SIGHUP, self._begin)

    def _begin(self) -> None:
        if self._reload is None:
            log.warning("SIGHUP: there is no --config FILE to read again")
            return
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._read_as_wanted(self._reload))
        else:
            log.info("SIGHUP: the configuration is read again when the present reload is over")

    async def _read_as_wanted(self, reload: Reload) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self._read(reload)
            except Exception:
                log.exception("defect while reloading")

    async def _read(self, reload: Reload) -> None:
        try:
            config = await asyncio.to_thread(reload)  # a slow disk must not stop the streams
            config = config.for_worker() if config.workers > 1 else config
        except (TwolaneError, OSError, ValueError) as error:
            log.error("not reloaded, the old configuration stays: %s", error)
            return
        except Exception:  # whatever is in the file, what is served now goes on
            log.exception("not reloaded, the old configuration stays")
            return
        await self._proxy.reload(config)

    def forget(self) -> None:
        with contextlib.suppress(ValueError, RuntimeError):
            self._loop.remove_signal_handler(signal.SIGHUP)
        if self._task is not None:
            self._task.cancel()


class _Stop:
    """The two signals, as events."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._any = asyncio.Event()
        self._at_once = asyncio.Event()
        # Signal handlers can be set in the main thread only; elsewhere the caller cancels.
        with contextlib.suppress(ValueError, RuntimeError):
            self._loop.add_signal_handler(signal.SIGTERM, self._any.set)
            self._loop.add_signal_handler(signal.SIGINT, self._interrupt)

    @property
    def at_once(self) -> bool:
        return self._at_once.is_set()

    def _interrupt(self) -> None:
        self._at_once.set()
        self._any.set()

    async def wait(self) -> None:
        await self._any.wait()

    async def wait_at_once(self) -> None:
        await self._at_once.wait()

    def forget(self) -> None:
        with contextlib.suppress(ValueError, RuntimeError):
            self._loop.remove_signal_handler(signal.SIGTERM)
            self._loop.remove_signal_handler(signal.SIGINT)
