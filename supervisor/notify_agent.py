"""Runs commands for one target of `notify:`, one at a time, in a process apart from the supervisor.

One JSON line in, {"argv", "input", "timeout_seconds"}; one out when the command has ended: {"code", "signal"}, or "late" or
"error". The supervisor starts it before any trainer, so that it and what it runs do not belong to the run and are not swept
with a dead trainer. Whatever a command leaves behind is ended with it, all of it when the supervisor is gone (the end of
input) or says so (SIGTERM).

Standard library only: it lives as long as the supervisor, and should weigh little.
"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from supervisor.adapters import tree
from supervisor.adapters.process import become_subreaper

SWEEP_SECONDS = 2.0  # for what a command left behind
_SHIM = Path(__file__).parent / "adapters" / "exec_shim.py"


def main() -> None:
    """Do what the input asks until it ends."""
    become_subreaper()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        for line in sys.stdin.buffer:
            outcome = _run(json.loads(line))
            tree.sweep(None, None, limit_seconds=SWEEP_SECONDS)
            sys.stdout.write(json.dumps(outcome) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)  # nobody listens; a second attempt at the end would say so on stderr
    finally:
        tree.sweep(None, None, limit_seconds=SWEEP_SECONDS)


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Run one command with its input in memory, so that it may read it or not; its output goes nowhere."""
    argv = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), "--", *job["argv"]]
    try:
        with os.fdopen(os.memfd_create("record"), "w+b") as text:
            text.write(job["input"].encode())
            text.seek(0)
            process = subprocess.Popen(
                argv, stdin=text, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
    except (OSError, ValueError) as error:
        return {"error": getattr(error, "strerror", None) or str(error)}
    process.returncode = 0  # collected below or by the sweep, not by Popen
    return _ended(process.pid, job["timeout_seconds"])


def _ended(pid: int, timeout_seconds: float) -> dict[str, Any]:
    """Wait for a child's end, or for its time to be up, or for the end of the supervisor."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(sys.stdin.fileno(), 0)  # says only that the other end is gone
        ready = [one for one, _ in poll.poll(timeout_seconds * 1000)]
    finally:
        os.close(descriptor)
    if sys.stdin.fileno() in ready:
        sys.exit(0)
    if not ready:
        return {"late": True}
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code} if code >= 0 else {"signal": -code}
