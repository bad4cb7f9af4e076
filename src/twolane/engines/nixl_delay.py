"""A vLLM plugin for CPU hosts: NIXL's progress thread sleeps between two looks.

NIXL's Python binding (1.5.1, `nixl_cu13/_api.py`) sets the thread's pause to 0, so it polls
without end; no option or variable of NIXL, UCX or vLLM changes that. On a GPU host the thread has
a core of its own. Where an engine *is* one core, it takes every second slice from the model, and
the split, the only layout with NIXL, would be blamed for it: 4.6 s instead of 1.8 s for the same
prefill. (Lowering the thread's priority instead makes it hold its lock while it waits for the
core: transfers then took 1.7 s.)

vLLM calls `register` in each of its processes, as it does for every plugin of the group
`vllm.general_plugins`. It does nothing unless VARIABLE is set, which `launch.py` does on CPU
hosts alone, so it stands in run.json with the engine's other variables.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

VARIABLE = "TWOLANE_NIXL_PROGRESS_DELAY_US"
_BINDINGS = ("nixl_cu13._api", "nixl_cu12._api")


def register() -> None:
    """Make every NIXL agent of this process pause VARIABLE microseconds between two looks."""
    delay_us = os.environ.get(VARIABLE, "")
    if not delay_us.isdigit():
        return
    for name in _BINDINGS:
        try:
            api = importlib.import_module(name)
        except ImportError:
            continue
        api.nixlBind.nixlAgent = _pausing(api.nixlBind.nixlAgent, int(delay_us))


def _pausing(make: Any, delay_us: int) -> Any:
    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = delay_us
        return make(name, config)

    return agent
