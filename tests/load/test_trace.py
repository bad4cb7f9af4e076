"""A file of requests is read, refused where it is none, and sent when it says."""

import itertools
from pathlib import Path

import pytest
from tests.golden_engine import Pace, serve

from twolane.analysis import stats
from twolane.clock import MS
from twolane.config import parse_cell
from twolane.errors import QuestionError
from twolane.gates.validity import judge
from twolane.load import prompts
from twolane.load.driver import Target, drive
from twolane.load.trace import schedule
from twolane.records import Request, TraceCell

MOONCAKE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 4, "hash_ids": [0, 1, 2]}
{"timestamp": 120, "input_length": 1030, "output_length": 3, "hash_ids": [0, 1, 7]}

{"timestamp": 60, "input_length": 40, "output_length": 2, "hash_ids": [9]}
"""
OWN = '{"prompt": "Why?", "output": 2}\n{"prompt": "How so?", "output": 3}\n'


@pytest.fixture
def mooncake(tmp_path: Path) -> str:
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    return str(tmp_path / "trace.jsonl")


def cell_of(text: str) -> TraceCell:
    cell = parse_cell(text)
    assert isinstance(cell, TraceCell)
    assert parse_cell(cell.id) == cell
    return cell


async def driven(cell: TraceCell) -> tuple[list[Request], stats.Values]:
    seen: list[Request] = []
    async with serve(Pace(ttft_s=0.002, gap_s=0.002)) as (_, port):
        target = Target("127.0.0.1", port, "golden")
        run = await drive(cell, target, seed=1, record=seen.append, progress=lambda _: None)
    assert judge(cell, seen, run.window_ns, {}, {}, {}, problem=run.problem) == []
    return sorted(seen, key=lambda r: r.index), stats.summarise(cell, seen, run.window_ns)


async def test_a_trace_is_sent_when_it_says_in_its_lengths(mooncake: str) -> None:
    cell = cell_of(f"trace {mooncake} speed=2")
    assert (cell.prompt, cell.requests) == (1100, 3)
    seen, values = await driven(cell)
    assert [r.due_ns - seen[0].due_ns for r in seen] == [0, 30 * MS, 60 * MS]
    assert [(r.prompt_tokens, r.output_tokens) for r in seen] == [(1100, 4), (40, 2), (1030, 3)]
    assert values["requests"] == 3
    assert (values["sent_late_p50_ms"] or 0) >= 0


async def test_prompts_of_ones_own_are_sent_at_a_rate(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(OWN)
    seen, _ = await driven(cell_of(f"trace {tmp_path / 'own.jsonl'} rate=50"))
    assert [(r.role, r.text) for r in seen] == [("own", "Wh"), ("own", "How")]
    assert seen[0].due_ns < seen[1].due_ns


def test_equal_hash_ids_are_equal_tokens(mooncake: str) -> None:
    cell = cell_of(f"trace {mooncake}")
    asks = {due.ask.index: due.ask for due in schedule(cell, "x", seed=1)}
    for form, shared in itertools.product(("text", "ids"), (1024,)):
        one = prompts.of(asks[0], 5, form)  # type: ignore[arg-type]
        other = prompts.of(asks[2], 5, form)  # type: ignore[arg-type]
        assert (len(one), len(other)) == (1100, 1030)
        assert one[:shared] == other[:shared]
        assert one[shared : shared + 6] != other[shared : shared + 6]


@pytest.mark.parametrize(
    ("lines", "words", "says"),
    [
        ("", "", "the trace is empty"),
        ("{\n", "", "not a request"),
        ('{"output": 3}\n', "", "neither prompt nor input_length"),
        (OWN, "", "no timestamps"),
        (OWN, "rate=2 speed=2", "two paces"),
        (OWN, "rate=2 n=0", "no requests"),
    ],
)
def test_a_file_that_is_no_trace_says_why(
    tmp_path: Path, lines: str, words: str, says: str
) -> None:
    (tmp_path / "t").write_text(lines)
    with pytest.raises(QuestionError, match=says):
        parse_cell(f"trace {tmp_path / 't'} {words}")


def test_a_missing_file_is_a_bad_question() -> None:
    with pytest.raises(QuestionError, match="cannot be read: No such file"):
        parse_cell("trace nowhere.jsonl")
