"""Files of `vllm bench serve` and AIPerf: our definitions, marked with those that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.report.synthetic import GRID, make

from twolane.analysis.foreign import load
from twolane.cli import cli
from twolane.errors import QuestionError

USERS = 4
COUNT = 12


def vllm(*, detailed: bool = True, **more: Any) -> dict[str, Any]:
    """As vLLM 0.32's benchmarks/serve.py writes it: 12 requests of 4 users, 5 tokens each, 10 ms a
    token, the first after 100 ms; the last one failed."""
    told: dict[str, Any] = {
        "date": "20261129-101112", "backend": "openai", "label": None, "model_id": "needle",
        "num_prompts": COUNT, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": USERS,
        "duration": 0.6, "completed": COUNT - 1, "failed": 1, "total_input_tokens": 5632,
        "total_output_tokens": 55, "request_throughput": 18.3, "output_throughput": 91.7,
        "median_ttft_ms": 100.0, "p99_ttft_ms": 100.0, "median_tpot_ms": 10.0,
        "median_e2el_ms": 140.0, "mean_ttft_ms": 100.0,
    }  # fmt: skip
    if detailed:
        good = [1] * (COUNT - 1) + [0]
        told |= {
            "input_lens": [512] * COUNT,
            "output_lens": [5 * g for g in good],
            "ttfts": [0.1 * g for g in good],
            "itls": [[0.01] * 4 if g else [] for g in good],
            "start_times": [100 + 0.14 * (i // USERS) for i in range(COUNT)],
            "generated_texts": ["x"] * COUNT,
            "errors": ["" if g else "Service Unavailable" for g in good],
        }
    return told | more


def aiperf(*, chunks: bool = True) -> list[dict[str, Any]]:
    """As AIPerf's profile_export.jsonl has it: the same twelve, after one of the warm-up."""
    lines = []
    for i in range(-1, COUNT):
        start = 1_759_813_207_000_000_000 + 140_000_000 * (i // USERS)
        metrics: dict[str, Any] = {
            "input_sequence_length": {"value": 512, "unit": "tokens"},
            "output_sequence_length": {"value": 5, "unit": "tokens"},
            "time_to_first_token": {"value": 100.0, "unit": "ms"},
            "request_latency": {"value": 0.14, "unit": "s"},
        }
        if chunks:
            metrics["inter_chunk_latency"] = {"value": [10.0] * 4, "unit": "ms"}
        failed = i == COUNT - 1
        lines.append({
            "metadata": {
                "session_num": i, "request_start_ns": start, "was_cancelled": False,
                "benchmark_phase": "warmup" if i < 0 else "profiling",
            },
            "metrics": {"error_isl": {"value": 512, "unit": "tokens"}} if failed else metrics,
            "error": {"code": 503, "type": "HTTPError", "message": "busy"} if failed else None,
        })  # fmt: skip
    return lines


def written(path: Path, *objects: object) -> Path:
    path.write_text("\n".join(json.dumps(one) for one in objects))
    return path


@pytest.mark.parametrize("tool", ["vllm", "aiperf"])
def test_every_request_is_taken_by_our_definitions(tmp_path: Path, tool: str) -> None:
    objects = [vllm()] if tool == "vllm" else aiperf()
    (found,) = load(written(tmp_path / "f.json", *objects))
    assert (found.requests, found.failed, found.recomputed) == (COUNT, 1, True)
    assert found.values["ttft_p50_ms"] == pytest.approx(100)
    assert found.values["tpot_p50_ms"] == pytest.approx(10)
    assert found.values["e2e_p50_ms"] == pytest.approx(140)
    assert found.values["worst_gap_p50_ms"] == pytest.approx(10)
    # Window: 280 ms from the fourth request's start to the last one's; all tokens of the first
    # eight requests arrive in it.
    assert found.values["window_s"] == pytest.approx(0.28)
    assert found.values["throughput_tok_s"] == pytest.approx(8 * 5 / 0.28)
    assert any("no reason codes" in difference for difference in found.differences)


def test_a_failed_request_is_infinite_as_ours_are(tmp_path: Path) -> None:
    lost = vllm(errors=["gone"] * COUNT)
    (found,) = load(written(tmp_path / "f.json", lost))
    assert found.values["ttft_p50_ms"] == float("inf")


@pytest.mark.parametrize("tool", ["vllm", "aiperf"])
def test_a_summary_is_taken_as_it_stands_and_marked(tmp_path: Path, tool: str) -> None:
    summary = vllm(detailed=False) if tool == "vllm" else {
        "schema_version": "1.5", "aiperf_version": "0.14.0",
        "request_count": {"unit": "requests", "avg": 11.0},
        "error_request_count": {"unit": "requests", "avg": 1.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 91.7},
        "time_to_first_token": {"unit": "ms", "avg": 101.0, "p50": 100.0, "p99": 100.0},
        "inter_token_latency": {"unit": "ms", "avg": 10.0, "p50": 10.0},
        "request_latency": {"unit": "ms", "avg": 140.0, "p50": 140.0},
    }  # fmt: skip
    (found,) = load(written(tmp_path / "f.json", summary))
    assert (found.requests, found.failed, found.recomputed) == (12, 1, False)
    for name, value in (("ttft_p50", 100), ("ttft_p99", 100), ("tpot_p50", 10), ("e2e_p50", 140)):
        assert found.values[f"{name}_ms"] == pytest.approx(value)
    assert found.values["throughput_tok_s"] == pytest.approx(91.7)
    assert any("interpolate" in difference for difference in found.differences)
    assert any("drain" in difference for difference in found.differences)


def test_several_runs_appended_to_a_file_are_several(tmp_path: Path) -> None:
    path = written(tmp_path / "f.json", vllm(), vllm(label="second", max_concurrency=8))
    assert [one.users for one in load(path)] == [4, 8]


def test_without_chunks_no_pause_is_made_up(tmp_path: Path) -> None:
    (found,) = load(written(tmp_path / "p.jsonl", *aiperf(chunks=False)))
    assert not [name for name in found.values if "worst_gap" in name]
    assert found.values["throughput_tok_s"] == pytest.approx(8 * 5 / 0.28)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{", "null", '{"metadata": 3}', '{"metadata": {}}', "\x00", "[" * 9000,
             '{"request_throughput": 1, "duration": 1, "start_times": [1], "ttfts": ["x"], '
             '"itls": [[]]}'],
)  # fmt: skip
def test_a_file_of_no_known_kind_is_a_bad_question(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(QuestionError, match="not a result that can be read"):
        load(path)


Json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.sampled_from(sorted(vllm())), Json)
def test_any_value_in_any_place_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object
) -> None:
    path = written(tmp_path_factory.mktemp("f") / "f.json", vllm() | {name: value})
    try:
        load(path)
    except QuestionError as error:
        assert str(path) in str(error)


def test_it_stands_beside_the_cell_with_as_many_users_and_gets_no_verdict(tmp_path: Path) -> None:
    folder, path = make(tmp_path / "r", blocks=2), written(tmp_path / "v.json", vllm())
    told = CliRunner().invoke(cli, ["compare", str(folder), str(path), "--json"])
    answer = json.loads(told.output)
    (ttft,) = [
        row for row in answer["measures"]
        if (row["measure"], row["cell"]) == ("ttft_p50_ms", GRID.id)
    ]  # fmt: skip
    (beside,) = ttft["other_clients"]
    assert (beside["value"], beside["verdict"]) == (100.0, None)
    assert len(answer["other_clients"][0]["definitions_that_differ"]) == 5
    shown = CliRunner().invoke(cli, ["compare", str(folder), str(path)])
    assert "vllm bench serve, no verdict" in shown.output
    other = written(tmp_path / "w.json", vllm(max_concurrency=64))
    answer = json.loads(
        CliRunner().invoke(cli, ["compare", str(folder), str(other), "--json"]).output
    )
    assert not [row for row in answer["measures"] if row["other_clients"]]


def test_a_line_without_what_every_request_has_names_it(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text('{"metadata": {}, "metrics": {}}\n')
    with pytest.raises(QuestionError, match="it lacks 'request_start_ns'"):
        load(path)
