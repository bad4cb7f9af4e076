"""The proxy is tested on the loop that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # a busy one is slow, not wrong
settings.load_profile("any machine")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
