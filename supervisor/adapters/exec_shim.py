"""Becomes the trainer, after seeing to it that the trainer cannot outlive its supervisor.

Run by path, by the supervisor's own interpreter: `python -I -S exec_shim.py SUPERVISOR_PID [CGROUP_PROCS] -- ARGV...`. It
asks the kernel to kill it when its parent dies, enters the control group whose `cgroup.procs` it was given, undoes the signal
settings that Python and the supervisor made, and executes ARGV in the same process, so the pid stays. This cannot be done
between fork and exec inside the supervisor: Python code there may deadlock, and what it sets before `exec` of another Python
would be set again.

Standard library only, and as little of it as possible: it is imported anew for every start.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


def main(arguments: list[str]) -> NoReturn:
    """Tie this process to the supervisor and become the command."""
    before = arguments.index("--") if "--" in arguments else 0
    command = arguments[before + 1 :]
    if not command or before not in (1, 2) or not arguments[0].isdigit():
        _refuse(_NOT_EXECUTABLE, "usage: exec_shim.py SUPERVISOR_PID [CGROUP_PROCS] -- COMMAND [ARGUMENT]...")
    _die_with(int(arguments[0]))
    for group in arguments[1:before]:
        _enter(group)
    give_up_protection()
    _reset_signals()
    try:
        os.execvpe(command[0], command, _environment())
    except (FileNotFoundError, NotADirectoryError) as error:
        _refuse(_NOT_FOUND, f"cannot start {command[0]!r}: {error.strerror}")
    except (OSError, ValueError) as error:
        _refuse(_NOT_EXECUTABLE, f"cannot start {command[0]!r}: {getattr(error, 'strerror', None) or error}")


def _die_with(supervisor: int) -> None:
    """Have the kernel kill this process once the supervisor is dead, also if that happened just now."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        _refuse(_NOT_EXECUTABLE, f"no parent-death signal: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != supervisor:
        # The supervisor died before the request above; the signal for that death will never come.
        _refuse(_NOT_EXECUTABLE, f"the supervisor {supervisor} is gone")


def _enter(group: str) -> None:
    """Go into a control group, so that nothing of the command is born outside; without it the command starts all the same."""
    try:
        descriptor = os.open(group, os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, b"0")
    except OSError:
        pass


def give_up_protection(score: str = "/proc/self/oom_score_adj") -> None:
    """When memory runs out the kernel shall not spare the command: a score that a service lowered was for the supervisor."""
    try:
        with open(score, "rb") as file:
            is_protected = int(file.read()) < 0
        if is_protected:
            with open(score, "wb") as file:
                file.write(b"0")
    except OSError:
        pass


def _reset_signals() -> None:
    """Give the command the default signals: Python ignores SIGPIPE, and `exec` keeps what is ignored or blocked."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _environment() -> dict[bytes, bytes]:
    """The environment as it was given: in a C locale this interpreter has added LC_CTYPE to its own."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry[1:])
    return {name: value for name, _, value in pairs}


def _refuse(status: int, reason: str) -> NoReturn:
    print(f"lastgood: {reason}", file=sys.stderr, flush=True)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
