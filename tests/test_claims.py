"""Two campaigns never share a device; a crash leaves none locked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twolane import claims
from twolane.config import Layout, load_campaign
from twolane.errors import QuestionError

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.fixture
def layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Layout]:
    monkeypatch.setenv(claims.VARIABLE, str(tmp_path / "locks"))
    return [arm.layout for arm in load_campaign(CONFIGS / "demo.yaml").arms]


def test_a_device_is_held_once_and_then_free_again(layouts: list[Layout], tmp_path: Path) -> None:
    another = claims.held(layouts[:1], "cpu", "another")
    with claims.held(layouts, "cpu", "campaign demo"):  # noqa: SIM117 - one is inside the other
        with pytest.raises(QuestionError) as refused, another:
            pass
    assert refused.value.what == f"CPU core 0 is held by campaign demo (pid {os.getpid()})"
    assert f"kill -INT {os.getpid()}" in refused.value.remedy
    assert refused.value.place == str(tmp_path / "locks" / "core-0.lock")
    with claims.held(layouts, "cpu", "another") as claim:
        assert len(claim.descriptors) == 2


def test_other_devices_are_nobodys_business(layouts: list[Layout]) -> None:
    other = Layout("other", (layouts[0].engines[1],))
    first = Layout("first", (layouts[0].engines[0],))
    with claims.held([first], "cpu", "one"), claims.held([other], "cpu", "another"):
        pass


def test_a_refused_claim_gives_back_what_it_had(layouts: list[Layout]) -> None:
    first, last = (Layout("one", (engine,)) for engine in layouts[0].engines)
    with claims.held([last], "cpu", "one"):
        both = claims.held(layouts, "cpu", "both")
        with pytest.raises(QuestionError, match="core 1"), both:
            pass
        with claims.held([first], "cpu", "free again"):
            pass


def test_a_file_left_by_a_crash_locks_nothing(layouts: list[Layout], tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "core-0.lock").write_text("1 a campaign of long ago\n")
    with claims.held(layouts, "cpu", "new"):
        said = (tmp_path / "locks" / "core-0.lock").read_text()
    assert said == f"{os.getpid()} new\n"


def test_engines_that_outlive_their_campaign_are_waited_for(
    layouts: list[Layout], tmp_path: Path
) -> None:
    """A descriptor that was inherited holds the device while its process lives."""
    with claims.held(layouts, "cpu", "killed") as claim:
        engine = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=claim.descriptors
        )
    lock = tmp_path / "locks" / "core-0.lock"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock.write_text(f"{gone.pid} killed\n")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert engine.stdin is not None
        engine.stdin.close()
        engine.wait()

    try:
        with claims.held(layouts, "cpu", "next", sleep=sleep):
            assert len(waits) == 1
    finally:
        engine.kill()
        engine.wait()


def test_others_on_other_devices_are_told_and_refused_unless_they_may_be_there(
    layouts: list[Layout],
) -> None:
    first, last = (Layout("one", (engine,)) for engine in layouts[0].engines)
    alone = claims.held([last], "cpu", "a campaign", beside=False)
    with claims.held([first], "cpu", "up demo copies"):
        with pytest.raises(QuestionError, match="up demo copies") as refused, alone:
            pass
        assert "beside_others" in refused.value.remedy
        with claims.held([last], "cpu", "a campaign") as claim:
            assert claim.beside == (f"up demo copies (pid {os.getpid()}) holds core-0",)
    with claims.held([last], "cpu", "a campaign", beside=False) as claim:
        assert claim.beside == ()
