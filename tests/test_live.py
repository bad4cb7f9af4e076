"""The live view: what is known from events alone, a quiet pipe, and a picture on a terminal."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from twolane.cli import cli
from twolane.clock import NS
from twolane.errors import QuestionError
from twolane.journal import FILE, Journal
from twolane.live import LiveView, Progress, bar, follow, picture
from twolane.pace import Pace, clock_text
from twolane.records import Event


def event(at_s: float, step: str, text: str = "", run: str = "r1", **more: Any) -> Event:
    arm = more.pop("arm", f"arm_{run}")
    return Event(t_ns=round(at_s * NS), run=run, step=step, text=text or step, arm=arm, **more)


RUN = [
    event(1, "place", "budget 256, block 1"),
    event(2, "launch", "starting e0, e1"),
    event(40, "ready", "e0 ready after 38 s"),
    event(41, "ready", "e1 ready after 39 s"),
    event(42, "gate", "needle 6000"),
    event(44, "phase", "asking", done=1, total=3),
    event(50, "cell", "interference victims=2 prompt=6000", expect_s=16),
    event(51, "phase", "quiet", rates=[57.0, 58.0]),
    event(54, "phase", "hit", rates=[3.0, 57.0]),
]
END = [event(70, "stop", "stopping the engines"), event(71, "done")]


def told(*events: Event, total: int | None = 3) -> Progress:
    progress = Progress(total)
    for one in events:
        progress.apply(one)
    return progress


def drawn(progress: Progress, now_s: float, width: int = 100) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    console.print(picture(progress, round(now_s * NS)))
    return out.getvalue()


def test_the_picture_names_run_step_and_rates() -> None:
    shown = drawn(told(*RUN), 55)
    assert "run 1 of 3  arm_r1  54 s" in shown
    assert "launch  starting e0, e1  e1 ready after 39 s" in shown
    assert "interference victims=2 prompt=6000  hit" in shown
    assert "5.0 s of about 16 s" in shown
    assert "reader 1" in shown
    assert "3.0 tokens/s" in shown
    assert "time left is known after the first run" in shown


def test_a_stalled_reader_has_a_short_bar() -> None:
    lines = [line for line in drawn(told(*RUN), 55).splitlines() if "reader" in line]
    assert [line.count("█") for line in lines] == [1, 31]


def test_a_step_that_ended_keeps_its_time() -> None:
    (gate,) = [line for line in drawn(told(*RUN), 300).splitlines() if "gate" in line]
    assert gate.split()[0] == "✓"
    assert gate.rstrip().endswith("8.0 s")
    assert "1/3" in gate


def test_time_left_follows_from_the_runs_that_ended() -> None:
    progress = told(*RUN, *END, event(75, "place", "b", run="r2"))
    assert progress.left_s(75 * NS) == pytest.approx(2 * 70)
    assert progress.left_s(95 * NS) == pytest.approx(2 * 70 - 20)
    assert progress.left_s(900 * NS) == 0
    assert "left" in drawn(progress, 95)


def test_a_failed_run_says_why_and_the_next_goes_on() -> None:
    failed = event(60, "failed", "e1 died\n  remedy: read its log")
    shown = drawn(told(*RUN, failed, event(61, "place", run="r2")), 62)
    assert "✗ run 1 of 3" in shown
    assert "e1 died" in shown
    assert "remedy" not in shown
    assert "▸ run 2 of 3" in shown


def test_a_planned_number_of_runs_may_come_with_the_first_event() -> None:
    assert told(event(1, "place", done=0, total=6), total=None).total == 6
    assert "run 1 of 6" in drawn(told(event(1, "place", total=6), total=None), 2)


def test_notes_are_shown_and_belong_to_no_run() -> None:
    shown = drawn(told(event(1, "note", "prefix cache not emptied", run="")), 2)
    assert "note: prefix cache not emptied" in shown
    assert "run" not in shown.replace("after the first run", "")


def piped(*events: Event, runs: int | None = 3) -> list[str]:
    out = io.StringIO()
    with LiveView(Console(file=out, width=60), runs=runs) as view:
        for one in events:
            view(one)
    return out.getvalue().splitlines()


def test_a_pipe_gets_one_plain_line_a_step() -> None:
    repeated = [event(51 + i / 2, "phase", "quiet", rates=[57.0, float(i)]) for i in range(20)]
    lines = piped(*RUN[:8], *repeated, RUN[8], *END)
    assert len(lines) == len(RUN) + len(END)
    assert lines[0] == "    0.0 s  run 1 of 3 arm_r1: place: budget 256, block 1"
    assert lines[5].endswith("phase: asking (1 of 3)")
    assert lines[6].endswith("cell: interference victims=2 prompt=6000, about 16 s")
    assert lines[-1] == "   70.0 s  run 1 of 3 arm_r1: done after 1:10"
    assert not any("\x1b" in line for line in lines)


def test_a_pipe_shows_brackets_as_they_are() -> None:
    (line,) = piped(event(1, "note", "[red]not markup[/red]", run=""))
    assert line.endswith("note: [red]not markup[/red]")


def test_a_terminal_gets_a_picture_that_ends_with_the_view() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, height=40, force_terminal=True)
    with LiveView(console, runs=3, now=lambda: 72 * NS) as view:
        for one in (*RUN, *END):
            view(one)
    assert "\x1b" in out.getvalue()
    assert "arm_r1" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.21, "4.2 s"), (42, "42 s"), (161, "2:41"), (3723, "1:02:03")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def test_bars_have_their_width_whatever_they_show() -> None:
    assert [len(bar(share, 8)) for share in (-1, 0, 0.06, 0.5, 1, 7)] == [8] * 6
    assert bar(0.5, 8) == "████    "
    assert bar(0.56, 8) == "████▌   "


# ------------------------------------------------------------------- from another terminal


def begin(at_s: float, **more: Any) -> Event:
    return event(at_s, "begin", "results/demo", run="", arm=None, **more)


def followed(folder: Path, meanwhile: list[Any]) -> tuple[str, list[str]]:
    """What `follow` returns and prints; each of `meanwhile` happens while it waits."""
    out = io.StringIO()
    ended = follow(folder, Console(file=out, width=100), sleep=lambda _: meanwhile.pop(0)())
    return ended, out.getvalue().splitlines()


def test_a_running_campaign_is_followed_to_its_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Pace(()), lambda _: None, total=1)
    journal.__enter__()
    journal.tell(RUN[0])
    ended, lines = followed(
        tmp_path,
        [lambda: journal.tell(RUN[1]), lambda: journal.__exit__(None, None, None)],
    )
    assert ended == "done"
    assert [line.split("  ")[-1].split(": ")[-1] for line in lines[1:3]] == [
        "budget 256, block 1",
        "starting e0, e1, about 30 s",
    ]
    assert "end: done" in lines[-1]


def test_half_a_line_waits_for_its_rest(tmp_path: Path) -> None:
    journal = Journal(tmp_path, Pace(()), lambda _: None)
    journal.__enter__()
    file = tmp_path / FILE
    whole = b'{"t_ns":1,"run":"","step":"note","text":"a note"}\n'

    def write(part: bytes) -> None:
        with file.open("ab") as more:
            more.write(part)

    waits = [lambda: write(whole[:20]), lambda: write(whole[20:]),
             lambda: journal.__exit__(None, None, None)]  # fmt: skip
    _, lines = followed(tmp_path, waits)
    assert sum("a note" in line for line in lines) == 1


def test_a_campaign_that_was_cut_has_no_end(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"t_ns":1,"run":"","step":"note","text":"a"}\n{"t_ns":2,"ru')
    ended, lines = followed(tmp_path, [])
    assert (ended, len(lines)) == ("", 1)


def test_an_old_campaign_whose_last_run_ended_was_not_cut(tmp_path: Path) -> None:
    whole = [msgspec.json.encode(one) for one in (event(1, "place", total=1), *RUN[1:], *END)]
    (tmp_path / FILE).write_bytes(b"\n".join([*whole, b""]))
    assert followed(tmp_path, [])[0] == "done"


def test_where_no_campaign_lies_the_nearest_are_named(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / FILE).touch()
    with pytest.raises(QuestionError) as refused:
        followed(tmp_path, [])
    assert str(tmp_path / "demo") in refused.value.remedy


def test_a_campaign_that_goes_on_counts_from_its_new_begin() -> None:
    cut = [begin(0, total=6), *RUN]
    progress = told(*cut, begin(1000, total=6, done=2, expect_s=400), total=None)
    assert (progress.runs["r1"].ending, progress.runs["r1"].seconds(0)) == ("cut", 53)
    assert progress.left_s(1100 * NS) == pytest.approx(300)
    progress.apply(event(1100, "place", run="r2", done=2, total=6))
    assert "run 3 of 6" in drawn(progress, 1110)
    progress.apply(event(1200, "done", run="r2"))
    assert progress.left_s(1200 * NS) == pytest.approx(3 * 100)
    progress.apply(event(1210, "end", "interrupted", run="", arm=None))
    assert "interrupted after 3:30" in drawn(progress, 5000)


def test_runs_of_another_clock_are_not_counted_as_new() -> None:
    """Parts that were put together: the first one's host had been up for longer."""
    first = [begin(9000, total=4), event(9001, "place", total=4), event(9050, "done")]
    progress = told(*first, begin(10, total=4, done=1, expect_s=120), total=None)
    assert progress.left_s(20 * NS) == pytest.approx(110)
    for one in (event(20, "place", run="r2", done=1, total=4), event(50, "done", run="r2")):
        progress.apply(one)
    assert progress.left_s(50 * NS) == pytest.approx(2 * 30)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (asyncio.CancelledError(), 1, "it did not come to its end: interrupted"),
        (KeyboardInterrupt(), 1, "it did not come to its end: interrupted"),
        (QuestionError("no room", place="p", remedy="r"), 1, "ended early: "),
    ],
)
def test_the_exit_code_tells_whether_it_came_to_its_end(
    tmp_path: Path, error: BaseException | None, code: int, said: str
) -> None:
    journal = Journal(tmp_path, Pace(()), lambda _: None, total=1)
    journal.__enter__()
    journal.tell(RUN[0])
    journal.__exit__(None, error, None)
    answer = CliRunner().invoke(cli, ["live", str(tmp_path)])
    assert answer.exit_code == code, answer.output
    assert said in answer.output
