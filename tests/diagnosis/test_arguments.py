"""What the parser of vLLM refuses: the option, its value and the remedy, in logs and in checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.fleet import pair, single

from twolane.diagnosis.catalogue import RULES
from twolane.diagnosis.postmortem import diagnose
from twolane.diagnosis.preflight import check
from twolane.diagnosis.rules import own
from twolane.engines import kv_runs, nixl_ascending, nixl_delay
from twolane.records import Finding

HEAD = "usage: api_server.py [-h] [model_tag]\napi_server.py: error: "
JSON = """argument --kv-transfer-config: 1 validation error for KVTransferConfig
  Invalid JSON: key must be a string at line 1 column 2 [type=json_invalid, input_value={}, \
input_type=str]
    For further information visit https://errors.pydantic.dev/2.14/v/json_invalid"""
ROLE = """argument --kv-transfer-config: 1 validation error for KVTransferConfig
kv_role
  Input should be 'kv_producer', 'kv_both' or 'kv_consumer' [type=literal_error, input_value='p']"""


def found(tmp_path: Path, text: str) -> list[Finding]:
    (tmp_path / "vllm.log").write_text(f"{HEAD}{text}\n")
    return diagnose([tmp_path / "vllm.log"]).findings


@pytest.mark.parametrize(
    ("text", "rule", "fix"),
    [
        (
            JSON.format("\"{'kv_connector':'NixlConnector'}\""),
            "ENV11",
            """--kv-transfer-config '{"kv_connector": "NixlConnector"}'""",
        ),
        (
            JSON.format("'{kv_connector:Nix'"),
            "ENV11",
            """--kv-transfer-config '{"key": "value"}'""",
        ),
        (
            "argument --speculative-config/-sc: Value {'method':'ngram'} cannot be converted to "
            "<function loads at 0x7f>.",
            "ENV11",
            """--speculative-config '{"method": "ngram"}'""",
        ),
        (
            "argument --dtype: invalid choice: 'flot' (choose from 'auto', 'half')",
            "ENV11",
            "--dtype takes one of 'auto', 'half', not 'flot'.",
        ),
        (
            "argument --max-num-seqs: invalid int value: 'abc'",
            "ENV11",
            "--max-num-seqs needs a value of kind int, not 'abc'.",
        ),
        ("argument --max-num-seqs: expected one argument", "ENV11", "--max-num-seqs has no value"),
        ("argument --enforce-eager: ignored explicit argument '1'", "ENV11", "takes no value"),
        ("ambiguous option: --max could match --max-a, --max-b", "ENV11", "Write a value"),
        (ROLE, "CFG02", "Use one of the three"),
        ("argument --x-config: 1 validation error for X", "ENV13", "--x-config: 1 validation"),
        (
            "unrecognized arguments: --max-num-batched-tokns 4096 --swap-space 4 --what=1 more",
            "ENV04",
            "--max-num-batched-tokns: did you mean --max-num-batched-tokens?; --swap-space: remove "
            "it; --what: remove it.",
        ),
        (
            "unrecognized arguments: --disable-log-requests",
            "ENV04",
            "--disable-log-requests: remove it: requests are not logged unless",
        ),
        ("unrecognized arguments: 'a b'", "ENV04", "quote what belongs together"),
    ],
)
def test_a_log_names_option_value_and_remedy(
    tmp_path: Path, text: str, rule: str, fix: str
) -> None:
    findings = found(tmp_path, text)
    assert [f.rule for f in findings] == [rule]
    assert fix in findings[0].fix


@pytest.mark.parametrize(
    ("args", "env", "rule", "fix"),
    [
        ("--max-num-batched-tokns 4096", {}, "ENV04",
         "--max-num-batched-tokns: did you mean --max-num-batched-tokens?"),
        ("--swap-space 4", {}, "ENV04", "--swap-space: remove it."),
        ("--quite-another 4", {}, "ENV04", "--quite-another: remove it."),
        ("--kv-transfer-config={'kv_role':'kv_both'}", {}, "ENV11",
         """--kv-transfer-config '{"kv_role": "kv_both"}'"""),
        ("", {"VLLM_NIXL_SIDE_CHANEL_PORT": "1"}, "ENV03",
         "VLLM_NIXL_SIDE_CHANEL_PORT: did you mean VLLM_NIXL_SIDE_CHANNEL_PORT?"),
        ("", {"VLLM_USE_V1": "1"}, "ENV03", "VLLM_USE_V1 -> nothing: V1 is the only engine"),
        ("", {"VLLM_QUITE_ANOTHER": "1"}, "ENV03", "VLLM_QUITE_ANOTHER: remove it"),
        ("", {"TWOLANE_KV_RUN": "1"}, "ENV14", "TWOLANE_KV_RUN: did you mean TWOLANE_KV_RUNS?"),
        ("", {"TWOLANE_FOO": "1"}, "ENV14", "TWOLANE_FOO: remove it."),
        ("", {"TWOLANE_KV_RUNS": "true"}, "ENV15", "Write TWOLANE_KV_RUNS=1"),
    ],
)  # fmt: skip
def test_a_check_names_the_remedy(args: str, env: dict[str, str], rule: str, fix: str) -> None:
    findings = check(single(args, env=env))
    assert [f.rule for f in findings] == [rule]
    assert fix in findings[0].fix
    assert "request" not in findings[0].fix


@pytest.mark.parametrize(
    ("where", "name"), [("penv", "d0"), ("denv", "p0")], ids=["P alone", "D alone"]
)
def test_runs_of_blocks_are_wanted_on_both_sides(where: str, name: str) -> None:
    alone = {"penv": {}, "denv": {}, where: {own.RUNS: "1"}}
    findings = check(pair(penv=alone["penv"], denv=alone["denv"]))
    assert [(f.rule, f.fix) for f in findings] == [("ENV17", f"Set {own.RUNS}=1 on {name} too.")]


def test_who_pushes_is_who_must_post_ascending() -> None:
    push = {"connector": "NixlPushConnector"}
    assert check(pair(kv=push, penv={own.ASCENDING: "1"})) == check(pair(kv=push))
    assert "ENV17" in {f.rule for f in check(pair(kv=push, denv={own.ASCENDING: "1"}))}


def test_the_variables_are_those_of_the_plugins() -> None:
    plugins = (kv_runs, nixl_ascending, nixl_delay)
    assert set(own.KNOWN) >= {plugin.VARIABLE for plugin in plugins}
    assert (own.RUNS, own.ASCENDING) == (kv_runs.VARIABLE, nixl_ascending.VARIABLE)
    assert {"ENV14", "ENV15", "ENV16", "ENV17"} <= RULES.keys()
