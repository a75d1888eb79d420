"""Becomes the trainer, after seeing to it that the trainer cannot outlive its supervisor.

Run by path, by the supervisor's own interpreter: `python -I -S exec_shim.py SUPERVISOR_PID -- ARGV...`. It asks the kernel
to kill it when its parent dies, undoes the signal settings that Python and the supervisor made, and executes ARGV in the
same process, so the pid stays. This cannot be done between fork and exec inside the supervisor: Python code there may
deadlock, and what it sets before `exec` of another Python would be set again.

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
    if len(arguments) < 3 or not arguments[0].isdigit() or arguments[1] != "--":
        _refuse(_NOT_EXECUTABLE, "usage: exec_shim.py SUPERVISOR_PID -- COMMAND [ARGUMENT]...")
    command = arguments[2:]
    _die_with(int(arguments[0]))
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
