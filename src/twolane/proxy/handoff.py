"""The handoff: a single-use lease on a prefill engine's KV blocks.

Rules of this file: no sockets. A handoff is issued when P's answer carried valid parameters, and
from then on it has exactly one owner, the exchange that asked for it, which must bring it to one
of three ends:

    asked -> held -> admitted   D has the request: its scheduler pulls, heartbeats and notifies
                  -> released   D refused it and told P to free the blocks
                  -> expired    nobody could tell P: the lease frees the blocks after 30 s

so that issued = admitted + released + expired + held at any moment, and held is 0 when no
request is in flight. An owner that ends without an end strands its handoff: a defect, counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

import msgspec

from twolane import clock
from twolane.records import UNREADABLE

State = Literal["asked", "held", "admitted", "released", "expired", "stranded"]
End = Literal["admitted", "released", "expired"]


class MalformedHandoffError(Exception):
    """P's answer carried no parameters that D could use without harm; the text says which."""


class StaleHandoffError(Exception):
    """Too old to be read: P may have given the blocks to another request."""


class Params(msgspec.Struct):
    """What D reads. A missing block list raises inside D's scheduler; a missing host or port
    parks the request for good; a missing request id kills a push-mode D. So each must be there.
    """

    do_remote_prefill: bool
    remote_block_ids: list[list[int] | int]
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    do_remote_decode: bool = False
    tp_size: int = 1
    dcp_size: int = 1
    pp_size: int = 1
    remote_num_tokens: int | None = None
    transfer_mode: str | None = None

    @property
    def pushed(self) -> bool:
        """Whether P writes into D's blocks, instead of D reading P's."""
        return self.transfer_mode == "push"


def read_params(raw: bytes | None) -> Params:
    """Check P's `kv_transfer_params`. Raises MalformedHandoffError."""
    if raw is None or raw == b"null":
        raise MalformedHandoffError("no kv_transfer_params: is P a kv_producer?")
    try:
        params = msgspec.json.decode(raw, type=Params)
    except UNREADABLE as error:
        raise MalformedHandoffError(str(error)) from None
    if not params.do_remote_prefill or params.do_remote_decode:
        raise MalformedHandoffError("do_remote_prefill is not true")
    if not any(group != [] for group in params.remote_block_ids):
        raise MalformedHandoffError("remote_block_ids is empty")
    if not (params.remote_engine_id and params.remote_request_id and params.remote_host):
        raise MalformedHandoffError("an identity is empty")
    if not 0 < params.remote_port < 65536:
        raise MalformedHandoffError(f"remote_port is {params.remote_port}")
    return params


class HandoffBook:
    """Counts every handoff of one proxy. `balanced` is the invariant."""

    def __init__(self, now_ns: Callable[[], int] = clock.now_ns) -> None:
        self.now_ns = now_ns
        self.issued = 0
        self.malformed = 0
        self.ends: Counter[State] = Counter()

    def ask(self) -> Handoff:
        """A handoff about to be asked of P; it counts only once it is held."""
        return Handoff(self)

    @property
    def held(self) -> int:
        return self.issued - self.ends.total()

    @property
    def stranded(self) -> int:
        return self.ends["stranded"]

    @property
    def balanced(self) -> bool:
        """issued = admitted + released + expired, nothing held and nothing stranded."""
        ended = self.ends["admitted"] + self.ends["released"] + self.ends["expired"]
        return self.issued == ended


class Handoff:
    """One handoff and its state. `raw` are P's parameters, verbatim."""

    def __init__(self, book: HandoffBook) -> None:
        self._book = book
        self.state: State = "asked"
        self.raw = b""
        self.tokens: int | None = None
        self.params: Params | None = None
        self.held_ns = 0

    def hold(self, raw: bytes | None, since_ns: int | None = None) -> None:
        """P has answered, and its answer had begun to arrive at `since_ns`: the lease runs from
        P's finish, however long the rest of the answer takes.

        Raises MalformedHandoffError, and then nothing was issued."""
        if self.state != "asked":
            raise AssertionError(f"a handoff that is {self.state} cannot be held")
        try:
            params = read_params(raw)
        except MalformedHandoffError:
            self._book.malformed += 1
            raise
        self.raw = raw or b""
        self.params = params
        self.tokens = params.remote_num_tokens
        self.held_ns = since_ns if since_ns is not None else self._book.now_ns()
        self.state = "held"
        self._book.issued += 1

    @property
    def pushed(self) -> bool:
        """Whether P is to write into D's blocks."""
        return self.params is not None and self.params.pushed

    def use(self, max_age_s: float) -> bytes:
        """The parameters, to be sent to D now. Raises StaleHandoffError past `max_age_s`."""
        if self.state != "held":
            raise AssertionError(f"a handoff that is {self.state} cannot be used")
        age_s = (self._book.now_ns() - self.held_ns) / clock.NS
        if age_s > max_age_s:
            raise StaleHandoffError(f"{age_s:.1f} s old, limit {max_age_s:g} s")
        return self.raw

    def end(self, state: End) -> None:
        """The owner knows what became of it. Only a held handoff can end, and only once."""
        if self.state != "held":
            raise AssertionError(f"a handoff that is {self.state} cannot end as {state}")
        self._finish(state)

    def abandon(self) -> None:
        """The owner's last word. Where an end is missing, the handoff is stranded."""
        if self.state == "held":
            self._finish("stranded")

    def _finish(self, state: State) -> None:
        self.state = state
        self._book.ends[state] += 1
