"""How many users a layout holds under a service level, per device.

Rules of this file: pure functions of requests and of levels. A level of load is *held* if, in each
of its runs, at least the asked share of the requests that were sent met every limit, and is
*failed* if in any run they clearly did not; Wilson's interval at 95 % decides what is clear. A
point with a reason code decides nothing. Nothing is extrapolated: above the largest level that
was measured is unknown, and said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from twolane.analysis.arms import Arm
from twolane.analysis.measures import tpot_ns, ttft_ns, wilson, worst_gap_ns
from twolane.clock import MS
from twolane.records import Request

Outcome = Literal["holds", "fails", "cannot tell"]


@dataclass(frozen=True)
class Slo:
    """A service level: limits that a request must meet, and the share of those sent that must.

    A request without a second token meets any `tpot_ms` and `gap_ms`; a failed one meets none.
    """

    name: str
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    gap_ms: float | None = None
    share: float = 0.9

    def met(self, request: Request) -> bool:
        ttft, tpot, gap = ttft_ns(request), tpot_ns(request), worst_gap_ns(request)
        return (
            request.error is None
            and (self.ttft_ms is None or (ttft is not None and ttft <= self.ttft_ms * MS))
            and (self.tpot_ms is None or tpot is None or tpot <= self.tpot_ms * MS)
            and (self.gap_ms is None or gap is None or gap <= self.gap_ms * MS)
        )


SLOS: Final = (
    Slo("fluent", ttft_ms=300, tpot_ms=50),
    Slo("patient", ttft_ms=2_000, tpot_ms=100),
)
"""What a campaign that names none is asked: a chat that answers at once at reading speed (20
tokens/s), and one whose user waits two seconds and reads at 10 tokens/s."""


def slos(config: dict[str, Any]) -> tuple[Slo, ...]:
    """The campaign's own service levels (`slos` of its resolved config), else `SLOS`."""
    given = config.get("slos")
    if not isinstance(given, dict) or not given:
        return SLOS
    return tuple(_slo(str(name), limits) for name, limits in given.items())


def _slo(name: str, limits: Any) -> Slo:
    known = limits if isinstance(limits, dict) else {}
    numbers = {key: _number(known.get(key)) for key in ("ttft_ms", "tpot_ms", "gap_ms")}
    return Slo(name, **numbers, share=_number(known.get("share")) or 0.9)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


MOST_REQUESTS = 5_000
"""More requests than this in one cell are no advice."""


@dataclass(frozen=True)
class Level:
    """One run at one load: how many of the requests that were sent met the service level.

    `sample` says whether the requests are a sample of many alike, or all that there is to ask.
    """

    users: int
    met: int
    sent: int
    codes: tuple[str, ...] = ()
    sample: bool = True

    @property
    def share(self) -> float | None:
        return self.met / self.sent if self.sent else None

    def outcome(self, share: float) -> Outcome:
        between = wilson(self.met, self.sent)
        if self.codes or between is None:
            return "cannot tell"
        if not self.sample:
            return "holds" if self.met >= share * self.sent else "fails"
        low, high = between
        if low >= share:
            return "holds"
        return "fails" if high < share else "cannot tell"


def readers(users: int, worst_gap_ms: float, slo: Slo, codes: Sequence[str] = ()) -> Level:
    """One interference cell of one run as a level: its `users` are the readers, and all of them
    must keep below the pause of `slo`."""
    kept = slo.gap_ms is None or worst_gap_ms <= slo.gap_ms
    return Level(users, int(kept), 1, tuple(codes), sample=False)


def levels(
    users: int, requests: Iterable[Request], slos: Sequence[Slo], codes: Sequence[str] = ()
) -> list[Level]:
    """One run's level under each of `slos`, from its measured requests, which are read once."""
    met, sent = [0] * len(slos), 0
    for request in requests:
        sent += 1
        for place, slo in enumerate(slos):
            met[place] += slo.met(request)
    return [Level(users, count, sent, tuple(codes)) for count in met]


@dataclass(frozen=True)
class Capacity:
    """The most users an arm holds under `slo` at one shape of request.

    `users` is the largest level that holds, with every smaller measured one (0: the smallest
    fails; None: cannot tell). `beyond` is the smallest measured level above it that fails, None
    where the limit lies above everything that was measured.
    """

    slo: Slo
    arm: Arm
    shape: str
    users: int | None
    beyond: int | None
    levels: tuple[tuple[int, Outcome], ...]
    runs: int
    missing: str = ""

    @property
    def per_device(self) -> float | None:
        return None if self.users is None or not self.arm.devices else self.users / self.arm.devices


def capacity(slo: Slo, arm: Arm, shape: str, runs: Sequence[Level]) -> Capacity:
    """Over all runs of `arm` at one shape of request, any number of levels and blocks."""
    by_users: dict[int, list[Level]] = {}
    for one in runs:
        by_users.setdefault(one.users, []).append(one)
    outcomes = [(users, _of_level(same, slo.share)) for users, same in sorted(by_users.items())]
    held: int | None = None
    for users, outcome in outcomes:
        if outcome != "holds":
            break
        held = users
    after = [(users, outcome) for users, outcome in outcomes if users > (held or 0)]
    beyond = next((users for users, outcome in after if outcome == "fails"), None)
    if held is None and after and after[0][1] == "fails":
        held = 0
    clean = [sum(not one.codes for one in same) for same in by_users.values()]
    return Capacity(
        slo, arm, shape, held, beyond, tuple(outcomes), min(clean, default=0),
        _missing(slo, held, after, by_users),
    )  # fmt: skip


def _of_level(runs: Sequence[Level], share: float) -> Outcome:
    """Held if each clean run held it; failed if one failed it."""
    outcomes = [run.outcome(share) for run in runs if not run.codes]
    if "fails" in outcomes:
        return "fails"
    return "holds" if outcomes and set(outcomes) == {"holds"} else "cannot tell"


def _missing(
    slo: Slo,
    held: int | None,
    after: Sequence[tuple[int, Outcome]],
    by_users: dict[int, list[Level]],
) -> str:
    """What would have to be measured to know more."""
    if not by_users:
        return "a closed-loop cell"
    if not after:
        return f"a cell with more than {_users(held)}"
    users, outcome = after[0]
    if outcome == "fails":
        return f"a cell with fewer than {_users(users)}" if held == 0 and users > 1 else ""
    coded = dict.fromkeys(code for one in by_users[users] for code in one.codes)
    if coded:
        return f"a clean run with {_users(users)} ({', '.join(coded)})"
    return _more_requests(by_users[users], slo.share)


def _users(count: int | None) -> str:
    return f"{count:,} user{'s' * (count != 1)}"


def _more_requests(runs: Sequence[Level], share: float) -> str:
    """How many requests of one run would put `share` outside the interval, at the share seen."""
    least = min(runs, key=lambda run: run.sent)
    seen = least.met / least.sent if least.sent else 0.0
    for sent in range(least.sent + 1, MOST_REQUESTS):
        between = wilson(round(seen * sent), sent)
        if between and (between[0] >= share or between[1] < share):
            return f"{sent:,} requests with {_users(least.users)} instead of {least.sent:,}"
    return f"runs with {_users(least.users)} that agree: about {share:.0%} meet it"
