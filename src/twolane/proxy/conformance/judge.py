"""What was seen against what must be seen.

Rules of this file: pure. A complaint is one short sentence; a row without one has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from twolane.proxy.conformance.caller import Got
from twolane.proxy.conformance.scene import HEADERS
from twolane.proxy.conformance.stage import MARK, expected
from twolane.proxy.conformance.table import Kind, Row
from twolane.proxy.fault_engine import Seen

_INTERNAL = (b"127.0.0.1", b"localhost:", b"remote_block_ids", b"do_remote_")
_WRONG = "200 with another text"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What the engines had when the time to settle was over, and what they had been asked."""

    held: int
    working: int
    late_reads: int
    crashed: int
    decode_asked: int
    decode_peak: int
    p_headers: dict[str, str] = {}
    d_headers: dict[str, str] = {}
    served: int = 0  # requests at P

    def text(self) -> str:
        parts = [f"{self.held} held, {self.working} working"]
        parts += [f"{self.late_reads} read late"] if self.late_reads else []
        parts += [f"{self.crashed} would have died"] if self.crashed else []
        return ", ".join(parts)


def headers_seen(seen: list[Seen]) -> dict[str, str]:
    return {name: value for s in seen[:1] for name, value in s.headers.items() if name in HEADERS}


def saw(answers: list[Got]) -> str:
    """What the client saw, in a few words."""
    kinds: dict[str, int] = {}
    for got in answers:
        kind = _brief(got)
        kinds[kind] = kinds.get(kind, 0) + 1
    if not kinds:
        return "the connection was closed"
    return ", ".join(f"{n} x {kind}" if n > 1 else kind for kind, n in kinds.items())


def _brief(got: Got) -> str:
    if got.left and not got.status:
        return "left unanswered"
    if not got.status:
        return "closed without an answer"
    end = "" if got.complete else ", left" if got.left else ", broke off"
    return f"{got.status}{end}"


def complaints(row: Row, answers: list[Got], ended: Ended, prompts: list[str]) -> Iterator[str]:
    """What is wrong; `prompts` are those of the answers, in order."""
    yield from _SEES[row.sees.kind](row, answers, prompts)
    for got in answers:
        yield from _leaks(got)
    yield from _ends(row, ended)


def _ends(row: Row, ended: Ended) -> Iterator[str]:
    if ended.held > row.ends.leased:
        yield f"{ended.held} handoffs stranded until their lease ends"
    if ended.working:
        yield f"engines still work on {ended.working} requests that nobody waits for"
    if ended.late_reads:
        yield f"{ended.late_reads} handoffs read twice or after their lease"
    if ended.crashed:
        yield f"{ended.crashed} requests would have killed a real decode engine"
    if row.ends.decode_asked is not None and ended.decode_asked != row.ends.decode_asked:
        yield f"D was asked {ended.decode_asked} times instead of {row.ends.decode_asked}"
    if ended.decode_peak < row.ends.together:
        yield f"{ended.decode_peak} of {row.ends.together} were at D together"
    yield from _passed_on(row, ended)


def _passed_on(row: Row, ended: Ended) -> Iterator[str]:
    """What reached the engines that should not, and what should have."""
    if row.act == "headers":
        for leg, headers in (("P", ended.p_headers), ("D", ended.d_headers)):
            lost = [name for name, value in HEADERS.items() if headers.get(name) != value]
            if lost:
                yield f"{leg} did not get {', '.join(lost)}"
    if row.act == "smuggled" and ended.served > 1:
        yield "the hidden request reached an engine"


def _leaks(got: Got) -> Iterator[str]:
    for secret in _INTERNAL:
        if secret in got.body:
            yield f"the client was told {secret.decode()}"


# ----------------------------------------------------------------------------- what must be seen


def _answer(row: Row, answers: list[Got], prompts: list[str]) -> Iterator[str]:
    if len(answers) != len(prompts):
        yield f"{len(answers)} answers instead of {len(prompts)}"
    wrong: dict[str, int] = {}
    for got, prompt in zip(answers, prompts, strict=False):
        fault = _fault(row, got, prompt)
        if fault:
            wrong[fault] = wrong.get(fault, 0) + 1
    yield from (f"{n} x {fault}" if n > 1 else fault for fault, n in wrong.items())


def _fault(row: Row, got: Got, prompt: str) -> str:
    """What is wrong with an answer that must be right; empty where nothing is."""
    if got.status != 200:
        return f"{got.status or 'no answer'} instead of 200"
    if not got.complete:
        return "the answer broke off"
    if row.stream and not got.streamed:
        return "not streamed"
    tokens = row.body.get("max_tokens", 4)
    return "" if _texts(got) == [expected(prompt, tokens)] else _WRONG


def _texts(got: Got) -> list[str]:
    try:
        return got.texts
    except (ValueError, LookupError, TypeError, AttributeError):
        return []


def _answers(row: Row, answers: list[Got], prompts: list[str]) -> Iterator[str]:
    (got,) = answers
    asked = row.body.get("prompt", prompts * row.count)
    if got.status != 200:
        yield f"{got.status} instead of 200"
    elif _texts(got) != [expected(prompt) for prompt in asked]:
        yield f"{len(_texts(got))} choices, not the {row.count} right ones"


def _refusal(row: Row, answers: list[Got], _: list[str]) -> Iterator[str]:
    got = answers[0] if answers else Got()
    if got.status not in row.sees.statuses:
        said = f"{got.status or 'a closed connection'}"
        yield f"{said} instead of {' or '.join(map(str, row.sees.statuses))}"
        return
    if not got.complete:
        yield "the error broke off"
    if row.sees.shaped and not _openai_shaped(got):
        yield "the error is not OpenAI-shaped"
    if row.sees.retry_after and "retry-after" not in got.headers:
        yield "no Retry-After"


def _openai_shaped(got: Got) -> bool:
    try:
        return bool(got.json["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return False


def _broken(_: Row, answers: list[Got], __: list[str]) -> Iterator[str]:
    """An error event, or a transfer that does not end as HTTP says it must."""
    for got in answers:
        if got.status == 200 and got.complete and not _tells_error(got):
            yield "a broken stream passes for a complete one"
        elif got.left:
            yield "no end was seen: the client gave up"


def _tells_error(got: Got) -> bool:
    try:
        return any("error" in chunk for chunk in got.chunks)
    except ValueError:
        return False


def _restart(row: Row, answers: list[Got], prompts: list[str]) -> Iterator[str]:
    *under, after = answers
    yield from _broken(row, under, prompts)
    fault = _fault(row, after, f"{MARK} after")
    if fault:
        yield f"5 s after the engine's return: {fault}"


def _nothing(_: Row, __: list[Got], ___: list[str]) -> Iterator[str]:
    return iter(())


_SEES: dict[Kind, Callable[[Row, list[Got], list[str]], Iterator[str]]] = {
    "answer": _answer,
    "answers": _answers,
    "refusal": _refusal,
    "broken": _broken,
    "any failure": _broken,
    "nothing": _nothing,
    "restart": _restart,
}
