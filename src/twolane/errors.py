"""Every error that twolane raises on purpose.

    TwolaneError            names the place, the value and the remedy; has an exit code
    ├── QuestionError       the question was bad: configuration, arguments, missing files   (2)
    │   └── ConfigError     ... at file:line:col                                            (2)
    └── AnswerError         the question was good, the answer is bad                        (1)
        ├── EngineError     an engine died, hung, or did not start                          (1)
        └── GateError       a gate failed: the numbers that would follow mean nothing       (1)

Anything else that escapes is a defect of twolane.
"""


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

    def __str__(self) -> str:
        head = f"{self.place}: {self.what}" if self.place else self.what
        return f"{head}\n  remedy: {self.remedy}" if self.remedy else head


class QuestionError(TwolaneError):
    exit_code = 2


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
