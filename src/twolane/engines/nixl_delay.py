"""A vLLM plugin for CPU hosts: NIXL's progress thread sleeps between two looks.

NIXL's Python binding (1.5.1, `nixl_cu13/_api.py`) sets the thread's pause to 0, so it polls
without end; no option or variable of NIXL, UCX or vLLM changes that. On a GPU host the thread has
a core of its own. Where an engine *is* one core, the thread competes with the model for it, and the
split, the only layout with NIXL, would be blamed: an idle agent used 1.00 of a core with a pause of
0 and 0.02 with one of 1 ms. (Lowering the thread's priority instead was tried: a transfer then took
1.7 s once, probably because the thread holds a lock while it waits for the core.)

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
