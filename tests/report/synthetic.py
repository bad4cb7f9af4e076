"""Made-up results, clearly fake: a campaign folder with the shape of the demo's and its figures.

Three arms on two cores, as a probe of the real engines saw them: two copies at budget 2,048
(worst pause 2,206 ms), two copies at budget 256 (310 ms) and a split (46 ms; the null
run 19 ms). Deterministic from the seed. Nothing here is a measurement, and the host says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from twolane.analysis import measures
from twolane.analysis.stats import summarise
from twolane.clock import MS, NS
from twolane.records import (
    AnyCell,
    Appender,
    CellSummary,
    Code,
    EngineMeta,
    EngineTimes,
    Event,
    GridCell,
    InterferenceCell,
    Ledger,
    NeedleAnswer,
    NeedleCell,
    NeedleResult,
    Request,
    Role,
    RunMeta,
    Sample,
    write_json,
)
from twolane.seal import RequestFile

BOOT = "synthetic-boot"
CAMPAIGN = "synthetic"
INTERFERENCE = InterferenceCell(
    id="interference victims=2 prompt=6000", victims=2, prompt=6000, quiet_s=4.0, recovery_s=4.0
)
GRID = GridCell(id="c4 in512 out64 n40", users=4, prompt=512, output=64, requests=40)
NEEDLE = NeedleCell(id="needle 6000", prompt=6000)
QUIET_MS = 17.5
PREFILL_MS = 3350.0  # of 6,000 tokens on one core


@dataclass(frozen=True)
class Arm:
    """How a made-up arm behaves. `pauses_ms` are the gaps that the aggressor cuts into a victim."""

    name: str
    layout: str
    budget: int
    pauses_ms: tuple[float, ...]
    hit_all: bool  # whether every victim shares the aggressor's decode engine
    ttft_ms: float  # of a short prompt
    tpot_ms: float
    split: bool = False
    beat: float = 1.0  # its readers' quiet gap, as a multiple of QUIET_MS


def _chunks(count: int, last_ms: float) -> tuple[float, ...]:
    """Later chunks attend to more tokens, so they take longer: a ramp up to `last_ms`."""
    return tuple(last_ms * (0.35 + 0.65 * (i + 1) / count) for i in range(count))


ARMS = (
    Arm("copies_2048", "copies", 2048, (620.0, 2206.0, 524.0), False, 212.0, 31.0),
    Arm("copies_256", "copies", 256, _chunks(16, 310.0), False, 238.0, 33.5),
    Arm("split_1p1d", "pd_1p1d", 2048, (46.0,), True, 331.0, 26.5, split=True),
)


@dataclass
class Maker:
    """Writes one run. `slow` scales every time of the block, since no two blocks are alike."""

    folder: Path
    arm: Arm
    block: int
    order: int
    rng: random.Random
    slow: float
    codes: dict[str, list[Code]] = field(default_factory=dict)
    spoil_greedy: bool = False
    sealed: bool = True
    now: int = 1_000 * NS
    count: int = 0
    written: list[Request] = field(default_factory=list)

    def write(self) -> None:
        self.folder.mkdir(parents=True)
        meta = self._meta()
        write_json(self.folder / "run.json", meta)
        write_json(self.folder / "needle.json", self._needle())
        with (
            RequestFile(self.folder / "requests.jsonl") as out,
            Appender(self.folder / "cells.jsonl") as cells,
        ):
            for drive in (self._interference, self._grid):
                summary = drive(out)
                cells.append(
                    out.sealed(meta, summary, measures=measures.VERSION) if self.sealed else summary
                )
        with Appender(self.folder / "metrics.jsonl") as metrics:
            metrics.append(Sample(t_ns=self.now, source="e0", values={"vllm:num_requests": 0.0}))

    # ------------------------------------------------------------------------------ the run

    @property
    def run_id(self) -> str:
        return self.folder.name

    def _meta(self) -> RunMeta:
        cells: list[AnyCell] = [INTERFERENCE, GRID]
        return RunMeta(
            id=self.run_id,
            campaign=CAMPAIGN,
            arm=self.arm.name,
            model="needle",
            layout=self.arm.layout,
            context=8192,
            block=self.block,
            order=self.order,
            seed=7 + self.block,
            started_at="2026-01-02T03:04:05Z",
            ended_at="2026-01-02T03:06:10Z",
            boot=BOOT,
            config={"campaign": CAMPAIGN, "blocks": 1},
            config_hash="5eed5eed5eed",
            versions={"twolane": "0.1.0", "vllm": "0.32.0", "python": "3.11.2", "nixl": "1.5.1"},
            host={"cpu": "Imaginary CPU", "cores": [0, 1], "memory_bytes": 8 * 2**30},
            cells=cells,
            engines=[self._engine(0), self._engine(1)],
            proxy={"url": "http://127.0.0.1:8000", "policy": "least loaded"},
            status="done",
        )

    def _engine(self, index: int) -> EngineMeta:
        roles: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")
        return EngineMeta(
            name=f"e{index}",
            role=roles[index] if self.arm.split else "both",
            group="AB"[(index + self.block) % 2],
            devices=[(index + self.block) % 2],
            url=f"http://127.0.0.1:{8100 + index}",
            argv=[
                *("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "needle"),
                *("--max-num-batched-tokens", str(self.arm.budget), "--max-model-len", "8192"),
                *(("--kv-transfer-config", '{"kv_connector": "NixlConnector"}') * self.arm.split),
            ],
            env={"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": str(index)},
            log=f"e{index}.log",
            ready_s=41.5,
            kv_tokens=65_536,
            block_size=128,
            exit_code=0,
        )

    def _needle(self) -> NeedleResult:
        answers = [
            NeedleAnswer(
                request=f"needle-{i}", length=6000, depth=d, expected="4821", got="4821", ok=True
            )
            for i, d in enumerate(NEEDLE.depths)
        ]
        greedy = {f"{n}-{s}": f"{n * s:08d}" for n in (50, 500, 2000, 8000) for s in range(1, 6)}
        if self.spoil_greedy:
            greedy["8000-3"] = "99999999"
        return NeedleResult(answers=answers, greedy=greedy)

    # --------------------------------------------------------------------------- interference

    def _interference(self, out: RequestFile) -> CellSummary:
        started = self.now
        for shot in range(INTERFERENCE.shots + 1):
            self._shot(out, shot)
        return self._summary(INTERFERENCE, started)

    def _shot(self, out: Appender, shot: int) -> None:
        begin = self.now
        hit = begin + round(INTERFERENCE.quiet_s * NS)
        pauses = self.arm.pauses_ms if shot else ()
        taken_ms = INTERFERENCE.null_s * 1e3 if shot == 0 else self._prefill_ms()
        answered = hit + round(taken_ms * MS)
        end = answered + round(INTERFERENCE.recovery_s * NS)
        for index in range(INTERFERENCE.victims):
            hurt = pauses if (index == 0 or self.arm.hit_all) else ()
            out.append(self._victim(shot, index, (begin, hit, end), hurt))
        out.append(self._aggressor(shot, hit, answered))
        self.now = end + NS

    def _prefill_ms(self) -> float:
        extra = {"copies_256": 610.0, "split_1p1d": 96.0}.get(self.arm.name, 0.0)
        return (PREFILL_MS + extra) * self.slow

    def _victim(
        self, shot: int, index: int, phases: tuple[int, int, int], pauses: tuple[float, ...]
    ) -> Request:
        begin, hit, end = phases
        gaps = list(self._gaps(hit - begin, end - begin, pauses))
        first = begin + 40 * MS
        last = first + sum(gaps)
        return self._request(
            "victim",
            INTERFERENCE.id,
            index=index,
            shot=shot,
            send_ns=begin,
            due_ns=begin,
            prompt_asked=64,
            prompt_tokens=64,
            output_asked=4000,
            status=200,
            first_ns=first,
            last_ns=last,
            end_ns=last + MS,
            output_tokens=len(gaps) + 1,
            finish_reason="stopped_by_client",
            gaps_ns=gaps,
        )

    def _gaps(self, hit_at: int, length: int, pauses: tuple[float, ...]) -> Iterator[int]:
        elapsed, left = 40 * MS, list(pauses)
        while elapsed < length:
            due = bool(left) and elapsed > hit_at + 90 * MS
            ms = left.pop(0) * self.slow if due else self._beat_ms(hurt=bool(pauses))
            yield (gap := round(ms * MS))
            elapsed += gap

    def _beat_ms(self, *, hurt: bool) -> float:
        worst = 19.4 if not hurt else 18.9
        usual = QUIET_MS * self.slow + abs(self.rng.gauss(0.0, 0.45))
        return min(worst, usual) * self.arm.beat

    def _aggressor(self, shot: int, hit: int, answered: int) -> Request:
        if shot == 0:
            ids: tuple[Role, str] = ("null", INTERFERENCE.id)
            return self._request(
                *ids, index=0, shot=0, send_ns=hit, due_ns=hit, first_ns=answered, end_ns=answered
            )
        gaps = [round(18 * MS)] * (INTERFERENCE.aggressor_output - 1)
        return self._request(
            "aggressor",
            INTERFERENCE.id,
            index=0,
            shot=shot,
            send_ns=hit,
            due_ns=hit,
            prompt_asked=6000,
            prompt_tokens=6000,
            cached_tokens=0,
            output_asked=len(gaps) + 1,
            status=200,
            first_ns=answered,
            last_ns=answered + sum(gaps),
            end_ns=answered + sum(gaps) + MS,
            output_tokens=len(gaps) + 1,
            finish_reason="length",
            ledger=self._ledger(hit, answered),
            gaps_ns=gaps,
        )

    # ----------------------------------------------------------------------------------- grid

    def _grid(self, out: RequestFile) -> CellSummary:
        started = self.now
        lanes = [self.now] * GRID.users
        issued = []
        for index in range(GRID.requests or 0):
            lane = min(range(GRID.users), key=lanes.__getitem__)
            request = self._short(index, lanes[lane])
            lanes[lane] = (request.end_ns or 0) + MS
            issued.append(request.send_ns)
            out.append(request)
        self.now = max(lanes) + NS
        window = (issued[GRID.users - 1], issued[-1])
        return self._summary(GRID, started, window)

    def _short(self, index: int, send: int) -> Request:
        ttft = self.arm.ttft_ms * self.slow * (1 + abs(self.rng.gauss(0, 0.08)))
        first = send + round(ttft * MS)
        beat = self.arm.tpot_ms * self.slow
        gaps = [round(beat * MS * (1 + self.rng.uniform(-0.04, 0.04))) for _ in range(63)]
        last = first + sum(gaps)
        return self._request(
            "grid",
            GRID.id,
            index=index,
            send_ns=send,
            due_ns=send,
            prompt_asked=GRID.prompt,
            prompt_tokens=GRID.prompt,
            cached_tokens=0,
            output_asked=GRID.output,
            status=200,
            first_ns=first,
            last_ns=last,
            end_ns=last + MS,
            output_tokens=GRID.output,
            finish_reason="length",
            ledger=self._ledger(send, first),
            gaps_ns=gaps,
        )

    # --------------------------------------------------------------------------------- pieces

    def _ledger(self, sent: int, first: int) -> Ledger:
        """The proxy's stamps, so that they fit between the client's two."""
        ttft = first - sent
        received, back = sent + 400_000, first - 900_000
        if not self.arm.split:
            leg_ms = (back - received - 300_000) / MS
            return Ledger(
                path="direct",
                boot=BOOT,
                received_ns=received,
                d_engine="e0",
                d_dispatch_ns=received + 300_000,
                d_first_ns=back,
                d_times=EngineTimes(queue_ms=0.04 * leg_ms, first_token_ms=0.93 * leg_ms),
                end_ns=first + NS,
            )
        response = back - round(min(0.2 * ttft, 70 * MS))
        p_ms, d_ms = (response - received - 300_000) / MS, (back - response - 200_000) / MS
        return Ledger(
            path="split",
            boot=BOOT,
            received_ns=received,
            p_engine="e0",
            p_dispatch_ns=received + 300_000,
            p_response_ns=response,
            p_times=EngineTimes(queue_ms=0.05 * p_ms, first_token_ms=0.92 * p_ms),
            d_engine="e1",
            d_dispatch_ns=response + 200_000,
            d_first_ns=back,
            d_times=EngineTimes(queue_ms=0.45 * d_ms, first_token_ms=0.4 * d_ms),
            end_ns=first + NS,
            handoff="admitted",
            remote_tokens=6000,
        )

    def _request(self, role: Role, cell: str, **fields: object) -> Request:
        self.count += 1
        build: Callable[..., Request] = Request
        request = build(id=f"{role}-{self.count}", cell=cell, role=role, **fields)
        self.written.append(request)
        return request

    def _summary(
        self, cell: AnyCell, started: int, window: tuple[int, int] | None = None
    ) -> CellSummary:
        mine = [request for request in self.written if request.cell == cell.id]
        return CellSummary(
            cell=cell,
            started_ns=started,
            ended_ns=self.now,
            window_ns=window,
            values=summarise(cell, mine, window),
            codes=self.codes.get(cell.id, []),
        )


def make(
    folder: Path,
    *,
    blocks: int = 1,
    seed: int = 1,
    codes: dict[str, dict[str, list[Code]]] | None = None,
    spoil_greedy: str | None = None,
    sealed: bool = True,
    arms: tuple[Arm, ...] = ARMS,
) -> Path:
    """Writes a campaign into `folder` and returns it.

    `codes` gives reason codes by arm and cell id; `spoil_greedy` names an arm whose greedy text
    is wrong. Cells are `sealed`, runs are not, so that a test may edit what stands in run.json.
    """
    rng = random.Random(seed)
    order = 0
    for block in range(blocks):
        slow = 1 + rng.uniform(-0.01, 0.01) * (blocks > 1)
        for arm in arms if block % 2 == 0 else arms[::-1]:
            name = f"needle__{arm.name}__8k__vllm__0102-0304{order:02d}"
            spread = slow * (1 + rng.gauss(0, 0.004) * (blocks > 1))
            Maker(
                folder / "runs" / name,
                arm,
                block,
                order,
                random.Random(f"{seed} {order}"),
                spread,
                (codes or {}).get(arm.name, {}),
                spoil_greedy == arm.name,
                sealed,
            ).write()
            order += 1
    with Appender(folder / "events.jsonl") as events:
        events.append(Event(t_ns=0, run="", step="note", text="synthetic: not a measurement"))
    return folder
