"""What twolane starts, judged by the rules: before it starts, and when something went wrong.

Rules of this file: the one place that knows both the launches of engines/ and the rules of
diagnosis/. It turns the first into what the second reads, and findings into what a campaign
keeps (findings.json), tells and raises. What is a mistake is decided in diagnosis/rules alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from twolane import devices, unused
from twolane.config import (
    Arm,
    Campaign,
    Layout,
    Model,
    identity,
    load_campaign,
    load_models,
    owned,
    source,
)
from twolane.config.models import Platform
from twolane.diagnosis import figures
from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.commands import (
    Said,
    config_paths,
    load_deployment,
    model_config,
    with_model,
)
from twolane.diagnosis.deployment import Deployment, Engine, Side
from twolane.diagnosis.findings import (
    SYMPTOM,
    Diagnosis,
    exit_code,
    in_order,
    to_json,
    to_text,
    wrong,
)
from twolane.diagnosis.host import with_host
from twolane.diagnosis.postmortem import diagnose
from twolane.diagnosis.preflight import Places, check
from twolane.engines import kv_runs, nixl_ascending
from twolane.engines.launch import Launch, launches
from twolane.errors import AnswerError, EngineError, Faults, QuestionError
from twolane.records import AnyCell, Finding, Findings, GridCell, PostMortem, write_json

FEWEST_WAVES = 4  # of the users of a closed loop, for a window that Little's law holds in

# Where one of them is set, vLLM's logger may show less than by itself.
_LOGGING = ("VLLM_LOGGING_LEVEL", "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH")

Figures = Mapping[str, Mapping[str, float]]  # engine's name -> its metrics
# Cells whose prompts repeat on purpose: a warm prefix cache is no contamination there.
_CACHE_IS_THE_POINT = ("ramp", "trace")

# ------------------------------------------------------------------------- launches to rules


def deployment(
    model: Model, made: Sequence[Launch], platform: Platform, *, starting: bool
) -> Deployment:
    """Engines as the rules read them.

    If they are `starting`, with what this host knows, as far as it is the one they will run on;
    later its ports and memory are taken by these very engines.
    """
    gpus = devices.gpus() if platform == "gpu" else ()
    judged = Deployment(
        platform="cpu" if platform == "cpu" else "cuda",
        engines=[_engine(launch, platform) for launch in made],
        device_gib=min((g.memory_bytes for g in gpus), default=0) / devices.GIB or None,
        device_count=len(gpus) or None,
    )
    here = platform == "cpu" or bool(gpus)
    return with_model(with_host(judged) if starting and here else judged)


def _engine(launch: Launch, platform: Platform) -> Engine:
    engine = launch.engine
    return Engine(
        name=engine.name,
        role=engine.role,
        argv=list(launch.argv),
        env=dict(launch.env),
        devices=list(engine.devices) if platform == "gpu" else None,
    )


def places(layout: Layout) -> Places:
    """Where the YAML sets what: (engine, option or variable) -> `file:line:col`."""
    return {(e.name, name): place for e in layout.engines for name, place in e.places.items()}


def preflight(model: Model, layout: Layout, platform: Platform) -> list[Finding]:
    """What is wrong with `layout` before it starts, worst first.

    Raises QuestionError where its ports are none.
    """
    made = launches(model, layout, platform)
    return check(deployment(model, made, platform, starting=True), places(layout))


def preflight_file(path: Path) -> list[Finding]:
    """Preflight of every arm of a campaign.yaml, or of every layout of a models.yaml.

    A layout that only names engines of others repeats what they have; it is told once.
    """
    found: dict[tuple[str, str, str], Finding] = {}
    for model, layout, platform in _layouts(path):
        for finding in preflight(model, layout, platform):
            found.setdefault((finding.rule, finding.where, finding.value), finding)
    return in_order(list(found.values()))


def check_files(path: Path | None, engines: Path | None) -> Said:
    """Preflight of a campaign.yaml or models.yaml, of the JSON of other engines, or of both.

    Raises QuestionError if neither is given or one cannot be read.
    """
    if path is None and engines is None:
        raise QuestionError("nothing to check", remedy="name a campaign, or --engines FILE")
    findings = preflight_file(path) if path is not None else []
    models = {model.path for model, _, _ in _layouts(path)} if path is not None else set()
    if engines is not None:
        foreign = load_deployment(engines)
        findings = in_order([*findings, *check(foreign)])
        if foreign.model_config is None:
            models |= {Side(engine, foreign).args.model or "?" for engine in foreign.engines}
    said = to_text(findings) + _unasked(models) + _unproven(path)
    return Said(said, to_json(findings), exit_code(findings))


def _unproven(path: Path | None) -> str:
    """A line for each reason that a campaign.yaml can give no verdict."""
    if path is None or "node" in source.read(path).data:
        return ""
    campaign = load_campaign(path)
    notes = [*doubts(campaign), *_not_here(campaign)]
    return "".join(f"\nnote: {note}" for note in notes)


def _not_here(campaign: Campaign) -> Iterator[str]:
    """What this host lacks: no mistake, for the campaign may be for another."""
    try:
        devices.require_devices(
            (arm.layout for arm in campaign.arms), campaign.models.node.platform
        )
    except QuestionError as lacking:
        yield f"`twolane run` would refuse it on this host: {lacking.what}; {lacking.remedy}"


def doubts(campaign: Campaign) -> list[str]:
    """Why points of the campaign may enter no verdict, known before anything starts."""
    notes = []
    if not campaign.gates:
        notes.append(
            "no gates: every point will carry NEEDLE and enter no verdict; "
            "add `gates: [needle 2000]`"
        )
    dummies = [
        arm.name
        for arm in campaign.arms
        if any(identity.has_dummy_weights([*e.args]) for e in arm.layout.engines)
    ]
    if dummies:
        notes.append(f"weights are dummies: figures only, no verdict ({', '.join(dummies)})")
    notes += unused.notes(campaign)
    notes += dict.fromkeys(note for arm in campaign.arms for note in _overruled(campaign, arm))
    return [*notes, *_short_windows(campaign.cells)]


def _overruled(campaign: Campaign, arm: Arm) -> Iterator[str]:
    """What models.yaml gives an engine of the arm, and the campaign gives it anew."""
    owned_here = {"--max-model-len": ("context", campaign.context)}
    for engine in arm.layout.engines:
        for option, (key, value) in owned_here.items():
            for theirs in owned.against(engine.args, {option: value}).values():
                yield (
                    f"{engine.name}: {option} {theirs} of {campaign.models.path.name} gives way to "
                    f"the campaign's {key}, {value}"
                )


def _short_windows(cells: Iterable[AnyCell]) -> Iterator[str]:
    """Closed loops that end after so few waves of their users that Little's law may not hold.

    Users that begin together end together: two waves on two H200s were coded in 2 of 4 cells of a
    split, by 6 and 7 % (docs/results/h200-two-runs).
    """
    for cell in cells:
        if not isinstance(cell, GridCell) or cell.users == 1 or not cell.requests:
            continue
        if cell.requests < FEWEST_WAVES * cell.users:
            yield (
                f"{cell.id}: {cell.requests / cell.users:.2g} waves of {cell.users} users are few, "
                f"and LITTLE may code it; n{FEWEST_WAVES * cell.users} would do"
            )


def _unasked(models: Iterable[str]) -> str:
    """A line about the models of which nothing is known here: silence is no clean bill."""
    unknown = [m for m in sorted(models) if not any(map(model_config, config_paths(m)))]
    if not unknown:
        return ""
    return (
        f"\nnote: no config.json of {', '.join(unknown)} here: rules that need it (state layout, "
        "heads, positions, KV memory) were not asked"
    )


def _layouts(path: Path) -> Iterable[tuple[Model, Layout, Platform]]:
    if "node" in source.read(path).data:
        models = load_models(path)
        for model in models.models.values():
            for layout in model.layouts.values():
                yield model, layout, models.node.platform
        return
    campaign = load_campaign(path)
    for arm in campaign.arms:
        yield campaign.model, arm.layout, campaign.models.node.platform


def preflight_campaign(campaign: Campaign) -> None:
    """Raises QuestionError that names every error in any arm that the campaign does not allow.

    Also for each rule that it allows and that is none: it may have meant another.
    """
    faults = Faults()
    for rule in campaign.allow:
        if rule not in RULES:
            faults.add(
                QuestionError(
                    f"allowed is {rule!r}, which is no rule",
                    place=str(campaign.path),
                    remedy=f"{source.nearest(rule, sorted(RULES))} (docs/rules.md)",
                )
            )
    kind = campaign.models.node.platform
    for arm in campaign.arms:
        with faults.kept():
            refuse(preflight(campaign.model, arm.layout, kind), campaign.allow)
    faults.refuse()


def refuse(findings: Iterable[Finding], allowed: Collection[str]) -> None:
    """Raises QuestionError that names every error whose rule is not `allowed`."""
    faults = Faults()
    for one in findings:
        if one.severity == "error" and one.rule not in allowed:
            faults.add(
                QuestionError(
                    f"{said(one)}. {one.consequence}",
                    place=one.where,
                    remedy=f"{one.fix} Or override this with --allow {one.rule}.",
                )
            )
    faults.refuse()


# ---------------------------------------------------------------------------- what went wrong


def said(finding: Finding) -> str:
    """A finding in half a line."""
    value = f" ({finding.value})" if finding.value else ""
    return f"{finding.rule}: {finding.title}{value}"


def cause_of(answer: Diagnosis) -> Finding | None:
    """The finding that explains a failure; None where there are only consequences and remarks."""
    first = answer.findings[0] if answer.cause is not None else None
    return first if first and wrong(first) and first.rank <= SYMPTOM else None


def explained(failure: AnswerError, answer: Diagnosis, folder: Path) -> AnswerError:
    """`failure` with its cause and fix; itself where no rule recognises it."""
    cause = cause_of(answer)
    if cause is None:
        return failure
    what = f"{failure.what}: {said(cause)}"
    place = f"{folder / cause.where}" if ".log:" in cause.where else cause.where
    if isinstance(failure, EngineError):
        return EngineError(what, place=place, remedy=cause.fix, log_tail=tuple(cause.evidence))
    return type(failure)(what, place=place, remedy=cause.fix)


def _silent(folder: Path, launch: Launch) -> Iterator[str]:
    """Variables of the plugins that `launch` asks for and its log does not tell of."""
    if any(name in launch.env for name in _LOGGING):
        return
    log = folder / f"{launch.engine.name}.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    for plugin in (kv_runs, nixl_ascending):
        if launch.env.get(plugin.VARIABLE) == "1" and plugin.HEARD not in text:
            yield plugin.VARIABLE


def unheard(launch: Launch, variable: str) -> Finding:
    rule, name = RULES["ENV18"], launch.engine.name
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        where=f"{name}.log",
        title=rule.title,
        value=f"{variable}=1",
        consequence=rule.so,
        fix=rule.fix,
        source=rule.source,
        certainty=rule.confirmed,
        rank=rule.rank,
    )


@dataclass
class Inspector:
    """One run's findings: kept in findings.json of its `folder`, and told as they are made."""

    folder: Path
    campaign: Campaign
    layout: Layout
    tell: Callable[[str], None]
    found: Findings = field(default_factory=Findings)

    @property
    def platform(self) -> Platform:
        return self.campaign.models.node.platform

    def before(self) -> None:
        """Preflight; raises QuestionError for an error that the campaign does not allow."""
        findings = preflight(self.campaign.model, self.layout, self.platform)
        self._keep(msgspec.structs.replace(self.found, preflight=findings))
        for finding in findings:
            if wrong(finding):
                self.tell(f"{finding.where}: {said(finding)}; fix: {finding.fix}")
        refuse(findings, self.campaign.allow)

    def heard(self, made: Sequence[Launch]) -> None:
        """Keep and tell which of twolane's plugins were asked for and are not in the logs.

        Of engines that are up. One that logs by other rules than vLLM's own tells nothing.
        """
        found = [
            unheard(launch, plugin) for launch in made for plugin in _silent(self.folder, launch)
        ]
        if found:
            told = [*self.found.postmortems, PostMortem(about="", cause=None, findings=found)]
            self._keep(msgspec.structs.replace(self.found, postmortems=told))
        for finding in found:
            self.tell(f"{finding.where}: {said(finding)}; fix: {finding.fix}")

    async def after(
        self,
        about: str,
        made: Sequence[Launch],
        before: Figures | None = None,
        now: Figures | None = None,
    ) -> Diagnosis:
        """Post-mortem of `about` (a cell's id, or empty): logs so far, and metrics in between."""
        answer = await asyncio.to_thread(self._diagnose, made, before or {}, now or {})
        if about.startswith(_CACHE_IS_THE_POINT):
            rest = [f for f in answer.findings if f.rule != "BENCH01"]
            cause = None if answer.cause == "BENCH01" else answer.cause
            answer = msgspec.structs.replace(answer, cause=cause, findings=rest)
        if answer.findings:
            one = PostMortem(about=about, cause=answer.cause, findings=answer.findings)
            told = [*self.found.postmortems, one]
            self._keep(msgspec.structs.replace(self.found, postmortems=told))
            first = answer.findings[0]
            self.tell(f"{about or 'cause'}: {said(first)}; fix: {first.fix}")
        return answer

    def _diagnose(self, made: Sequence[Launch], before: Figures, now: Figures) -> Diagnosis:
        logs = [self.folder / f"{launch.engine.name}.log" for launch in made]
        served = [
            figures.from_metrics(before[name], now[name], name) for name in before if name in now
        ]
        judged = deployment(self.campaign.model, made, self.platform, starting=False)
        return diagnose([log for log in logs if log.exists()], judged, served=served)

    def _keep(self, found: Findings) -> None:
        self.found = found
        write_json(self.folder / "findings.json", found)
