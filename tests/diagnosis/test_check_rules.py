"""Every rule that judges a deployment: one it refuses, and the nearest one that it takes."""

from __future__ import annotations

import msgspec
import pytest
from tests.diagnosis.check_cases import CASES
from tests.diagnosis.fleet import pair, single

from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.preflight import check

JUDGES = sorted(r.id for r in RULES.values() if r.engine or r.pair or r.together)


@pytest.mark.parametrize("rule", JUDGES)
def test_fires(rule: str) -> None:
    assert rule in {finding.rule for finding in check(CASES[rule][0])}


@pytest.mark.parametrize("rule", JUDGES)
def test_does_not_fire_on_the_near_miss(rule: str) -> None:
    assert rule not in {finding.rule for finding in check(CASES[rule][1])}


def test_every_case_belongs_to_a_rule() -> None:
    assert sorted(CASES) == JUDGES


@pytest.mark.parametrize("model", ["dense", "hybrid", "mla", "sliding"])
def test_a_clean_deployment_has_no_finding(model: str) -> None:
    assert check(pair(model=model)) == []
    assert check(single(model=model)) == []


def test_a_finding_names_the_place_that_set_the_value() -> None:
    places = {("d0", "--block-size"): "models.yaml:12:7"}
    found = check(pair(p="--block-size 64", d="--block-size 16"), places)
    assert [f.where for f in found if f.rule == "PAIR03"] == ["models.yaml:12:7"]


def test_a_finding_without_a_place_names_engine_and_option() -> None:
    found = check(pair(p="-tp 3", d="-tp 2"))
    assert [f.where for f in found if f.rule == "PAIR04"] == ["d0: -tp"]


def test_hosts_are_told_apart_by_their_side_channels() -> None:
    host, same = "VLLM_NIXL_SIDE_CHANNEL_HOST", {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"}
    two = pair(d="--port 8100", env=same, penv={host: "10.0.0.1"}, denv={host: "10.0.0.2"})
    assert check(two) == []
    one = pair(env=same, penv={host: "10.0.0.1"}, denv={host: "10.0.0.1"})
    assert [finding.rule for finding in check(one)] == ["PORT01"]
    half = pair(denv={host: "10.0.0.2"})
    assert [finding.rule for finding in check(half)] == ["PORT03"]


def test_a_pair_is_known_by_its_connectors_roles() -> None:
    base = pair(p="-tp 3", d="-tp 2")
    engines = [msgspec.structs.replace(engine, role="both") for engine in base.engines]
    unsaid = msgspec.structs.replace(base, engines=engines)
    assert "PAIR04" in {finding.rule for finding in check(unsaid)}


def test_a_nested_connector_counts() -> None:
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    more = {"kv_connector_extra_config": {"connectors": [nixl]}}
    multi = pair(
        model="hybrid",
        dkv={"connector": "MultiConnector", **more},
        denv={"VLLM_SSM_CONV_STATE_LAYOUT": "SD"},
    )
    assert "HYB01" in {finding.rule for finding in check(multi)}


def test_the_cpu_platform_sets_the_state_layout_itself() -> None:
    def rules(**env: str) -> set[str]:
        cleared = pair(model="hybrid", platform="cpu")
        engines = [
            type(e)(name=e.name, role=e.role, argv=e.argv, env={**env}) for e in cleared.engines
        ]
        changed = type(cleared)(
            platform="cpu", model_config=cleared.model_config, engines=engines[1:]
        )
        return {finding.rule for finding in check(changed)}

    assert "HYB01" not in rules()
    assert "HYB01" in rules(VLLM_SSM_CONV_STATE_LAYOUT="SD")


@pytest.mark.parametrize(("block", "fires"), [("64", True), ("128", False), ("256", False)])
def test_a_block_size_given_on_one_side_meets_the_default_of_a_cpu(block: str, fires: bool) -> None:
    def judged(platform: str) -> set[str]:
        return {f.rule for f in check(pair(d=f"--block-size {block}", platform=platform))}

    assert ("PAIR03" in judged("cpu")) == fires
    assert "PAIR03" not in judged("cuda")
