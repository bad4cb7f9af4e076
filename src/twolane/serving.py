"""One arm, started to be used: its engines and its router, until Ctrl-C or the first that ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from twolane import claims, devices, schedule
from twolane.clock import NS, now_ns
from twolane.config import Arm, Campaign, groups
from twolane.engines import installed, ports
from twolane.engines.fleet import Fleet
from twolane.errors import AnswerError, QuestionError
from twolane.inspection import Inspector, explained
from twolane.pace import clock_text
from twolane.recorder import new_folder

Say = Callable[[str], None]
_REMIND_S = 10.0


def arm_of(campaign: Campaign, arm: str) -> Arm:
    """The arm of this name. Raises QuestionError where there is none."""
    names = {a.name: a for a in campaign.arms}
    if arm not in names:
        raise QuestionError(
            f"no arm {arm!r}" if arm else "no arm is named",
            place=str(campaign.path),
            remedy=f"one of {', '.join(names)}",
        )
    return names[arm]


def _elsewhere(arm: Arm, here: set[int]) -> str:
    """How an arm that was measured on other devices is put on those of this host."""
    if options := groups.example(arm, here):
        return f"name devices of this host, for one: {options}"
    count = sum(len(engine.devices) for engine in arm.layout.engines)
    return f"take a host with {count} of them, then name those with {groups.OPTION}"


async def serve(campaign: Campaign, arm: str, results: Path, *, port: int, say: Say) -> None:
    """Start one arm of `campaign` and keep it up until cancelled or until an engine ends.

    `say` gets lines for a person, the endpoint among them. Raises QuestionError for an unknown
    arm, a taken port, a device that another run has or what preflight refuses, EngineError when
    an engine ends.
    """
    chosen, kind = arm_of(campaign, arm), campaign.models.node.platform
    layout = chosen.layout
    installed.require(kind, [layout])
    devices.require([layout], kind, results, lambda here: _elsewhere(chosen, here))
    if port:
        ports.require_free(port, what="the proxy")
    expect_s = schedule.launch_s(campaign, results, arm)
    with claims.held([layout], kind, f"up {campaign.name} {arm}") as claim:
        fleet = Fleet(new_folder(results, f"up-{arm}"), claim.descriptors)
        inspector = Inspector(fleet.folder, campaign, layout, say)
        inspector.before()
        say(
            f"starting {', '.join(e.name for e in layout.engines)}, about "
            f"{clock_text(expect_s)}; logs in {fleet.folder}"
        )
        try:
            async with _reminded(fleet, expect_s, say):
                await fleet.start(
                    campaign.model,
                    layout,
                    kind,
                    timeout_s=campaign.start_timeout_s,
                    told=say,
                    port=port,
                )
            assert fleet.front is not None
            endpoint = f"{fleet.front.url}/v1"
            say(f"OpenAI endpoint: {endpoint}  model: {campaign.model.name}  (Ctrl-C stops)")
            await fleet.watch()
        except AnswerError as failure:
            answer = await inspector.after("", [e.launch for e in fleet.engines])
            raise explained(failure, answer, fleet.folder) from None
        finally:
            await fleet.stop()


@contextlib.asynccontextmanager
async def _reminded(fleet: Fleet, expect_s: float, say: Say) -> AsyncIterator[None]:
    """While the block runs, say now and then how far the start is and which engine it waits for."""
    began = now_ns()

    async def remind() -> None:
        while True:
            await asyncio.sleep(_REMIND_S)
            waiting = [e.name for e in fleet.engines if e.ready_s is None]
            gone = clock_text((now_ns() - began) / NS)
            say(f"{gone} of about {clock_text(expect_s)}: waiting for {', '.join(waiting) or 'it'}")

    reminding = asyncio.create_task(remind())
    try:
        yield
    finally:
        reminding.cancel()
        await asyncio.gather(reminding, return_exceptions=True)
