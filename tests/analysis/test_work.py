"""Legs from the proxy's stamps, spans from samples, transfers against the link."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.report.synthetic import INTERFERENCE, make

from twolane.analysis.results import Run, load
from twolane.analysis.stalled import stalls
from twolane.analysis.work import link, spans, total, work
from twolane.clock import MS, NS
from twolane.records import Request, RunMeta, Sample, read_json, write_json


def sample(t_s: float, **values: float) -> Sample:
    return Sample(
        t_ns=round(t_s * NS), source="d", values={f"vllm:{k}": v for k, v in values.items()}
    )


def nixl(
    count: int, moved: float, descriptors: float, post: float, xfer: float
) -> dict[str, float]:
    return {
        "nixl_num_descriptors_count": count,
        "nixl_num_descriptors_sum": descriptors,
        "nixl_bytes_transferred_sum": moved,
        "nixl_post_time_seconds_sum": post,
        "nixl_xfer_time_seconds_sum": xfer,
    }


def test_spans_are_differences_of_one_engines_samples() -> None:
    taken = [
        sample(1, iteration_tokens_total_count=10, iteration_tokens_total_sum=20),
        Sample(t_ns=round(1.5 * NS), source="other", values={}),
        sample(2, iteration_tokens_total_count=13, iteration_tokens_total_sum=6020),
    ]
    (span,) = spans(taken, ["d"])
    assert (span.iterations, span.tokens, span.running) == (3, 6000, None)
    assert span.transfers is None


def test_transfers_as_on_two_h200s() -> None:
    """A million tokens in an aged pool: 1.02 GB in 125,000 descriptors, 0.71 of 0.78 s posting."""
    taken = [sample(1, **nixl(2, 1e6, 4, 0, 0)), sample(2, **nixl(3, 1.025e9, 125_004, 0.71, 0.78))]
    (span,) = spans(taken, ["d"])
    moved = span.transfers
    assert moved is not None
    assert (moved.count, moved.descriptors) == (1, 125_000)
    assert moved.bytes_s == pytest.approx(1.313e9, rel=1e-3)
    assert moved.post_share == pytest.approx(0.91, rel=1e-2)
    both = total([span, span])
    assert both is not None
    assert (both.count, both.moved_bytes) == (2, 2 * moved.moved_bytes)
    assert total([]) is None


def of(folder: Path, arm: str) -> Run:
    return load(folder).of_arm(arm)[0]


def requests(run: Run) -> list[Request]:
    return list(run.requests(cell=INTERFERENCE.id))


def ledger_file(run: Run, engine: str) -> None:
    """The proxy's file, where it also stands which engine read a stream that was broken off."""
    (aggressor,) = [r for r in requests(run) if r.role == "aggressor"]
    assert aggressor.ledger is not None
    lines = [
        {"id": r.id, "ledger": msgspec.structs.replace(aggressor.ledger, d_engine=engine)}
        for r in requests(run)
        if r.role in ("victim", "aggressor")
    ]
    path = run.folder / "ledger.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def test_a_stall_meets_the_prefill_beside_it(tmp_path: Path) -> None:
    run = of(make(tmp_path / "r"), "copies_2048")
    ledger_file(run, "e0")
    done = work(run, requests(run))
    found = stalls(requests(run), done)
    assert [round(one.gap.length_ns / MS) for one in found] == [2206, 620, 524]
    longest = found[0]
    assert (longest.engine, longest.phase, longest.null, longest.reader) == ("e0", "hit", False, 1)
    mine = [leg for leg in longest.legs if leg.role == "aggressor"]
    assert [leg.prompt_tokens for leg in mine] == [6000]
    assert longest.share(mine[0]) == pytest.approx(1, abs=0.01)


def test_without_the_proxys_file_the_engine_of_a_copy_is_not_known(tmp_path: Path) -> None:
    run = of(make(tmp_path / "r"), "copies_2048")
    found = stalls(requests(run), work(run, requests(run)))
    assert {one.engine for one in found} == {""}
    assert {one.legs for one in found} == {()}


def test_in_a_split_with_one_decode_engine_it_is_that(tmp_path: Path) -> None:
    run = of(make(tmp_path / "r"), "split_1p1d")
    done = work(run, requests(run))
    (victim,) = [r for r in requests(run) if r.role == "victim"][:1]
    assert done.engine_of(victim) == "e1"
    doing = [leg.doing for leg in done.legs if leg.role == "aggressor"]
    assert doing == ["prefill for another engine", "KV transfer and first step"]


@pytest.mark.parametrize(
    ("gpus", "connector", "kind", "speed", "direction"),
    [
        ([], "NixlConnector", "shared memory of one host", None, "pull"),
        ([("NVIDIA H200", 18)] * 2, "NixlConnector", "18 NVLinks", 450e9, "pull"),
        ([("NVIDIA A100-SXM4", 12)] * 2, "NixlPushConnector", "12 NVLinks", 300e9, "push"),
        ([("NVIDIA L4", 0)] * 2, "Other", "PCIe or the network", None, "unknown"),
    ],
)
def test_the_link_by_what_the_host_told(
    tmp_path: Path,
    gpus: list[tuple[str, int]],
    connector: str,
    kind: str,
    speed: float | None,
    direction: str,
) -> None:
    run = of(make(tmp_path / "r"), "split_1p1d")
    path = run.folder / "run.json"
    meta = read_json(path, RunMeta)
    host = {"gpus": [{"index": i, "name": n, "nvlinks": k} for i, (n, k) in enumerate(gpus)]}
    engines = [
        msgspec.structs.replace(
            e, argv=[word.replace("NixlConnector", connector) for word in e.argv]
        )
        for e in meta.engines
    ]
    write_json(path, msgspec.structs.replace(meta, host=host, engines=engines))
    found = link(of(tmp_path / "r", "split_1p1d"))
    assert found is not None
    assert (found.kind, found.bytes_s, found.direction) == (kind, speed, direction)


def test_copies_move_nothing(tmp_path: Path) -> None:
    assert link(of(make(tmp_path / "r"), "copies_256")) is None
