"""Every error that twolane raises on purpose.

    TwolaneError            names the place, the value and the remedy; has an exit code
    ├── QuestionError       the question was bad: configuration, arguments, missing files   (2)
    │   └── ConfigError     ... at file:line:col                                            (2)
    └── AnswerError         the question was good, the answer is bad                        (1)
        ├── EngineError     an engine died, hung, or did not start                          (1)
        └── GateError       a gate failed: the numbers that would follow mean nothing       (1)

Anything else that escapes is a defect of twolane. Who reads a file with `Faults` tells all of its
mistakes at once: the first is raised and has the others in `also`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TwolaneError(Exception):
    """An error a person can act on.

    `place` is where (a file position, an engine, a port), `what` says what is wrong with which
    value, `remedy` what to do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, place: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.place = place
        self.remedy = remedy

    @property
    def each(self) -> tuple[TwolaneError, ...]:
        """The error, and those that were found with it."""
        return (self,)

    def __str__(self) -> str:
        return "\n".join(one.alone() for one in self.each)

    def alone(self) -> str:
        """This error in words, without those that were found with it."""
        head = f"{self.place}: {self.what}" if self.place else self.what
        return f"{head}\n  remedy: {self.remedy}" if self.remedy else head


class QuestionError(TwolaneError):
    """`also` are independent mistakes of the same question, in the order of their places."""

    exit_code = 2
    also: tuple[QuestionError, ...] = ()

    @property
    def each(self) -> tuple[QuestionError, ...]:
        return (self, *self.also)


class ConfigError(QuestionError):
    """A fault in a configuration file; `place` is `file:line:col`, lines and columns from 1."""


class AnswerError(TwolaneError):
    exit_code = 1


class EngineError(AnswerError):
    """An engine died, hung or never became ready; `log_tail` holds its last lines."""

    def __init__(
        self, what: str, *, place: str = "", remedy: str = "", log_tail: tuple[str, ...] = ()
    ) -> None:
        super().__init__(what, place=place, remedy=remedy)
        self.log_tail = log_tail


class GateError(AnswerError):
    """A needle or equality gate failed."""


class Faults:
    """Mistakes as they are found, so that one reading of a file names all of them."""

    def __init__(self) -> None:
        self.found: list[QuestionError] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the QuestionError that ends the block, and goes on behind it."""
        try:
            yield
        except QuestionError as error:
            self.add(error)

    def add(self, error: QuestionError) -> None:
        """Keep `error` and those found with it; what is known is not told twice."""
        known = {(one.place, one.what) for one in self.found}
        self.found += [one for one in error.each if (one.place, one.what) not in known]

    def refuse(self) -> None:
        """Raises what was found, if anything was, by its place in each file."""
        if not self.found:
            return
        files = list(dict.fromkeys(_position(one)[0] for one in self.found))
        first, *rest = sorted(
            self.found, key=lambda one: (files.index(_position(one)[0]), *_position(one)[1:])
        )
        first.also = tuple(rest)
        for one in rest:
            one.also = ()
        raise first


def _position(error: TwolaneError) -> tuple[str, int, int]:
    """The file, line and column of an error's place; zeros where it has none."""
    name, *numbers = error.place.rsplit(":", 2)
    if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
        return name, int(numbers[0]), int(numbers[1])
    return error.place, 0, 0
