"""Ports and addresses: side channels, APIs, and the path between hosts."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from itertools import combinations

from twolane.diagnosis.deployment import LOOPBACK, Deployment, Side, apart
from twolane.diagnosis.findings import AFTERMATH
from twolane.diagnosis.rule import Hit, Rule
from twolane.diagnosis.vllm_args import plain_int

SIDE_PORT, SIDE_HOST = "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST"


def neighbours(sides: list[Side]) -> Iterator[tuple[Side, Side]]:
    """Pairs of engines that may run on one host."""
    return ((a, b) for a, b in combinations(sides, 2) if not apart(a, b))


def side_ports_overlap(deployment: Deployment, sides: list[Side]) -> Iterator[Hit]:
    nixl = [side for side in sides if side.nixl]
    for one, other in neighbours(nixl):
        shared = set(one.side_ports) & set(other.side_ports)
        if shared:
            yield Hit(f"{one.name} and {other.name} both bind side-channel port {min(shared)}",
                      SIDE_PORT, side=other.name)  # fmt: skip
    for side in nixl:
        taken = set(side.side_ports) & set(deployment.listening)
        if taken:
            yield Hit(f"side-channel port {min(taken)} is taken", SIDE_PORT, side=side.name)


def foreign_address(deployment: Deployment, sides: list[Side]) -> Iterator[Hit]:
    hosts = {side.engine.host for side in sides if side.engine.host}
    here = deployment.addresses
    for side in sides:
        own, said = side.engine.host, side.side_host
        if side.nixl and own and said and said != own and said in hosts:
            yield Hit(f"{SIDE_HOST}={said} on host {own}", SIDE_HOST, side=side.name)
        elif side.nixl and here and said and is_address(said) and said not in (*here, *LOOPBACK):
            yield Hit(f"{SIDE_HOST}={said}, no address of this host", SIDE_HOST, side=side.name)


def is_address(text: str) -> bool:
    """Whether it is an IP address, and no name that would have to be looked up."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def localhost_across(_: Deployment, sides: list[Side]) -> Iterator[Hit]:
    hosts = {side.host for side in sides if side.nixl}
    for side in sides if len(hosts) > 1 else []:
        serves = side.role != "decode" or side.push
        if side.nixl and serves and (side.side_host or "") in LOOPBACK:
            yield Hit(f"{SIDE_HOST} is {side.side_host or 'not set (localhost)'}", SIDE_HOST,
                      side=side.name)  # fmt: skip


def other_ports(side: Side) -> dict[int, str]:
    """Ports, besides the side channel, that an engine listens on."""
    ports = {side.api_port: "--port"}
    events = side.args.mapping("kv_events_config")
    if events:
        endpoint = events.get("endpoint")
        text = endpoint.rsplit(":", 1)[-1] if isinstance(endpoint, str) else "5557"
        if (port := plain_int(text)) is not None:
            ports[port] = "--kv-events-config"
    if (port := plain_int(side.env.get("VLLM_PORT", ""))) is not None:
        ports[port] = "VLLM_PORT"
    if (port := side.args.integer("master_port")) is not None:
        ports[port] = "--master-port"
    return ports


def side_port_meets(_: Deployment, sides: list[Side]) -> Iterator[Hit]:
    for side in sides:
        near = [s for s in sides if not apart(s, side)]
        for other in near if side.nixl else []:
            for port, name in other_ports(other).items():
                if port in side.side_ports:
                    yield Hit(f"side-channel port {port} is {name} of {other.name}", SIDE_PORT,
                              side=side.name)  # fmt: skip


def api_ports(deployment: Deployment, sides: list[Side]) -> Iterator[Hit]:
    for one, other in neighbours(sides):
        if one.api_port == other.api_port:
            yield Hit(f"{one.name} and {other.name} both listen on {one.api_port}", "port",
                      side=other.name)  # fmt: skip
    for side in sides:
        if side.api_port in deployment.listening:
            yield Hit(f"port {side.api_port} is taken", "port", side=side.name)


def rpc_ports(_: Deployment, sides: list[Side]) -> Iterator[Hit]:
    for one, other in neighbours(sides):
        for dest in ("data_parallel_rpc_port", "master_port"):
            port = one.args.integer(dest)
            group = "data_parallel_rank" in one.args.spelt  # ranks of one group share it
            same = port is not None and port == other.args.integer(dest)
            if same and not group and one.dp * other.dp > 1:
                yield Hit(f"{one.name} and {other.name} share {port}", dest, side=other.name)


def pull_without_rdma(deployment: Deployment, sides: list[Side]) -> Iterator[Hit]:
    hosts = {side.host for side in sides if side.nixl}
    if deployment.rdma is False and len(hosts) > 1:
        for side in sides:
            if side.nixl and not side.push:
                yield Hit("pull connector, no RDMA", "kv_transfer_config", side=side.name)


RULES = (
    Rule(
        id="PORT01",
        title="side-channel port taken -> start-up hangs for ever",
        severity="error",
        when=(
            "two engines on one host whose [VLLM_NIXL_SIDE_CHANNEL_PORT(5600), "
            "+data_parallel_size) ranges overlap, or the port is already listening"
        ),
        so=("The listener dies, the engine waits for it for ever and never becomes ready."),
        fix=(
            "Give each engine its own VLLM_NIXL_SIDE_CHANNEL_PORT, apart by at least its "
            "data-parallel size (5600, 5700). The engine never becomes ready and nothing "
            "times out: stop it."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py:74-77,334,351; "
            "vllm#20965; dynamo#14838"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py",
        log=(r"zmq\.error\.ZMQError: Address already in use \(addr='tcp://[^']+:(\d+)'\)",),
        together=side_ports_overlap,
    ),
    Rule(
        id="PORT02",
        title="side-channel host is not an address of this machine",
        severity="error",
        when="VLLM_NIXL_SIDE_CHANNEL_HOST resolves to a non-local IP",
        so=("The listener dies, the engine waits for it for ever and never becomes ready."),
        fix=("Use the machine's own IP (the address others reach it by) - not the peer's."),
        source=("distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py:351; dynamo#2706"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_scheduler.py",
        log=(r"Cannot assign requested address \(addr='tcp://[^']+'\)",),
        together=foreign_address,
    ),
    Rule(
        id="PORT03",
        title="localhost side channel across machines/containers",
        severity="error",
        when=(
            "P and D on different hosts/containers and VLLM_NIXL_SIDE_CHANNEL_HOST unset "
            "(default localhost)"
        ),
        so=("The decode engine asks its own machine for the prefill engine: handshakes fail."),
        fix="Set it on P (and on D for push/bidirectional).",
        source="envs.py VLLM_NIXL_SIDE_CHANNEL_HOST; vllm#27083; srt-slurm#158",
        confirmed="source",
        seen="envs.py",
        together=localhost_across,
    ),
    Rule(
        id="PORT04",
        title="side-channel range meets another port",
        severity="error",
        when=(
            "[base, base+DP) contains API port, --kv-events-config port (5557), VLLM_PORT, "
            "master port, proxy port"
        ),
        so="The engine never becomes ready, or its peer talks to the wrong engine.",
        fix="Move the base.",
        source="vllm#25059, #20965 (5557)",
        together=side_port_meets,
    ),
    Rule(
        id="PORT05",
        title="API port busy",
        severity="error",
        when="--port already listening",
        so="The engine never becomes ready, or its peer talks to the wrong engine.",
        fix=("Another server owns the port; 0.32 binds before loading, so check before weights."),
        source="entrypoints (socket bind)",
        log=(
            r"OSError: \[Errno 98\] Address already in use",
            r"error while attempting to bind on address \('[^']*', (\d+)\)",
        ),
        together=api_ports,
    ),
    Rule(
        id="PORT06",
        title="torch.distributed / DP master port busy",
        severity="error",
        when="--master-port / data-parallel-rpc-port in use",
        so="The engine never becomes ready, or its peer talks to the wrong engine.",
        fix=("Distinct --master-port/--data-parallel-rpc-port for P and D on one host."),
        source="torch c10d",
        log=(r"(EADDRINUSE|The server socket has failed to listen on any local network address)",),
        together=rpc_ports,
    ),
    Rule(
        id="PORT07",
        title="pull transfers between hosts without RDMA",
        severity="warn",
        when=(
            "prefill and decode on different hosts, rdma: false, and the pull connector "
            "(NixlConnector, NixlPullConnector)"
        ),
        so="The engine never becomes ready, or its peer talks to the wrong engine.",
        fix=(
            "Use NixlPushConnector on both sides (one report: pull 0.5 GB/s, push 49 GB/s),"
            " or a fabric with RDMA."
        ),
        source="vllm#52607",
        rank=AFTERMATH,
        together=pull_without_rdma,
    ),
)
