"""Conversations that grow turn by turn, one worker a user.

Rules of this file: a turn's prompt is the whole history and the new text, so the next turn can
only be made when this one is answered; that happens between turns, where nobody measures. A turn
that fails ends its conversation with the reason; the other users go on. A conversation that was
cut goes on where it was: its last answered turn is asked again, as a warm-up that counts nowhere,
so that the new engine holds the history that the next turn builds on.

Where a byte is no token, the history is token ids, of answers those that the server told. Only what
is new is tokenised: nothing merges across a seam, each prompt has exactly its length, and what an
engine holds of it is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from twolane import clock
from twolane.analysis.measures import tpot_ns
from twolane.errors import AnswerError
from twolane.gates import conversation
from twolane.load import exact
from twolane.load.crew import Crew
from twolane.load.orders import Ask, Expected
from twolane.load.workloads import Outcome, Say
from twolane.records import RampCell, Request

NEVER: Final = "its turn to begin never came"


async def run(
    cell: RampCell,
    crew: Crew,
    prefix: str,
    say: Say,
    *,
    seed: int,
    answered: Sequence[Request] = (),
    encode: exact.Encode | None = None,
) -> Outcome:
    """Every user's conversation, after the turns that were `answered` before; the window spans
    all that is said now. With `encode`, the server's tokeniser, prompts are token ids.

    Raises QuestionError if a turn is too short for what it asks.
    """
    users = [
        _User(cell, crew, prefix, say, seed=seed, number=n, encode=encode)
        for n in range(cell.users)
    ]
    for user in users:
        await user.go_on_after([turn for turn in answered if turn.user == user.number])
    begin_ns = clock.now_ns()
    await asyncio.gather(
        *(user.run(users[user.number - 1] if user.number else None) for user in users)
    )
    problems = [f"user {user.number}: {user.problem}" for user in users if user.problem]
    return Outcome((begin_ns, clock.now_ns()), "; ".join(problems) or None)


class _User:
    def __init__(
        self,
        cell: RampCell,
        crew: Crew,
        prefix: str,
        say: Say,
        *,
        seed: int,
        number: int,
        encode: exact.Encode | None,
    ) -> None:
        self.number = number
        self.problem: str | None = None
        self._cell = cell
        self._crew = crew
        self._prefix = prefix
        self._say = say
        self._turns = conversation.make(cell.prompt, cell.turns, cell.output, seed, number)
        self._history = _Text() if encode is None else _Ids(encode)
        self._history_tokens = (0, 0)
        self._next = 0
        self._reached = asyncio.Event()
        self._over = asyncio.Event()

    async def go_on_after(self, answered: Sequence[Request]) -> None:
        """Take over these turns, the first ones in order, and have the last one's KV made again.

        A warm-up that fails is no fault of its own: the next turn will show what is wrong.
        """
        last: Ask | None = None
        for turn in answered:
            last = await self._ask(turn.index)
            await self._take(last, turn)
        if last is None or self._next == self._cell.turns:
            return
        self._say(f"user {self.number}: history again", self._next, self._cell.turns)
        again = msgspec.structs.replace(
            last,
            key=self._cell.users * self._cell.turns + self.number,
            id=f"{self._prefix}-again-{self.number}-{last.index}",
            role="warmup",
            history_prompt=0,
            history=0,
            expected=None,
            keep_text=False,
            keep_ids=False,
        )
        await self._answer(again)

    async def run(self, before: _User | None) -> None:
        """Wait until the user before has come far enough, then say turn after turn."""
        try:
            if before is not None and not await before.far_enough():
                self.problem = NEVER
                return
            for turn in range(self._next, self._cell.turns):
                self._say(f"user {self.number}", turn, self._cell.turns)
                answered = await self._turn(turn)
                if fault := _fault(answered):
                    self.problem = f"{self._name(answered)}: {fault}"
                    return
        except AnswerError as error:
            self.problem = f"turn {self._next + 1} of {self._cell.turns}: {error}"
        finally:
            self._over.set()

    def _name(self, turn: Request) -> str:
        return f"turn {turn.index + 1} of {self._cell.turns} ({turn.prompt_asked} tokens)"

    async def far_enough(self) -> bool:
        """Wait until a turn of `after` tokens was answered; False if that never came to be."""
        waits = [asyncio.ensure_future(e.wait()) for e in (self._reached, self._over)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._reached.is_set()

    async def _turn(self, turn: int) -> Request:
        ask = await self._ask(turn)
        answered = await self._answer(ask)
        await self._take(ask, answered)
        return answered

    async def _answer(self, ask: Ask) -> Request:
        await self._crew.prepare(self.number, [ask])
        self._crew.fire(self.number, [ask.key], clock.now_ns())
        await self._crew.until(_has(self._crew, ask.key))
        return self._crew.done[ask.key]

    async def _take(self, ask: Ask, answered: Request) -> None:
        """The turn `ask` is part of the history now, with its answer."""
        prompt = answered.prompt_tokens or ask.prompt
        fault = _fault(answered)
        if fault is None:
            held = await asyncio.to_thread(self._history.take, ask, answered)
            self._history_tokens = (prompt, prompt + held)
        self._next = ask.index + 1
        if fault is None and answered.prompt_asked >= self._cell.after:
            self._reached.set()

    async def _ask(self, turn: int) -> Ask:
        new = self._turns[turn]
        tokens = conversation.lengths(self._cell.prompt, self._cell.turns)[turn]
        ask = Ask(
            key=self.number * self._cell.turns + turn,
            id=f"{self._prefix}-turn-{self.number}-{turn}",
            cell=self._cell.id,
            role="turn",
            index=turn,
            user=self.number,
            prompt=tokens,
            output=self._cell.output,
            keep_text=True,
            history_prompt=self._history_tokens[0],
            history=self._history_tokens[1],
            expected=Expected(new.key, new.answer, new.others),
        )
        return await asyncio.to_thread(self._history.asked, ask, new.text)


class _Text:
    """What was said so far, where a byte is a token."""

    def __init__(self) -> None:
        self._said = ""

    def asked(self, ask: Ask, new: str) -> Ask:
        """`ask` with all that was said, and what is new."""
        return msgspec.structs.replace(ask, text=self._said + new)

    def take(self, ask: Ask, answered: Request) -> int:
        """The answer is part of the history; returns how many tokens of it an engine holds."""
        self._said = (ask.text or "") + (answered.text or "")
        return answered.output_tokens


class _Ids:
    """What was said so far, as token ids. Blocking: it asks the server's tokeniser."""

    def __init__(self, encode: exact.Encode) -> None:
        self._encode = encode
        self._said: list[int] = []

    def asked(self, ask: Ask, new: str) -> Ask:
        """`ask` with all that was said, and so much of what is new as makes its length."""
        more = exact.fitted(new, ask.prompt - len(self._said), self._encode)
        return msgspec.structs.replace(ask, ids=self._said + more, keep_ids=True)

    def take(self, ask: Ask, answered: Request) -> int:
        """As `_Text`'s. A server that does not tell ids gives text, which may come back as others:
        certain is then the prompt alone, unless it comes back as as many as it was."""
        ids = answered.answer_ids or self._encode(answered.text or "")
        self._said = [*(ask.ids or ()), *ids]
        return len(ids) if len(ids) == answered.output_tokens else 1


def _has(crew: Crew, key: int) -> Callable[[], bool]:
    return lambda: key in crew.done


def _fault(turn: Request) -> str | None:
    """Why a conversation cannot go on after this turn."""
    if turn.error is not None:
        came = "" if turn.first_ns is None else "a first token came, then "
        return f"{came}{turn.error}"
    if turn.output_asked > 1 and tpot_ns(turn) is None:
        return f"a first token came, but no second ({turn.finish_reason})"
    return None
