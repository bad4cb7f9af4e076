"""Conversations that grow turn by turn, one worker a user.

Rules of this file: a turn's prompt is the whole history and the new text, so the next turn can
only be made when this one is answered; that happens between turns, where nobody measures. A turn
that fails ends its conversation with the reason; the other users go on. A conversation that was
cut goes on where it was: its last answered turn is asked again, as a warm-up that counts nowhere,
so that the new engine holds the history that the next turn builds on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from twolane import clock
from twolane.analysis.measures import tpot_ns
from twolane.gates import conversation
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
) -> Outcome:
    """Every user's conversation, after the turns that were `answered` before; the window spans
    all that is said now."""
    users = [_User(cell, crew, prefix, say, seed=seed, number=n) for n in range(cell.users)]
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
        self, cell: RampCell, crew: Crew, prefix: str, say: Say, *, seed: int, number: int
    ) -> None:
        self.number = number
        self.problem: str | None = None
        self._cell = cell
        self._crew = crew
        self._prefix = prefix
        self._say = say
        self._turns = conversation.make(cell.prompt, cell.turns, cell.output, seed, number)
        self._history = ""
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
            last = self._ask(turn.index)
            self._take(last, turn)
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
        ask = self._ask(turn)
        answered = await self._answer(ask)
        self._take(ask, answered)
        return answered

    async def _answer(self, ask: Ask) -> Request:
        await self._crew.prepare(self.number, [ask])
        self._crew.fire(self.number, [ask.key], clock.now_ns())
        await self._crew.until(_has(self._crew, ask.key))
        return self._crew.done[ask.key]

    def _take(self, ask: Ask, answered: Request) -> None:
        """The turn `ask` is part of the history now, with its answer."""
        assert ask.text is not None
        self._history = ask.text + (answered.text or "")
        prompt = answered.prompt_tokens or ask.prompt
        self._history_tokens = (prompt, prompt + answered.output_tokens)
        self._next = ask.index + 1
        if _fault(answered) is None and answered.prompt_asked >= self._cell.after:
            self._reached.set()

    def _ask(self, turn: int) -> Ask:
        new = self._turns[turn]
        return Ask(
            key=self.number * self._cell.turns + turn,
            id=f"{self._prefix}-turn-{self.number}-{turn}",
            cell=self._cell.id,
            role="turn",
            index=turn,
            user=self.number,
            prompt=conversation.lengths(self._cell.prompt, self._cell.turns)[turn],
            output=self._cell.output,
            text=self._history + new.text,
            keep_text=True,
            history_prompt=self._history_tokens[0],
            history=self._history_tokens[1],
            expected=Expected(new.key, new.answer, new.others),
        )


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
