"""Whole logs: the expected diagnosis of every sample, in every format they come in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.fleet import pair

from twolane.diagnosis.findings import exit_code
from twolane.diagnosis.logs import CHUNK
from twolane.diagnosis.postmortem import diagnose
from twolane.errors import QuestionError

LOGS = sorted((Path(__file__).parent / "logs").glob("*.log"))
FAILED = [path for path in LOGS if json.loads(path.with_suffix(".json").read_text())["rule"]]
PREFIX = re.compile(
    r"^\(.*? pid=\d+\) (?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] )?", re.MULTILINE
)
NOISE = '(APIServer pid=1) INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n'
OTHER = "(Worker_TP9 pid=99) WARNING 11-29 14:00:00 [other.py:1] something else entirely\n"


def expected(path: Path) -> dict[str, object]:
    answer: dict[str, object] = json.loads(path.with_suffix(".json").read_text())
    return answer


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
def test_the_expected_rule_is_the_cause(path: Path) -> None:
    assert diagnose([path]).cause == expected(path)["rule"]


@pytest.mark.parametrize("path", FAILED, ids=lambda p: p.stem)
def test_what_else_fired_is_ranked_below(path: Path) -> None:
    found = {finding.rule for finding in diagnose([path]).findings[1:]}
    from_argv = {"TOK06"}  # needs the engines, see below
    assert found == set(expected(path)["also"]) - from_argv  # type: ignore[call-overload]


def test_nothing_is_found_in_a_healthy_log() -> None:
    healthy = next(path for path in LOGS if "negative" in path.stem)
    answer = diagnose([healthy])
    assert (answer.cause, answer.findings, exit_code(answer.findings)) == (None, [], 0)


def interleaved(text: str) -> str:
    return "".join(OTHER + line for line in text.splitlines(keepends=True))


FORMATS: dict[str, Callable[[str], str]] = {
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "no prefix": lambda text: PREFIX.sub("", text),
    "coloured": lambda text: re.sub(
        r"^(\(.*? pid=\d+\))", "\x1b[0;36m\\1\x1b[0;0m", text, flags=re.MULTILINE
    ),
    "twice": lambda text: text + text,
    "interleaved": interleaved,
    "cut short": lambda text: text.rstrip("\n"),
    "after a progress bar": lambda text: "Loading: 50%\r" + text,
    "behind megabytes": lambda text: NOISE * (CHUNK // len(NOISE) + 7) + text + NOISE * 9,
}
BY_FIGURES = ("18_", "27_")  # one stats line; twice of it says other figures, not other facts


@pytest.mark.parametrize("path", FAILED, ids=lambda p: p.stem[:20])
@pytest.mark.parametrize("name", FORMATS)
def test_the_format_does_not_matter(name: str, path: Path, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(FORMATS[name](path.read_text()).encode())
    assert diagnose([log]).cause == expected(path)["rule"]


@pytest.mark.parametrize("path", FAILED, ids=lambda p: p.stem[:20])
def test_any_beginning_of_a_log_is_read_without_trouble(path: Path, tmp_path: Path) -> None:
    content, log = path.read_bytes(), tmp_path / "engine.log"
    for cut in range(0, len(content), max(1, len(content) // 12)):
        log.write_bytes(content[:cut] + b"\xff\x00")
        diagnose([log])


def test_a_log_knows_the_line_of_its_evidence() -> None:
    answer = diagnose([next(p for p in LOGS if p.stem.startswith("11"))])
    assert answer.findings[0].where == "11_gpu_memory_taken.log:7 (Worker_TP3 pid=8103)"
    assert answer.findings[0].evidence[0].startswith("ValueError: Free memory on device cuda:3")


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        ("10_", "--max-model-len 262144"),
        ("11_", "81.5 GiB on cuda:3"),
        ("13_", "--attention-backend"),
        ("14_", "kv_rank, kv_parallel_size, kv_buffer_size"),
        ("15_", "10.20.0.5:5600"),
        ("20_", "TP1 x PCP8 or TP2 x PCP4 or TP4 x PCP2"),
        ("23_", "-9: killed from outside"),
        ("24_", "8192-16384"),
        ("26_", "172.17.0.2:5600"),
        ("27_", "--max-num-seqs 32"),
    ],
)
def test_the_fix_uses_what_the_log_says(stem: str, words: str) -> None:
    answer = diagnose([next(p for p in LOGS if p.stem.startswith(stem))])
    assert words in answer.findings[0].fix


def test_the_command_line_joins_the_log() -> None:
    oom = next(p for p in LOGS if p.stem.startswith("24"))
    answer = diagnose([oom], pair(p="--max-num-batched-tokens 1048576"))
    assert answer.cause == "MEM08"
    assert "TOK06" in {finding.rule for finding in answer.findings}
    assert "(it is 1048576)" in answer.findings[0].fix


def test_a_dead_prefill_engine_is_the_cause_of_its_peers_failed_transfers(tmp_path: Path) -> None:
    transfer = next(p for p in LOGS if p.stem.startswith("15"))
    dead = next(p for p in LOGS if p.stem.startswith("11"))
    for order in ([transfer, dead], [dead, transfer]):
        answer = diagnose(order)
        assert answer.cause == "MEM03"
        assert "RUN03" in {finding.rule for finding in answer.findings}


def test_an_engine_that_waits_for_its_listener_for_ever_is_found(tmp_path: Path) -> None:
    log = tmp_path / "d0.log"
    log.write_text("(EngineCore pid=5) INFO 11-29 14:52:01 [base_scheduler.py:109] Initializing "
                   "NIXL Scheduler 5f0d\n")  # fmt: skip
    assert diagnose([log]).cause == "RUN19"
    log.write_text(log.read_text() + "INFO:     Application startup complete.\n")
    assert diagnose([log]).cause is None


@pytest.mark.parametrize(("codes", "cause"), [("{}", "RUN27"), ("{'EngineCore_DP0': -9}", "RUN26")])
def test_an_engine_core_that_went_without_a_word_is_the_cause(
    tmp_path: Path, codes: str, cause: str
) -> None:
    log = tmp_path / "p0.log"
    head = "(APIServer pid=4) "
    lines = ["Traceback (most recent call last):", '  File "utils.py", line 3, in f',
             "RuntimeError: Engine core initialization failed. See root cause above. "
             f"Failed core proc(s): {codes}"]  # fmt: skip
    log.write_text("".join(f"{head}{line}\n" for line in lines))
    answer = diagnose([log])
    assert answer.cause == cause
    assert "OOM killer" in answer.findings[0].fix


def test_an_error_that_no_rule_knows_is_shown(tmp_path: Path) -> None:
    head = "(EngineCore pid=5) ERROR 11-29 14:52:01 [core.py:1510] "
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):",
             '  File "x.py", line 3, in f', "zlib.error: odd", "QuantumError: flux"]  # fmt: skip
    log = tmp_path / "p0.log"
    log.write_text("".join(f"{head}{line}\n" for line in lines))
    answer = diagnose([log])
    assert answer.cause == "RUN22"
    assert answer.findings[0].value == "QuantumError: flux"


def test_a_wrapper_alone_is_a_finding_and_no_cause(tmp_path: Path) -> None:
    log = tmp_path / "p0.log"
    log.write_text("(EngineCore pid=5) ERROR 11-29 14:52:01 [core.py:1510] EngineCore failed to "
                   "start.\n")  # fmt: skip
    answer = diagnose([log])
    assert (answer.cause, [f.rule for f in answer.findings]) == (None, ["RUN13"])
    assert exit_code(answer.findings) == 1


def test_invalid_answers_are_named(tmp_path: Path) -> None:
    head = "(Worker_TP0 pid=5) ERROR 11-29 14:52:01 [pull_worker.py:661] "
    log = tmp_path / "p0.log"
    log.write_text("".join(
        f"{head}Potentially invalid KV blocks for unrecognized request cmpl-{i}-0 were retrieved "
        "by a decode worker.\n" for i in range(42)))  # fmt: skip
    found = diagnose([log]).findings[0]
    assert (found.rule, found.count) == ("RUN02", 42)
    assert "cmpl-41-0" in found.value
    assert "cmpl-0-0" in found.fix


def test_a_busy_rank_while_starting_means_nothing_and_while_serving_something(
    tmp_path: Path,
) -> None:
    wait = ("(EngineCore pid=5) INFO 11-29 14:58:05 [shm_broadcast.py:750] No available shared "
            "memory broadcast block found in 60 seconds.\n")  # fmt: skip
    ready = "INFO:     Application startup complete.\n"
    log = tmp_path / "e0.log"
    log.write_text(wait + ready)
    assert diagnose([log]).cause is None
    log.write_text(ready + wait)
    assert diagnose([log]).cause == "RUN10"


def test_a_missing_log_is_a_bad_question(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="cannot be read"):
        diagnose([tmp_path / "none.log"])


API, CORE = "(APIServer pid=1)", "(EngineCore pid=2)"
STARTED = (
    f"{API} WARNING 11-29 18:01:00 [system_utils.py:255] Found ulimit of 20000 and failed to "
    "automatically increase with error current limit exceeds maximum limit.\n"
    f"{API} INFO:     Application startup complete.\n"
)
STOP = f"{API} INFO 11-29 18:01:35 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
DEAD = (
    f"{API} ERROR 11-29 18:01:35 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
)
KILLED = (
    f"{CORE} ERROR 11-29 18:01:35 [multiproc_executor.py:316] Worker proc VllmWorker-0 died "
    "unexpectedly (exit code: -9), shutting down executor.\n"
)


def test_an_engine_that_is_stopped_while_it_streams_is_healthy(tmp_path: Path) -> None:
    log = tmp_path / "e0.log"
    log.write_text(STARTED + STOP + KILLED + DEAD)
    assert diagnose([log]).findings == []


def test_what_happened_before_the_stop_counts_and_a_remark_is_never_the_cause(
    tmp_path: Path,
) -> None:
    log = tmp_path / "e0.log"
    log.write_text(STARTED + KILLED + DEAD + STOP)
    answer = diagnose([log])
    assert answer.cause == "RUN08"
    assert [f.rule for f in answer.findings if f.severity == "info"][-1:] == ["ENV07"]
    log.write_text(STARTED + DEAD)
    answer = diagnose([log])
    assert (answer.cause, answer.findings[0].rule) == (None, "RUN13")


def test_a_killed_worker_whose_exit_code_was_not_known_yet(tmp_path: Path) -> None:
    log = tmp_path / "e0.log"
    cancelled = KILLED.replace("-9", "None") + f"{CORE} ERROR 11-29 18:01:35 [core.py:1512] "
    log.write_text(STARTED + cancelled + "RuntimeError: cancelled\n" + DEAD)
    answer = diagnose([log])
    assert answer.cause == "RUN08"
    assert "OOM killer" in answer.findings[0].fix
