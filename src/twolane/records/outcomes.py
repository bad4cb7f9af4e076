"""What a cell came to: gate answers, reason codes, seals, figures."""

from __future__ import annotations

import msgspec

from twolane.records.cells import AnyCell


class NeedleAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One needle prompt's outcome; `reason` says why it missed, empty if it did not."""

    request: str
    length: int
    depth: float
    expected: str
    got: str
    ok: bool
    reason: str = ""


class NeedleResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """needle.json: every needle answer, and the greedy probes compared across arms.

    `greedy` maps a probe's id (length and seed) to the token ids or text the arm produced.
    `inherited_from` names another run when the gate was taken over from it.
    """

    answers: list[NeedleAnswer] = []
    greedy: dict[str, str] = {}
    inherited_from: str | None = None

    @property
    def passed(self) -> bool:
        return bool(self.answers) and all(a.ok for a in self.answers)


class Code(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a point enters no verdict: a reason code of docs/how-we-measure.md and its evidence."""

    code: str
    why: str
    value: float | None = None
    limit: float | None = None


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell was when it ended, so that a later change of its files is seen (see seal.py).

    Its requests were `count` lines of together `size` bytes, the first one at byte `start` of
    requests.jsonl. `lines` is the digest of these lines in order; `summary` that of the cell's own
    line, less this seal, and of the run it belongs to. `measures` is the version of the
    definitions by which its values were taken.
    """

    count: int
    start: int
    size: int
    lines: str
    summary: str
    measures: int


class CellSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of cells.jsonl: a cell's values by metric name, and its seal.

    Every value can be recomputed from requests.jsonl; the analysis does so where there is no seal
    that holds, or other definitions made them. Names end in their unit (`_ms`, `_s`, `_tok_s`,
    `_tokens`). JSON has no infinity: a value of a request that never answered is null, and its
    name is in `never`.
    """

    cell: AnyCell
    started_ns: int
    ended_ns: int
    window_ns: tuple[int, int] | None = None
    values: dict[str, float | None] = {}
    never: list[str] = []
    codes: list[Code] = []
    seal: Seal | None = None
