"""When requests fall due in an open loop: seed and process in, send times out.

Rules of this file: pure, and shared by the load generator and the simulator, so that both see
the same arrivals. Times are nanoseconds after the start, ascending.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Literal

import numpy as np

from twolane.clock import NS
from twolane.errors import QuestionError

Process = Literal["constant", "poisson", "gamma"]


def due_ns(
    process: Process, rate: float, seconds: float, *, seed: int, burstiness: float = 1.0
) -> list[int]:
    """Send times over `seconds` at a mean of `rate` requests a second.

    `gamma` draws the intervals with shape `burstiness`: 1 is Poisson, less is burstier (as in
    `vllm bench serve`). Raises QuestionError for a rate or burstiness that is not positive.
    """
    if rate <= 0 or burstiness <= 0:
        raise QuestionError(
            f"rate {rate} with burstiness {burstiness} gives no arrivals",
            remedy="give both as numbers above 0",
        )
    end = round(seconds * NS)
    moments = _moments(process, rate, np.random.default_rng(seed), burstiness)
    return list(takewhile(lambda moment: moment < end, moments))


def _moments(
    process: Process, rate: float, rng: np.random.Generator, burstiness: float
) -> Iterator[int]:
    if process == "constant":
        count = 0
        while True:
            yield round(count / rate * NS)
            count += 1
    shape = 1.0 if process == "poisson" else burstiness
    moment = 0.0
    while True:
        moment += float(rng.gamma(shape, 1 / (rate * shape)))
        yield round(moment * NS)
