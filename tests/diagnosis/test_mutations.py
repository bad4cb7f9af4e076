"""Damaged command lines, environments and configs: never a traceback, always the same findings."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.diagnosis.check_cases import CASES
from tests.diagnosis.fleet import DENSE, HYBRID, MLA, SLIDING, pair

from twolane.diagnosis.deployment import Deployment, Engine, read_deployment
from twolane.diagnosis.model_shape import shape_of
from twolane.diagnosis.postmortem import concluded
from twolane.diagnosis.preflight import check
from twolane.diagnosis.reading import Reading
from twolane.diagnosis.vllm_facts import facts
from twolane.errors import QuestionError

FIELDS = sorted({name for config in (DENSE, HYBRID, MLA, SLIDING) for name in config})
ODD: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6),
        st.sampled_from([0, -1, 2**70, 1e308, "", "auto", "linear_attention", "4"]),
    ),
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(st.sampled_from([*FIELDS, "text_config", "rope_scaling", "factor"]), below,
                        max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip
OPTIONS = sorted(name for option in facts().options.values() for name in option.names)
WORDS = st.one_of(
    st.sampled_from(OPTIONS),
    st.sampled_from(["4", "0", "-1", "9" * 30, "1e9", "nan", "inf", "1M", "{}", "[]", "null", "x",
                     '{"kv_connector":3}', '{"method":["mtp"],"num_speculative_tokens":"2"}',
                     '{"kv_connector":"MultiConnector","kv_role":1,"kv_connector_extra_config":'
                     '{"connectors":[1,{"kv_connector":"NixlConnector"}]}}']),
    st.text(max_size=8),
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(["VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_PORT",
                     "VLLM_KV_CACHE_LAYOUT", "PYTORCH_ALLOC_CONF", "CUDA_VISIBLE_DEVICES",
                     "VLLM_CPU_KVCACHE_SPACE", "UCX_TLS", "VLLM_ODD"]),
    st.text(max_size=5),
)  # fmt: skip
VALUES = st.one_of(st.text(max_size=6), st.sampled_from(["5600", "9" * 25, "-5", "0,1", "DS", ""]))
BASES = [deployment for case in CASES.values() for deployment in case]


@st.composite
def mutated(draw: st.DrawFn) -> Deployment:
    """A deployment of the rules' cases with words, variables and config fields replaced."""
    base = draw(st.sampled_from(BASES))
    engines: list[Engine] = []
    for engine in base.engines:
        argv = list(engine.argv)
        for at in draw(st.lists(st.integers(0, len(argv)), max_size=4)):
            argv[at : at + draw(st.integers(0, 2))] = draw(st.lists(WORDS, max_size=3))
        env = {**engine.env, **draw(st.dictionaries(NAMES, VALUES, max_size=3))}
        engines.append(msgspec.structs.replace(engine, argv=argv, env=env))
    config = {**(base.model_config or {}),
              **draw(st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=4))}  # fmt: skip
    return msgspec.structs.replace(
        base,
        engines=engines,
        model_config=draw(st.sampled_from([config, None, {}])),
        platform=draw(st.sampled_from(["cuda", "cpu", "rocm"])),
        device_gib=draw(st.one_of(st.none(), st.floats())),
        prefill_tok_s=draw(st.one_of(st.none(), st.floats())),
        free_gib=draw(st.one_of(st.none(), st.floats())),
        addresses=draw(st.lists(st.sampled_from(["10.0.0.1", "x", ""]), max_size=2)),
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_never_a_traceback_and_always_the_same(deployment: Deployment) -> None:
    found = check(deployment)
    assert found == check(deployment)
    keys = [(f.rule, f.where, f.value) for f in found]
    assert len(keys) == len(set(keys))


@given(ODD)
def test_any_config_has_a_shape_or_none(config: object) -> None:
    assert shape_of(config) == shape_of(config)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"engines": 3}', b'{"engines": [{}]}', b"\xff"]
)
def test_what_is_no_deployment_is_a_bad_question(text: bytes) -> None:
    with pytest.raises(QuestionError) as error:
        read_deployment(text, "engines.json")
    assert error.value.place == "engines.json"


def test_an_empty_deployment_has_no_finding() -> None:
    assert check(Deployment(engines=[])) == []
    assert check(msgspec.structs.replace(pair(), model_config={"num_hidden_layers": "x"})) == []


LINES = sorted(
    {line for path in (Path(__file__).parent / "logs").glob("*.log")
     for line in path.read_bytes().splitlines()}
)  # fmt: skip


@st.composite
def damaged_log(draw: st.DrawFn) -> bytes:
    """Lines of all samples mixed, with digits multiplied and bytes replaced."""
    lines = draw(st.lists(st.sampled_from(LINES), max_size=12))
    text = bytearray(b"\n".join(lines))
    for at, byte in draw(
        st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), max_size=9)
    ):
        if text:
            text[at % len(text)] = byte
    many = draw(st.sampled_from([b"", b"9" * 30, b"."]))
    return bytes(text).replace(b"1", b"1" + many)


@settings(deadline=None)
@given(damaged_log())
def test_a_damaged_log_is_diagnosed_without_trouble(content: bytes) -> None:
    def said() -> object:
        reading = Reading("engine.log")
        reading.read(io.BytesIO(content))
        return concluded([reading], [reading.service], None)

    assert said() == said()
