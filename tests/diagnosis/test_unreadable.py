"""Nothing to read is not the same as nothing found."""

from __future__ import annotations

from pathlib import Path

import pytest

from twolane.diagnosis.commands import load_deployment, run_diagnose
from twolane.errors import QuestionError

LINE = b"(APIServer pid=1) INFO 11-29 16:50:37 [launcher.py:195] Route: /ping, Methods: POST\n"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"\0" * 4000, "not a text log"),
        ("CUDA out of memory\n".encode("utf-16"), "not a text log"),
    ],
)
def test_a_log_without_text_is_a_bad_question(tmp_path: Path, content: bytes, why: str) -> None:
    log = tmp_path / "e.log"
    log.write_bytes(content)
    with pytest.raises(QuestionError, match=why):
        run_diagnose([log])


def test_one_empty_log_beside_a_good_one_is_read_on(tmp_path: Path) -> None:
    empty, good = tmp_path / "a.log", tmp_path / "b.log"
    empty.write_bytes(b"")
    good.write_bytes(LINE * 10 + b"\0" * 200)
    assert run_diagnose([empty, good]).code == 0


@pytest.mark.parametrize("engines", ["[]", '[{"name": "a", "role": "both", "argv": []}]'])
def test_a_deployment_without_engines(tmp_path: Path, engines: str) -> None:
    path = tmp_path / "engines.json"
    path.write_text(f'{{"platform": "cpu", "engines": {engines}}}')
    with pytest.raises(QuestionError, match="no engine with a command line"):
        load_deployment(path)


def test_a_text_of_something_else_is_named_as_such(tmp_path: Path) -> None:
    poem = tmp_path / "poem.txt"
    poem.write_text("I wandered lonely as a cloud\n" * 50)
    with pytest.raises(QuestionError, match="no log of vLLM") as refused:
        run_diagnose([poem])
    assert refused.value.place == str(poem)


@pytest.mark.parametrize(
    "text", [LINE, b'  File "/site-packages/vllm/engine/core.py", line 3\n', b"Killed by vLLM\n"]
)
def test_a_healthy_log_is_none_of_them(tmp_path: Path, text: bytes) -> None:
    log = tmp_path / "e.log"
    log.write_bytes(text)
    assert run_diagnose([log]).text == "nothing found"


def test_an_unknown_key_of_an_engine_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.write_text('{"engines": [{"name": "a", "rol": "both", "argv": ["vllm", "serve", "m"]}]}')
    with pytest.raises(QuestionError, match=r"unknown field `rol` - at `\$.engines\[0\]`"):
        load_deployment(path)
