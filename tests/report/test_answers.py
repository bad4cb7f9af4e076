"""The answers say what was found, how sure that is, and what would have to be measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.report.synthetic import ARMS, INTERFERENCE, make

from twolane.analysis.arms import Arm
from twolane.analysis.capacity import SLOS, Level, capacity
from twolane.analysis.frontier import BudgetLimit
from twolane.analysis.reading import Faults
from twolane.analysis.results import Results, load
from twolane.cli import cli
from twolane.records import Code
from twolane.report import answers_budget, answers_users
from twolane.report.answer import Answer, Grade, graded, grouped
from twolane.report.answers import answers, plain, section
from twolane.report.facts import Facts

PLAIN = str.maketrans("\N{NARROW NO-BREAK SPACE}\N{NO-BREAK SPACE}\u2019", "  '")


def told(folder: Path) -> dict[str, Answer]:
    return {one.id.partition("-")[0]: one for one in answers(Facts(load(folder)))}


def test_every_question_is_asked_and_one_block_is_indicative(tmp_path: Path) -> None:
    found = told(make(tmp_path / "r"))
    assert list(found) == ["budget", "alone", "pays", "costs", "users"]
    assert {one.state for one in found.values()} == {"indicative"}
    assert found["budget"].answer.translate(PLAIN) == (
        "Under 100 ms: at 6,000 tokens none measured (256 already gives 310 ms). "
        "Under 250 ms: at 6,000 tokens none measured (256 already gives 310 ms)."
    )
    assert found["budget"].missing == "an arm with a budget below 256"
    assert found["alone"].answer.startswith("Under 100 ms: at 6,000 tokens no, only the split.")


def test_blocks_make_answers_of_them(tmp_path: Path) -> None:
    found = told(make(tmp_path / "r", blocks=3))
    assert (found["budget"].state, found["alone"].state) == ("bounded only", "answered")
    (pays,) = [
        one for one in answers(Facts(load(tmp_path / "r"))) if one.id.startswith("pays-prompt")
    ]
    assert pays.state == "bounded only"
    assert pays.answer.startswith("From 6,000 tokens at the latest, the only one measured")
    assert "against copies_256 (2 devices against 2): " in found["costs"].answer


def test_where_codes_leave_nothing_it_cannot_tell_and_says_what_is_missing(tmp_path: Path) -> None:
    busy = {INTERFERENCE.id: [Code(code="BUSY", why="other programs used 31 % of CPU time")]}
    found = told(make(tmp_path / "r", codes={arm.name: busy for arm in ARMS}))
    for name in ("budget", "alone", "pays", "costs"):
        assert found[name].state == "cannot tell"
        assert found[name].missing
    assert "a clean run at any budget" in found["budget"].missing


@pytest.mark.parametrize(
    ("grades", "sure", "said"),
    [
        (["exact", "exact"], True, "answered"),
        (["exact", "bound"], True, "partly answered"),
        (["bound", "unknown"], True, "partly answered"),
        (["bound", "bound"], True, "bounded only"),
        (["bound", "bound"], False, "indicative"),
        (["unknown"], True, "cannot tell"),
    ],
)
def test_only_what_is_known_everywhere_is_answered(
    grades: list[Grade], sure: bool, said: str
) -> None:
    assert graded(grades, sure) == said


def test_budgets_and_users_are_read_in_their_tables(tmp_path: Path) -> None:
    shown = section(Facts(load(make(tmp_path / "r", blocks=3))))
    assert shown is not None
    assert "<summary>In words</summary>" not in shown
    assert shown.count("<summary>In numbers</summary>") == 3


def test_a_campaign_without_a_split_is_not_asked_about_it(tmp_path: Path) -> None:
    assert list(told(make(tmp_path / "r", arms=ARMS[:2]))) == ["budget", "alone", "users"]


def test_prompts_with_the_same_answer_are_told_together() -> None:
    pairs = [(3000, "no"), (1000, "yes"), (2000, "yes")]
    assert grouped(pairs) == "at 1,000 and 2,000 tokens yes; at 3,000 tokens no"


def test_every_answer_is_a_card_with_its_table(tmp_path: Path) -> None:
    shown = section(Facts(load(make(tmp_path / "r"))))
    assert shown is not None
    assert shown.count("<article") == 5
    assert shown.count("<table") == 5
    assert 'class="state indicative"' in shown


def test_the_terminal_gets_the_same_sentences(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    outcome = CliRunner().invoke(cli, ["report", str(folder)])
    assert outcome.exit_code == 0
    text = plain(answers(Facts(load(folder))))
    assert text in outcome.output
    assert "Would a budget alone do, without a split? [indicative]" in text


def test_a_machine_may_ask_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "r")
    outcome = CliRunner().invoke(cli, ["report", str(folder), "--json"])
    assert outcome.exit_code == 0
    assert '"state":"indicative"' in outcome.output


def test_cells_with_other_numbers_of_readers_are_told_apart() -> None:
    def limit(victims: int, held: int, exceeded: int) -> BudgetLimit:
        return BudgetLimit(
            "copies", 2, 6000, victims, 100.0, "bracketed", 3, held, exceeded, 1000.0
        )

    facts = Facts(Results(Path(), (), Faults()))
    found = answers_budget.budget(facts, [limit(1, 512, 2048), limit(8, 256, 512)])
    assert found is not None
    assert found.state == "answered"
    assert "Under 100 ms, 1 reader: at 6,000 tokens budget 512, not 2,048" in found.answer
    assert "Under 100 ms, 8 readers: at 6,000 tokens budget 256, not 512" in found.answer
    assert found.rows[1][0] == "6,000, 8 readers"


def test_engines_that_somebody_else_started_have_no_devices() -> None:
    """As `twolane bench` finds them: users are told in all."""
    arm = Arm("server", "one engine", "server", None, devices=0, engines=1)
    runs = [Level(4, 100, 100), Level(64, 0, 100)]
    found = answers_users.users(
        Facts(Results(Path(), (), Faults())), [capacity(SLOS[0], arm, "prompts of 8", runs)]
    )
    assert found is not None
    assert found.rows[0][2] == "4 in all (devices not known)"
