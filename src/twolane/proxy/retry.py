"""How often a request may be asked again.

Rules of this file: pure. An engine that breaks breaks many requests at once, and each asked again
doubles the work of those that are left; so there is a budget, a share of the requests that came
in. It is 0 unless it is set.
"""

from __future__ import annotations

_SAVED_AT_MOST = 10.0  # so that quiet hours do not pay for a storm


class RetryBudget:
    """`share` of the requests may be asked again: 0.1 is one in ten. `used` counts them."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = 0.0
        self.used = 0

    def configure(self, share: float) -> None:
        """Another share from now on."""
        self._share = share

    def earn(self) -> None:
        """A request has come in."""
        self._saved = min(_SAVED_AT_MOST, self._saved + self._share)

    def take(self) -> bool:
        """Whether one more may be asked again; it is counted then."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self.used += 1
        return True
