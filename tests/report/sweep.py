"""A made-up budget sweep on one engine whose log tells its steps: gap = 5 ms + c * (a + b * p).

Its entry takes 60 ms and its exit 300 ms more, whatever the budget. Nothing here is a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twolane.analysis.iterations import FLAG
from twolane.clock import MS, NS
from twolane.records import (
    Appender,
    CellSummary,
    Code,
    EngineMeta,
    InterferenceCell,
    Request,
    RunMeta,
    write_json,
)

QUIET_MS, ENTRY_MS, EXIT_MS = 5.0, 60.0, 300.0
A, B = 0.01, 1e-7
LINE = (
    "INFO Engine 000: Iteration({i}): {n} context requests, {c} context tokens, {g} generation "
    "requests, {g} generation tokens, iteration elapsed time: 0.03 ms, GPU KV cache usage: 0.1%\n"
)


def cut(budget: int, prompt: int, beside: int) -> list[int]:
    chunk = budget - beside
    whole, rest = divmod(prompt, chunk)
    return [chunk] * whole + [rest] * (rest > 0)


def gaps_ms(chunks: Sequence[int]) -> list[float]:
    at, found = 0, []
    for tokens in chunks:
        found.append(QUIET_MS + tokens * (A + B * (at + tokens / 2)))
        at += tokens
    found[-1] += EXIT_MS
    return found


def make(
    folder: Path,
    *,
    budgets: Sequence[int] = (1024, 8192),
    prompts: Sequence[int] = (131_072,),
    victims: Sequence[int] = (1,),
    blocks: int = 2,
    codes: Sequence[Code] = (),
    dummy: bool = False,
    logs: bool = True,
) -> Path:
    cells = [
        InterferenceCell(id=f"interference victims={v} prompt={n}", victims=v, prompt=n, shots=1)
        for n in prompts
        for v in victims
    ]
    for block in range(blocks):
        for order, budget in enumerate(budgets):
            run = folder / "runs" / f"made__one__b{block}__{budget}"
            run.mkdir(parents=True)
            _run(run, budget, block, order, cells, list(codes), dummy=dummy, logs=logs)
    return folder


def _run(
    run: Path, budget: int, block: int, order: int, cells: list[InterferenceCell],
    codes: list[Code], *, dummy: bool, logs: bool,
) -> None:  # fmt: skip
    argv = ["vllm", "--max-num-batched-tokens", str(budget), *([FLAG] * logs)]
    argv += ["--load-format", "dummy"] * dummy
    engine = EngineMeta(
        name="one", role="both", group="A", devices=[0], url="http://127.0.0.1:8100", argv=argv,
        env={}, log="one.log",
    )  # fmt: skip
    meta = RunMeta(
        id=run.name, campaign="sweep", arm=f"budget_{budget}", model="made", layout="one",
        context=2_000_000, block=block, order=order, seed=block, status="done",
        started_at="2026-01-02T03:04:05Z", boot="made", config={}, config_hash="5eed",
        versions={"vllm": "0.26.0"}, host={"cpu": "Imaginary CPU"}, cells=list(cells),
        engines=[engine],
    )  # fmt: skip
    write_json(run / "run.json", meta)
    log, at = [], 1_000 * NS
    with (
        Appender(run / "requests.jsonl") as out,
        Appender(run / "cells.jsonl") as summaries,
    ):
        for cell in cells:
            chunks = cut(budget, cell.prompt, cell.victims)
            started = at
            for request in _shot(cell, chunks, at):
                out.append(request)
                at = max(at, request.end_ns or 0) + NS
            log += [(1, 64, 0), (0, 0, cell.victims)]
            log += [(1, tokens, cell.victims) for tokens in chunks]
            log += [(0, 0, cell.victims + 1)]
            summaries.append(CellSummary(cell=cell, started_ns=started, ended_ns=at, codes=codes))
    lines = [LINE.format(i=i, n=n, c=c, g=g) for i, (n, c, g) in enumerate(log)]
    (run / "one.log").write_text("".join(lines))


def _shot(cell: InterferenceCell, chunks: Sequence[int], at: int) -> list[Request]:
    quiet = [QUIET_MS] * 200
    made = [*quiet, ENTRY_MS, *gaps_ms(chunks), *quiet]
    gaps = [round(ms * MS) for ms in made]
    send = at + round(sum(quiet) * MS) + MS
    answered = at + round((sum(quiet) + ENTRY_MS + sum(gaps_ms(chunks)) + 0.1) * MS)
    end = at + sum(gaps)
    readers = [
        Request(id=f"{cell.id}-v{i}", cell=cell.id, role="victim", index=i, shot=1, send_ns=at,
                due_ns=at, first_ns=at, last_ns=end, end_ns=end, gaps_ns=gaps, status=200,
                prompt_tokens=64, output_tokens=len(gaps) + 1)
        for i in range(cell.victims)
    ]  # fmt: skip
    prompt = Request(
        id=f"{cell.id}-a", cell=cell.id, role="aggressor", index=0, shot=1, send_ns=send,
        due_ns=send, first_ns=answered, last_ns=answered, end_ns=answered, status=200,
        prompt_asked=cell.prompt, prompt_tokens=cell.prompt, cached_tokens=0, output_tokens=1,
    )  # fmt: skip
    return [*readers, prompt]
