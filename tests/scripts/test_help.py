"""Every Python script says what it does, from any folder and without an installed twolane."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Two are started by others, with numbers alone; two import the engine or its tokenizers first.
NOT_ASKED = {"bare-relay", "paced-engines", "tokenise", "vllm-facts"}


def is_ours(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK) and b"python" in path.read_bytes()[:100]


SCRIPTS = [
    path
    for path in sorted([*(ROOT / "scripts").iterdir(), *(ROOT / "scripts/bench").iterdir()])
    if is_ours(path) and path.name not in NOT_ASKED
]


def test_there_are_scripts() -> None:
    assert {"rules", "published", "load", "proxy"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help(script: Path, tmp_path: Path) -> None:
    said = subprocess.run(
        [script, "--help"], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("usage:")
    assert list(tmp_path.iterdir()) == []
