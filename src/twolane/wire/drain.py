"""Many connections read at one wake-up, each read stamped by the kernel.

Rules of this file: the stamp of a read is when its last bytes reached the socket (the kernel's
own, SO_TIMESTAMPNS), so that neither a late wake-up nor the reading of a neighbour is in any
time; where a system has none, it is when the read returned. Sockets lie in an epoll of their own
that the event loop watches as one. A wake-up costs more than three reads do; while reads come
thick, it may therefore rest before it looks again: that delays what follows an answer's end by as
much, and no stamp.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from twolane import clock
from twolane.wire.http1 import ClientConnection

REST_S: Final = 0.002
"""Some twenty-five reads at 250 streams of 50 events a second."""

THICK: Final = 1000
"""Reads a second from which on it rests: two for each rest."""

JUDGED_NS: Final = 50 * clock.MS
READ_BYTES: Final = 16 * 1024  # some fifty events; what is left is ready at once again
STAMP: Final = struct.Struct("qq")  # a timespec: seconds, nanoseconds since the epoch
SO_TIMESTAMPNS: Final = 35  # Linux, asm-generic/socket.h; Python does not name it
ROOM: Final = socket.CMSG_SPACE(STAMP.size)


def from_epoch() -> int:
    """What leads from the epoch's clock to the monotonic one, nanoseconds, to some 100 ns: of
    several pairs of readings the one that took least."""
    pairs = []
    for _ in range(5):
        before, epoch, after = clock.now_ns(), time.time_ns(), clock.now_ns()
        pairs.append((after - before, (before + after) // 2 - epoch))
    return min(pairs)[1]


class Drain:
    """Opens connections and reads them all. `rests` allows it to rest between wake-ups."""

    def __init__(self, *, rests: bool = False) -> None:
        self.rests = rests
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._open: dict[int, _Socket] = {}
        self._from_epoch = from_epoch()
        self._since_ns = clock.now_ns()
        self._reads = 0
        self._thick = False
        self._loop.add_reader(self._epoll.fileno(), self._wake)
        # The kernel stamps while any socket asks for it, from shortly after the first did.
        self._asks_for_stamps = socket.socket()
        _ask_for_stamps(self._asks_for_stamps)

    async def connect(self, host: str, port: int) -> ClientConnection:
        """Open one connection. Raises OSError where that is refused or impossible."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(found, 1):
            try:
                sock = await self._connected(socket.socket(family, kind, protocol), address)
                break
            except OSError:
                if number == len(found):
                    raise
        _ask_for_stamps(sock)
        connection = ClientConnection()
        opened = _Socket(sock, connection, self)
        connection.connection_made(opened)
        return connection

    async def _connected(self, sock: socket.socket, address: Any) -> socket.socket:
        sock.setblocking(False)
        try:
            await self._loop.sock_connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """Abort what is open and read no more."""
        for opened in list(self._open.values()):
            opened.abort()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._asks_for_stamps.close()

    # ----------------------------------------------------------------------------- wake-ups

    def _wake(self) -> None:
        self._read_all()
        if self.rests and self._thick:
            self._loop.remove_reader(self._epoll.fileno())
            self._loop.call_later(REST_S, self._look_again)

    def _look_again(self) -> None:
        if self._epoll.closed:
            return
        try:
            self._read_all()
        finally:  # whatever one answer's reader raises, the others are read on
            if not self._epoll.closed:
                self._rest_or_watch()

    def _rest_or_watch(self) -> None:
        if self._thick:
            self._loop.call_later(REST_S, self._look_again)
        else:
            self._loop.add_reader(self._epoll.fileno(), self._wake)

    def _read_all(self) -> None:
        ready = self._epoll.poll(0, len(self._open) + 1)
        now_ns = clock.now_ns()
        if abs(now_ns - time.time_ns() - self._from_epoch) > clock.MS:
            self._from_epoch = from_epoch()  # the epoch's clock was set, or this was interrupted
        for fd, _ in ready:
            if (opened := self._open.get(fd)) is not None:  # a neighbour may have closed it
                opened.read(self._from_epoch, now_ns)
        self._reads += len(ready)
        if now_ns - self._since_ns > JUDGED_NS:
            self._thick = self._reads * clock.NS > THICK * (now_ns - self._since_ns)
            self._since_ns, self._reads = now_ns, 0

    # ------------------------------------------------------------------------ for the sockets

    def watch(self, fd: int, opened: _Socket) -> None:
        self._open[fd] = opened
        self._epoll.register(fd, select.EPOLLIN)

    def forget(self, fd: int) -> None:
        if self._open.pop(fd, None) is not None:
            self._epoll.unregister(fd)


def _ask_for_stamps(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class _Socket(asyncio.Transport):
    """One connected socket as its connection sees it."""

    __slots__ = (
        "_closing",
        "_connection",
        "_drain",
        "_fd",
        "_last_ns",
        "_loop",
        "_receive",
        "_recvmsg",
        "_sock",
        "_unsent",
    )

    def __init__(self, sock: socket.socket, connection: ClientConnection, drain: Drain) -> None:
        super().__init__()
        self._sock = sock
        self._fd = sock.fileno()
        self._recvmsg = sock.recvmsg
        self._receive = connection.received
        self._connection = connection
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._last_ns = 0
        self._unsent: deque[memoryview] = deque()
        drain.watch(self._fd, self)

    def read(self, from_epoch: int, now_ns: int) -> None:
        """Read once what is there. `from_epoch` leads from the kernel's clock to ours."""
        try:
            data, extra, _, _ = self._recvmsg(READ_BYTES, ROOM)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._lose(None)
            return
        stamp_ns = now_ns
        if extra:
            seconds, nanoseconds = STAMP.unpack(extra[0][2])
            stamp_ns = seconds * clock.NS + nanoseconds + from_epoch
        if not self._last_ns <= stamp_ns <= now_ns + clock.MS:  # the epoch's clock was set
            stamp_ns = max(now_ns, self._last_ns)
        self._last_ns = stamp_ns
        self._receive(data, stamp_ns)

    # -------------------------------------------------------------------------- asyncio's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        rest = memoryview(data)
        if not self._unsent:
            rest = rest[self._send(rest) :]
            if rest:
                self._loop.add_writer(self._fd, self._send_on)
                self._connection.pause_writing()
        if rest:
            self._unsent.append(rest)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _send(self, data: memoryview) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose(error)
            return len(data)

    def _send_on(self) -> None:
        while self._unsent and not self._closing:
            piece = self._unsent.popleft()
            if rest := piece[self._send(piece) :]:
                self._unsent.appendleft(rest)
                return
        self._loop.remove_writer(self._fd)
        self._connection.resume_writing()

    def get_write_buffer_size(self) -> int:
        return sum(len(piece) for piece in self._unsent)

    def write_eof(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._drain.forget(self._fd)

    def resume_reading(self) -> None:
        if not self._closing:
            self._drain.watch(self._fd, self)

    def abort(self) -> None:
        self._lose(None)

    def close(self) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._drain.forget(self._fd)
        self._loop.remove_writer(self._fd)
        self._unsent.clear()
        self._sock.close()
        self._loop.call_soon(self._connection.connection_lost, error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._sock.getsockname() if name == "sockname" else default
