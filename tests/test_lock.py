"""A lock is held by an open file, asked about without being taken, and ends with its holder."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from twolane import lock


def test_one_holds_it_and_others_see_that(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not lock.is_taken(path), "it is not even there"
    with path.open("w") as first:
        assert not lock.is_taken(path)
        assert lock.take(first.fileno())
        assert lock.is_taken(path)
        with path.open("w") as second:
            assert not lock.take(second.fileno())
    assert not lock.is_taken(path)


def test_a_file_system_without_locks_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "lock").open("w") as file:
        assert lock.take(file.fileno())
        assert not lock.is_taken(tmp_path / "lock")
