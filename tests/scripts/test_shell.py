"""What the scripts answer before they install anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = ["setup", "test", "demo", "lint", "lock"]


def _asked(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / name), *words],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
        check=False,
    )


@pytest.mark.parametrize("word", ["-h", "--help"])
@pytest.mark.parametrize("name", NAMES)
def test_help_says_how_it_is_called_and_installs_nothing(name: str, word: str) -> None:
    answer = _asked(name, word)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert f"  scripts/{name}" in answer.stdout


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_word_is_refused_before_anything_is_installed(name: str) -> None:
    answer = _asked(name, "bogus")
    assert answer.returncode == 2
    assert "unknown word: bogus" in answer.stderr
    assert "--help" in answer.stderr


def test_the_demo_installs_nothing_for_help_or_a_stray_word_behind_its_options() -> None:
    answer = _asked("demo", "--json", "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "  scripts/demo" in answer.stdout
    stray = _asked("demo", "--blocks", "3", "--json", "bogus")
    assert stray.returncode == 2
    assert "unknown word: bogus" in stray.stderr
