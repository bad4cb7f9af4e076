"""One arm, started to be used: its engines and its router, until Ctrl-C or the first that ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twolane import claims, devices
from twolane.config import Arm, Campaign
from twolane.engines import installed, ports
from twolane.engines.fleet import Fleet
from twolane.errors import AnswerError, QuestionError
from twolane.inspection import Inspector, explained
from twolane.recorder import new_folder

Say = Callable[[str], None]


def arm_of(campaign: Campaign, arm: str) -> Arm:
    """The arm of this name. Raises QuestionError where there is none."""
    names = {a.name: a for a in campaign.arms}
    if arm not in names:
        raise QuestionError(
            f"no arm {arm!r}", place=str(campaign.path), remedy=f"one of {', '.join(names)}"
        )
    return names[arm]


async def serve(campaign: Campaign, arm: str, results: Path, *, port: int, say: Say) -> None:
    """Start one arm of `campaign` and keep it up until cancelled or until an engine ends.

    `say` gets lines for a person, the endpoint among them. Raises QuestionError for an unknown
    arm, a taken port, a device that another run has or what preflight refuses, EngineError when
    an engine ends.
    """
    layout, kind = arm_of(campaign, arm).layout, campaign.models.node.platform
    installed.require(kind, [layout])
    devices.require([layout], kind, results)
    if port:
        ports.require_free(port, what="the proxy")
    with claims.held([layout], kind, f"up {campaign.name} {arm}") as claim:
        fleet = Fleet(new_folder(results, f"up-{arm}"), claim.descriptors)
        inspector = Inspector(fleet.folder, campaign, layout, say)
        inspector.before()
        say(f"starting {', '.join(e.name for e in layout.engines)}; logs in {fleet.folder}")
        try:
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
