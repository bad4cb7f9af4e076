"""What the two commands print and how they exit."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.diagnosis.fleet import DENSE, pair

from twolane.diagnosis.commands import config_paths, load_deployment, run_check, run_diagnose
from twolane.errors import QuestionError

LOGS = Path(__file__).parent / "logs"


def test_a_clean_check_exits_0_and_says_so() -> None:
    assert run_check(pair()) == ("nothing found", '{\n "findings": []\n}', 0)


def test_a_check_exits_1_on_an_error_and_0_on_a_remark() -> None:
    assert run_check(pair(p="-tp 3", d="-tp 2")).code == 1
    said = run_check(pair(p="--kv-cache-memory-bytes 8G"))
    assert "MEM07" in said.text
    assert said.code == 0


def test_the_json_of_a_diagnosis_has_its_documented_keys() -> None:
    said = run_diagnose([LOGS / "01_hybrid_ds_layout.log"])
    answer = json.loads(said.json)
    assert answer["cause"] == "HYB01"
    assert said.code == 1
    for finding in answer["findings"]:
        keys = {"rule", "severity", "where", "evidence", "fix", "source", "value", "consequence"}
        assert keys <= set(finding)


def test_the_text_of_a_diagnosis_begins_with_the_cause() -> None:
    text = run_diagnose([LOGS / "11_gpu_memory_taken.log"]).text
    assert text.startswith("11_gpu_memory_taken.log:7 (Worker_TP3 pid=8103): cause MEM03: ")
    assert "  fix: 81.5 GiB on cuda:3" in text


def test_a_healthy_log_exits_0() -> None:
    said = run_diagnose([LOGS / "29_negative_healthy_decode.log"])
    assert said == ("nothing found", '{\n "cause": null,\n "findings": []\n}', 0)


def test_engines_are_read_from_a_file_and_their_model_beside_them(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(DENSE))
    engines = [{"name": "e0", "argv": ["vllm", "serve", str(model), "--max-model-len", "1m"]}]
    path = tmp_path / "engines.json"
    path.write_text(json.dumps({"engines": engines}))
    deployment = load_deployment(path)
    assert deployment.model_config == DENSE
    assert "TOK01" in run_check(deployment).text


def test_a_broken_model_config_is_not_ours_to_explain(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    path = tmp_path / "engines.json"
    path.write_text(json.dumps({"engines": [{"name": "e0", "argv": ["serve", str(tmp_path)]}]}))
    assert load_deployment(path).model_config is None


def test_engines_written_as_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.write_bytes(msgspec.json.encode(pair(d="-tp 3", p="-tp 2")))
    assert "PAIR04" in run_check(load_deployment(path)).text


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: run_diagnose([]), ""),
        (lambda: run_diagnose([], before=Path("x")), "--metrics-before, --metrics-after"),
        (lambda: run_diagnose([Path("none.log")]), "none.log"),
        (lambda: load_deployment(Path("none.json")), "none.json"),
    ],
)
def test_bad_questions_name_their_place(call: object, place: str) -> None:
    with pytest.raises(QuestionError) as error:
        call()  # type: ignore[operator]
    assert (error.value.place, error.value.exit_code) == (place, 2)


def test_a_hub_models_config_is_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    snapshot = tmp_path / "hub/models--Org--Model/snapshots/0123"
    snapshot.mkdir(parents=True)
    (snapshot.parent / "gone").mkdir()
    (snapshot.parent / "gone/config.json").symlink_to(tmp_path / "nowhere")
    (snapshot / "config.json").write_text(json.dumps(DENSE))
    engines = [{"name": "e0", "argv": ["vllm", "serve", "Org/Model"]}]
    path = tmp_path / "engines.json"
    path.write_text(json.dumps({"engines": engines}))
    assert load_deployment(path).model_config == DENSE
    assert config_paths("a\0b") == [Path("a\0b/config.json")]
    monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    assert load_deployment(path).model_config is None
