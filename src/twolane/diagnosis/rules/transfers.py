"""KV on its way: leases, handshakes, transfers that fail or never come."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.findings import AFTERMATH, SYMPTOM, WRAPPER
from twolane.diagnosis.rule import Context, Hit, Match, Rule
from twolane.diagnosis.rules.pair_checks import between
from twolane.diagnosis.service import Service

SHOWN = 20  # request ids named in a fix; the finding's value has them all
SILENT = 3  # stats lines in a row without a token: half a minute


def leases_expired(service: Service) -> Iterator[Hit]:
    if service.expired:
        yield Hit(f"{service.expired} requests' KV expired", "expired")


def read_too_late(service: Service) -> Iterator[Hit]:
    if service.late:
        yield Hit(f"{service.late} notifications after expiry", "late")


def transfers_failed(service: Service) -> Iterator[Hit]:
    if service.failed:
        yield Hit(f"{service.failed} failed transfers", "failed")


def requests(found: list[Match]) -> str:
    ids = list(dict.fromkeys(m.groups[0] for m in found if m.groups))
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(ids[:SHOWN]) + more


def expired_requests(found: list[Match], _: Context) -> str:
    read = sum(m.groups[1:2] == ("0",) for m in found)
    never = f" {read} of them were never read: look for aborts and failed handshakes on the " \
        "decode engine." if read else ""  # fmt: skip
    return (f"kv_connector_extra_config.kv_lease_duration=120 or more on both engines, and no more "
            f"requests in flight than the decode engine admits. Expired: {requests(found)}."
            f"{never}")  # fmt: skip


def invalid_requests(found: list[Match], context: Context) -> str:
    expired = context.matches.get("RUN01")
    why = (
        "Then a longer kv_lease_duration and fewer requests in flight"
        if expired
        else "No lease expired in this log, so look for a handoff that was used twice, or a "
        "request that was aborted on the prefill engine; else a longer kv_lease_duration"
    )
    return (
        f"Treat the answers of these requests as invalid: {requests(found)}. {why}; watch "
        "vllm:nixl_num_notifications_after_expiry_total."
    )


def failed_peer(found: list[Match], _: Context) -> str:
    host = between(found[0].line, "'remote_host': '", "'") or "the peer"
    port = between(found[0].line, "'remote_port': ", ",", "}")
    where = f"{host}:{port}" if port else host
    return (f"Check that the prefill engine at {where} is alive, then the path (UCX transports, "
            "network); decide kv_load_failure_policy (fail ends the request, recompute prefills "
            "on the decode engine).")  # fmt: skip


def kv_never_comes(service: Service) -> Iterator[Hit]:
    run = service.stuck_fetches()
    if run >= SILENT or service.stuck_kv:
        yield Hit(f"{service.stuck_kv or run} waiting for KV, no tokens", "silent")


RULES = (
    Rule(
        id="RUN01",
        title="KV lease expired before D read",
        severity="error",
        when=("P queue or D queue longer than kv_lease_duration (default 30 s) and no heartbeat"),
        so=(
            "The prefill engine freed blocks that the decode engine had not read: the "
            "request fails or is computed again."
        ),
        fix=(
            "kv_connector_extra_config.kv_lease_duration=120+ on P and D; limit proxy "
            "concurrency to what D admits; if retrieved=0 also look for aborted "
            "requests/handshake failures on D."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:3033; "
            "aws-do-eks#84; vllm#21570"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        log=(
            (
                r"Releasing expired KV blocks for request (\S+) which were retrieved by"
                r" (\d+) remote worker\(s\) before lease expired"
            ),
        ),
        load=leases_expired,
        tell=expired_requests,
    ),
    Rule(
        id="RUN02",
        title="D read blocks after they were freed (HTTP 200, wrong text)",
        severity="error",
        when="notification arrives after expiry",
        so=(
            "These answers were computed from blocks that already belonged to other "
            "requests: HTTP 200, wrong text."
        ),
        fix=(
            "Treat those answers as invalid. Longer lease (RUN01); alert on "
            "vllm:nixl_num_notifications_after_expiry_total > 0."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/pull_worker.py:666-672; "
            "aws-do-eks#84 (8 of 42); aibrix#1772; vllm#52234"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/pull_worker.py",
        log=(
            (
                r"Potentially invalid KV blocks for unrecognized request (\S+) were"
                r" retrieved by a decode worker"
            ),
        ),
        load=read_too_late,
        tell=invalid_requests,
    ),
    Rule(
        id="RUN03",
        title="transfer failed",
        severity="error",
        when="NIXL/UCX error on a read/write",
        so="Requests fail or hang.",
        fix=(
            "See remote_host/remote_port in Context; is P alive? network/UCX? Policy 'fail'"
            " ends the request, 'recompute' prefills on D."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:1218-1267; "
            "vllm#50765 (NIXL_ERR_BACKEND), wtdcode#33"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        rank=SYMPTOM,
        log=(r"NIXL transfer failure: (transfer_\w+|push_reg_notif_failed|notification_failed)\b",),
        load=transfers_failed,
        tell=failed_peer,
    ),
    Rule(
        id="RUN04",
        title="requests failed by policy",
        severity="error",
        when="kv_load_failure_policy=fail",
        so="Requests fail or hang.",
        fix="Secondary to RUN03/PAIR15: show that first.",
        source="v1/core/sched/scheduler.py:3417",
        confirmed="source",
        seen="v1/core/sched/scheduler.py",
        rank=WRAPPER,
        log=(r"Failing (\d+) request\(s\) due to KV load failure \(failure_policy=fail",),
    ),
    Rule(
        id="RUN05",
        title="recovered by recompute",
        severity="warn",
        when="kv_load_failure_policy=recompute",
        so="Requests are slower or are retried.",
        fix=("D prefills: stalls; find the cause. (Known wrong output on some versions.)"),
        source="scheduler.py:3427; vllm#49250",
        confirmed="source",
        seen="v1/core/sched/scheduler.py",
        rank=AFTERMATH,
        log=(r"Recovered from KV load failure",),
    ),
    Rule(
        id="RUN06",
        title="block-level failure on hybrid",
        severity="error",
        when="old connector + multiple KV groups",
        so="Requests fail or hang.",
        fix="Connector update.",
        source="scheduler.py:3366; vllm#52276",
        confirmed="source",
        seen="v1/core/sched/scheduler.py",
        log=(
            (
                r"block-level load failures \(invalid_block_ids\) which is not"
                r" supported for models with multiple KV cache groups"
            ),
        ),
    ),
    Rule(
        id="RUN07",
        title="proxy sent incomplete kv_transfer_params",
        severity="error",
        when="missing remote_engine_id/remote_block_ids/remote_host/remote_port",
        so="Requests fail or hang.",
        fix=(
            "Proxy must copy kv_transfer_params from P's answer unchanged. Result is a full"
            " prefill on D (looks like 'works but slow')."
        ),
        source=(
            "distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py; vllm#26896, #22454"
        ),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py",
        log=(r"Got invalid KVTransferParams: .* This request will not utilize KVTransfer",),
    ),
    Rule(
        id="RUN17",
        title="NIXL peer changed/invalidated",
        severity="warn",
        when="P restarted",
        so="Requests are slower or are retried.",
        fix="Expected once after a P restart; repeated -> unstable P.",
        source="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:3596,3673",
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        rank=AFTERMATH,
        log=(
            r"Remote engine at \S+ changed from",
            r"Local NIXL metadata for remote engine \S+ was invalidated",
        ),
    ),
    Rule(
        id="RUN18",
        title="slow NIXL submission (push)",
        severity="warn",
        when="many descriptors per request",
        so="Requests are slower or are retried.",
        fix=("Bigger block size / block-contiguous layout (cross-layer) to cut descriptors."),
        source=("distributed/kv_transfer/kv_connector/v1/nixl/push_worker.py:510; vllm#55434"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/push_worker.py",
        rank=AFTERMATH,
        log=(r"_do_start_push_kv for \S+ took ([\d.]+)ms \(slow NIXL submission\)",),
    ),
    Rule(
        id="RUN20",
        title="old KeyError family (P expired / hetero TP)",
        severity="error",
        when="vLLM <= 0.11-ish",
        so="Requests fail or hang.",
        fix="Upgrade.",
        source="vllm#25562, #43523",
        log=(r"KeyError: '(cmpl|chatcmpl)-",),
    ),
    Rule(
        id="RUN21",
        title="handshake failed (wrapper line)",
        severity="info",
        when="always printed with a traceback of PAIR01/02/03/05/07/15...",
        so="It wraps another error, which is the one to read.",
        fix=("Read the LAST line of the traceback under it; requests then end by policy (RUN04)."),
        source=("distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py:1261,1318,1352"),
        confirmed="source",
        seen="distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
        rank=WRAPPER,
        log=(r"NIXL transfer failure: (push_)?(reg_)?handshake_(setup_)?failed",),
    ),
    Rule(
        id="RUN23",
        title="requests wait for KV that never comes",
        severity="error",
        when=(
            "the same requests wait for remote KV over several intervals or between two "
            "scrapes, and no token comes out"
        ),
        so="Requests fail or hang.",
        fix=(
            "Look at the peer first: is the prefill engine alive, and does its side channel"
            " answer? Then the handshake lines of this log."
        ),
        source="vllm:num_requests_kv_fetch_by_stage (v1/metrics/loggers.py)",
        confirmed="source",
        seen="v1/metrics/loggers.py",
        rank=SYMPTOM,
        load=kv_never_comes,
    ),
)
