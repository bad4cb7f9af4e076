"""A transport that remembers, and a sink that takes notes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from twolane.wire.http1 import Headers


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.writes: list[bytes] = []
        self.aborted = False
        self.closed = False
        self.reading = True
        self.unsent = 0
        self.eof = False

    def write_eof(self) -> None:
        self.eof = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.is_closing(), "written after close"
        self.written += bytes(data)
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        for data in list_of_data:
            self.write(data)

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.aborted or self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4321) if name in ("sockname", "peername") else default


class NoteSink:
    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.stamps: list[int] = []
        self.ends: list[str] = []
        self.error: Exception | None = None

    def on_head(self, status: int, headers: Headers) -> None:
        assert not self.status, "two heads"
        self.status, self.headers = status, headers

    def on_body(self, data: bytes, stamp_ns: int) -> None:
        assert self.status, "body before head"
        assert not self.ends, "body after end"
        self.body += data
        self.stamps.append(stamp_ns)

    def on_end(self, stamp_ns: int) -> None:
        self.ends.append("end")
        self.stamps.append(stamp_ns)

    def on_lost(self, error: Exception | None, stamp_ns: int) -> None:
        self.ends.append("lost")
        self.error = error
        self.stamps.append(stamp_ns)
