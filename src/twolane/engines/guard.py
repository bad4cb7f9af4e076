"""The guard: a tiny parent for one engine's process tree, which outlives nothing.

Run as a file (`python -I -S guard.py LOG CORES GRACE -- COMMAND...`), so it imports only the
standard library and is up in milliseconds. Rules:

- Its standard input is a pipe whose other end only twolane holds. End of file means that twolane
  wants a stop, or died in whatever way, SIGKILL included. Either way the tree goes down.
- It is the subreaper of everything below it, so a grandchild whose parent died is still its
  child: the tree is down when it has no child left, not when the first process has exited.
- It pins itself to CORES first ("-" for none), and the tree inherits that.
- On standard output it says `pid N` once, and its exit code is the command's (128 + n after
  signal n).
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _children(pid: int) -> list[int]:
    """Direct children of `pid`; empty once it is gone."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as children:
                found += [int(c) for c in children.read().split()]
        except OSError:
            continue
    return found


def _descendants(pid: int) -> list[int]:
    below = _children(pid)
    return below + [deeper for child in below for deeper in _descendants(child)]


def _reap(codes: dict[int, int]) -> bool:
    """Collect every child that has ended into `codes`; whether any child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        codes[pid] = os.waitstatus_to_exitcode(status)


def _signal_all(number: int) -> None:
    for pid in _descendants(os.getpid()):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _start(log: int, command: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should the guard itself be killed
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"twolane guard: {command[0]}: {error}\n".encode())
    os._exit(127)


def _bring_down(engine: int, codes: dict[int, int], grace_s: float) -> None:
    """SIGTERM the engine, give it `grace_s`, then SIGKILL whatever is left until nothing is."""
    if engine not in codes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGTERM)
    until = time.monotonic() + grace_s
    while time.monotonic() < until and _reap(codes):
        if engine in codes and not _descendants(os.getpid()):
            return
        time.sleep(0.02)
    while _reap(codes):
        _signal_all(signal.SIGKILL)
        time.sleep(0.02)


def main(argv: list[str]) -> int:
    log_path, cores, grace = argv[0], argv[1], float(argv[2])
    command = argv[argv.index("--") + 1 :]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is twolane's to handle
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if cores != "-":
        os.sched_setaffinity(0, {int(c) for c in cores.split(",")})
    # Block SIGTERM and SIGCHLD and read them from a descriptor: no handler can race with a fork.
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    engine = _start(log, command)
    os.write(1, f"pid {engine}\n".encode())
    codes: dict[int, int] = {}
    while not stopping and engine not in codes:
        ready, _, _ = select.select([0, wake_r], [], [])
        if wake_r in ready:
            os.read(wake_r, 4096)
        if 0 in ready and not os.read(0, 4096):
            stopping.append(1)
        _reap(codes)
    _bring_down(engine, codes, grace)
    code = codes.get(engine, -signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
