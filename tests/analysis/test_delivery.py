"""Tokens an event: what tells of an API server that falls behind, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.report.synthetic import GRID, make

from twolane.analysis.delivery import Delivered, fell_behind, servers
from twolane.analysis.points import measure
from twolane.analysis.results import Run, load
from twolane.records import EngineMeta, Request, read_jsonl
from twolane.report import explain as words
from twolane.report import explained
from twolane.report.ledger import bars, figure

SLOW = [3, *[1] * 19, *[2] * 10, 22]
"""Sixty-four tokens in 31 events."""


def requests(count: int = 30, tokens: tuple[int, ...] = ()) -> list[Request]:
    return [
        Request(
            id=f"{i}", cell="c", role="grid", index=i, send_ns=0, due_ns=0, output_tokens=64,
            tokens=list(tokens),
        )
        for i in range(count)
    ]  # fmt: skip


def run(*words: str, folder: Path) -> Run:
    """A run whose engines were also started with `words`; the first is a prefill engine."""
    found = load(make(folder / "r")).of_arm("split_1p1d")[0]
    argv = [["vllm", "serve", *words], ["vllm", "serve", *words]]
    engines: list[EngineMeta] = [
        msgspec.structs.replace(one, argv=given)
        for one, given in zip(found.meta.engines, argv, strict=True)
    ]
    return replace(found, meta=msgspec.structs.replace(found.meta, engines=engines))


def test_an_answer_without_counts_had_one_token_an_event() -> None:
    assert Delivered(requests()).tokens_an_event == 1.0
    assert Delivered(requests(tokens=tuple(SLOW))).tokens_an_event == pytest.approx(64 / 31)
    half = Delivered([*requests(15), *requests(15, tuple(SLOW))])
    assert (half.answers, half.tokens, half.events) == (30, 30 * 64, 15 * 64 + 15 * 31)
    assert Delivered().tokens_an_event is None


def test_counts_that_are_not_the_answers_tokens_tell_nothing() -> None:
    delivered = Delivered([*requests(tokens=(0,)), *requests(2)])
    assert (delivered.answers, delivered.tokens_an_event) == (2, 1.0)


def test_a_server_that_merges_tokens_fell_behind(tmp_path: Path) -> None:
    late = Delivered(requests(tokens=tuple(SLOW)))
    assert fell_behind(run(folder=tmp_path), late) == pytest.approx(64 / 31)
    assert fell_behind(run(folder=tmp_path / "2"), Delivered(requests())) is None
    assert fell_behind(run(folder=tmp_path / "3"), Delivered(requests(19, tuple(SLOW)))) is None


@pytest.mark.parametrize(
    "given",
    [
        ("--speculative-config", '{"method": "ngram"}'),
        ("-sc", '{"method": "ngram"}'),
        ("--spec-tokens=3",),
        ("--stream-interval", "4"),
        ("--stream_interval=4",),
    ],
)
def test_what_was_asked_for_is_no_delay(given: tuple[str, ...], tmp_path: Path) -> None:
    assert fell_behind(run(*given, folder=tmp_path), Delivered(requests(tokens=(2,) * 32))) is None


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ((), 1),
        (("--api-server-count", "4"), 4),
        (("-asc", "2"), 2),
        (("--api-server-count=3",), 3),
        (("--api_server_count", "4"), 4),
        (("--api-server-count", "\u00b2"), 1),
        (("--api-server-count", "9" * 5000), 1),
    ],
)
def test_api_servers_are_counted(given: tuple[str, ...], count: int, tmp_path: Path) -> None:
    assert servers(run(*given, folder=tmp_path)) == count


def test_report_and_explain_say_what_to_try(tmp_path: Path) -> None:
    folder = make(tmp_path / "r", sealed=False)
    found = load(folder).of_arm("split_1p1d")[0]
    path = found.folder / "requests.jsonl"
    lines = [
        msgspec.structs.replace(r, tokens=SLOW) if r.role == "grid" else r
        for r in read_jsonl(path, Request, [])
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    results = load(folder)
    shown = bars(results, GRID, "grid", "short prompts")
    assert shown is not None
    assert list(shown.late) == ["split_1p1d"]
    assert "2.06 tokens an event" in str(figure(shown))
    assert str(figure(shown)).count("--api-server-count 4") == 1
    mine = next(m for m in measure(results) if m.run.arm == "split_1p1d" and m.cell == GRID)
    told = explained.of_cell(mine.run, mine)
    grid = next(ledger for ledger in told.ledgers if ledger.who == "requests")
    assert grid.late_servers == 1
    assert grid.tokens_an_event == pytest.approx(64 / 31)
    assert "the engine's one API server fell behind" in words.cell(told)
