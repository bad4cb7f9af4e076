"""Processes: killed, hanging, timed out, and the wrappers they leave in a log."""

from __future__ import annotations

from collections.abc import Iterator

from twolane.diagnosis.deployment import Side
from twolane.diagnosis.findings import AFTERMATH, SYMPTOM, WRAPPER
from twolane.diagnosis.rule import Context, Hit, Match, Rule
from twolane.diagnosis.rules.transfers import SILENT
from twolane.diagnosis.service import Service

EXITS = {
    # The monitor looks before the process is reaped: multiproc_executor.py:315 of 0.32.
    "None": "killed from outside (kernel OOM killer: see dmesg) or crashed: read its last lines",
    "-9": "killed from outside: look for the kernel OOM killer (dmesg; host memory) and the "
    "container's limit",
    "-11": "segmentation fault: look for UCX or NIXL frames and a core file",
    "-6": "abort: the lines above it say why (NCCL, CUDA, an assertion in C++)",
    "-15": "terminated on request",
}


def exit_meaning(found: list[Match], _: Context) -> str:
    worker, code = found[0].groups[:2]
    return f"{worker} ended with {code}: {EXITS.get(code, 'read its last lines above')}."


def model_broken(side: Side) -> Iterator[Hit]:
    if side.deployment.model_trouble:
        yield Hit(side.deployment.model_trouble, "model")


def silent(service: Service) -> Iterator[Hit]:
    run = service.silent_run()
    if run >= SILENT and service.stuck_fetches() < SILENT:
        yield Hit(f"{run} intervals without a token", "silent")


RULES = (
    Rule(
        id="RUN08",
        title="worker killed",
        severity="error",
        when="OOM killer / segfault / NCCL abort",
        so="The engine stops and every request in flight is lost.",
        fix=(
            "exit -9: kernel OOM or kill; -11: segfault (look for UCX/NIXL frames); -6: "
            "abort. dmesg."
        ),
        source="v1/executor/multiproc_executor.py:316; vllm#20440, #49238",
        confirmed="source",
        seen="v1/executor/multiproc_executor.py",
        rank=SYMPTOM,
        log=(r"Worker proc (\S+) died unexpectedly \(exit code: (-?\d+|None)\)",),
        tell=exit_meaning,
    ),
    Rule(
        id="RUN09",
        title="RPC time-out",
        severity="error",
        when="a step took > VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300)",
        so="Requests fail or hang.",
        fix="One rank hangs: NCCL, GPU fault, or first-use JIT. py-spy the workers.",
        source="multiproc_executor.py:442",
        confirmed="source",
        seen="v1/executor/multiproc_executor.py",
        log=(r"RPC call to (\w+) timed out",),
    ),
    Rule(
        id="RUN10",
        title="shared memory broadcast waits",
        severity="warn",
        when="a worker is busy/hung for 60 s",
        so="Requests are slower or are retried.",
        fix=(
            "While serving it means a hung rank: py-spy dump the workers, look for Xid, NCCL and "
            "NIXL lines. During compilation at start-up it is harmless."
        ),
        source=("shm_broadcast.py:108,750,871 (INFO in 0.32); vllm#37250, #44185, #46611"),
        confirmed="source",
        seen="distributed/device_communicators/shm_broadcast.py",
        rank=AFTERMATH,
        log=(r"No available shared memory broadcast block found in (\d+) seconds",),
        starting=True,
    ),
    Rule(
        id="RUN11",
        title="engine ready time-out",
        severity="error",
        when="weights+compile longer than VLLM_ENGINE_READY_TIMEOUT_S (600)",
        so="Requests fail or hang.",
        fix="Set VLLM_ENGINE_READY_TIMEOUT_S=3600 for big models/slow disks.",
        source="v1/engine/core_client.py:743; vllm#48031, #32116",
        confirmed="source",
        seen="v1/engine/core_client.py",
        log=(r"Timed out waiting for engine core processes to start",),
    ),
    Rule(
        id="RUN12",
        title="'Engine core initialization failed' (wrapper)",
        severity="info",
        when="always follows another error",
        so="It wraps another error, which is the one to read.",
        fix=(
            "Never the diagnosis. Search upwards for the FIRST traceback of an "
            "EngineCore/Worker process. '{}' = no exit code was known when it was printed "
            "(Ray-managed engines, a race, older versions): the cause is still above, or "
            "the process was killed before it could print."
        ),
        source=(
            "v1/engine/utils.py:1431-1436; vllm#19002, Alibaba-NLP/DeepResearch#189 (both '{}')"
        ),
        confirmed="source",
        seen="v1/engine/utils.py",
        rank=WRAPPER,
        log=(
            (
                r"Engine core initialization failed\. See root cause above\. Failed"
                r" core proc\(s\): (\{.*?\})"
            ),
        ),
    ),
    Rule(
        id="RUN13",
        title="other wrappers",
        severity="info",
        when="always follow another error",
        so="It wraps another error, which is the one to read.",
        fix=(
            "Markers only: the cause is the last line of the traceback they print, first "
            "occurrence in time."
        ),
        source=("core.py:1510-1512; multiproc_executor.py:790,953,1063; v1/engine/exceptions.py"),
        confirmed="source",
        seen="v1/engine/core.py",
        rank=WRAPPER,
        log=(
            r"EngineCore failed to start\.",
            r"EngineCore encountered a fatal error\.",
            r"WorkerProc failed to start\.",
            r"WorkerProc hit an exception\.",
            r"WorkerProc initialization failed due to an exception in a background process",
            r"EngineDeadError",
            r"EngineCore encountered an issue\. See stack trace",
            r"Frontend process failed during engine core initialization",
        ),
    ),
    Rule(
        id="RUN14",
        title="illegal memory access",
        severity="error",
        when="kernel bug: MTP+GDN, FlexAttention >2^31, DSpark...",
        so="Requests fail or hang.",
        fix=(
            "Reproduce with CUDA_LAUNCH_BLOCKING=1; try: no spec decode, no prefix cache, "
            "another attention backend."
        ),
        source="vllm#40756, #50021, #50427",
        log=(r"(an illegal memory access was encountered|CUDA error: illegal)",),
    ),
    Rule(
        id="RUN15",
        title="NCCL",
        severity="error",
        when="fabric/shm/peer death",
        so="Requests fail or hang.",
        fix="NCCL_DEBUG=WARN; NVLS: NCCL_NVLS_ENABLE=0; --ipc=host.",
        source="torch/NCCL",
        log=(
            (
                r"(NCCL error|ncclSystemError|ncclUnhandledCudaError|Watchdog caught"
                r" collective operation timeout)"
            ),
        ),
    ),
    Rule(
        id="RUN16",
        title="GPU fell off / Xid",
        severity="error",
        when="driver",
        so="Requests fail or hang.",
        fix="Hardware/driver: dmesg.",
        source="driver",
        log=(
            (
                r"(NVRM: Xid|fallen off the bus|uncorrectable ECC|CUDA error:"
                r" unspecified launch failure)"
            ),
        ),
    ),
    Rule(
        id="RUN19",
        title="start-up silent after NIXL scheduler line",
        severity="error",
        when=(
            "last engine line is 'Initializing NIXL Scheduler' / KV cache line and no READY"
            " for > 60 s"
        ),
        so="The engine never becomes ready and nothing times out.",
        fix=(
            "PORT01/PORT02: look for 'Exception in thread nixl_handshake_listener' (no vLLM"
            " prefix)."
        ),
        source="v1/engine/core.py:214; dynamo#14838",
    ),
    Rule(
        id="RUN22",
        title="an error that no rule knows",
        severity="error",
        when="an uncaught exception ended the engine, and no other rule explains it",
        so="The engine stops, or never becomes ready.",
        fix=(
            "Read the last line of the traceback in the evidence; report it, so that a rule"
            " can be written."
        ),
        source="v1/engine/core.py",
        confirmed="source",
        seen="v1/engine/core.py",
        rank=AFTERMATH,
    ),
    Rule(
        id="RUN24",
        title="running requests and no tokens",
        severity="error",
        when=(
            "three stats lines in a row with running requests and neither prompt nor output tokens"
        ),
        so="Requests fail or hang.",
        fix=(
            "The engine hangs: one rank waits for another. py-spy dump the workers, look "
            "for NCCL, Xid and NIXL lines; then restart it."
        ),
        source="v1/metrics/loggers.py",
        confirmed="source",
        seen="v1/metrics/loggers.py",
        rank=SYMPTOM,
        load=silent,
    ),
    Rule(
        id="RUN25",
        title="model folder broken or missing",
        severity="error",
        when="the model path has no readable config.json, weights or tokenizer",
        so="The engine refuses to start.",
        fix=(
            "Check the folder: config.json, the safetensors files (sizes against the index)"
            " and the tokenizer; copy it again if one is short."
        ),
        source="transformers; model_executor/model_loader/default_loader.py",
        confirmed="source",
        seen="transformers_utils/config.py",
        log=(
            (
                r"(?:OSError|ValueError|EnvironmentError): (\S+) does not appear to"
                r" have a file named (\S+)"
            ),
            r"Can't load the configuration of '([^']+)'",
            r"Invalid repository ID or local directory specified: '([^']*)'",
            r"It looks like the config file at '([^']+)' is not a valid JSON file",
            r"Cannot find any model weights with `([^`]+)`",
            r"SafetensorError: Error while deserializing header",
            r"HFValidationError: Repo id must",
        ),
        engine=model_broken,
    ),
    Rule(
        id="RUN26",
        title="killed or out of host memory",
        severity="error",
        when="the kernel or a person ended a process of the engine",
        so="The engine stops, or never starts; every request in flight is lost.",
        fix=(
            "exit -9 is a kill from outside: look for the kernel OOM killer (dmesg) and the"
            " memory limit of the container; leave room for weights, KV cache and both "
            "engines."
        ),
        source="v1/engine/utils.py",
        rank=SYMPTOM,
        log=(
            r"(Out of memory: Killed process|oom-kill|Killed process \d+)",
            r"\{'EngineCore[^']*': -9\}",
        ),
    ),
    Rule(
        id="RUN27",
        title="a process of the engine is gone",
        severity="error",
        when="the API server lost its engine core or a worker, and the log does not say why",
        so="The engine stops and every request in flight is lost.",
        fix=(
            "It was killed or crashed without a word: look for the kernel OOM killer (dmesg), the "
            "container's memory limit, a core file, and who ran kill."
        ),
        source="v1/utils.py:588-594; v1/engine/core_client.py:818; v1/executor/ray_executor_v2.py",
        confirmed="source",
        seen="v1/utils.py",
        rank=AFTERMATH,
        log=(
            r"Process (\S+) \(PID: \d+\) died with exit code",
            r"Engine core process (\S+) died unexpectedly",
            r"RayWorkerProc rank=(\S+) died unexpectedly",
            r"MPClient: engine core exited unexpectedly",
        ),
    ),
)
