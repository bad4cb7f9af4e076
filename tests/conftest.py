"""What all tests share: device locks of their own, so that no campaign of the host is disturbed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from twolane.claims import VARIABLE

settings.register_profile("any machine", deadline=None)  # a busy one is slow, not wrong
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("locks")))
        yield
