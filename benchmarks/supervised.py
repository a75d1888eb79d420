"""A real supervisor in a process of its own, and what can be told of it from outside."""

import contextlib
import ctypes
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from supervisor.proc import memory_of

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 60.0
NEVER_GIVES_UP = ("restarts.without_progress=1000000", "restarts.per_window=1000000", "restarts.backoff_seconds=[0,0]")


class Supervised:
    """`lastgood run` over a directory, which tells its moments by `probe.py`. Use `supervised`, which ends it."""

    def __init__(self, directory: Path, command: list[str], resume: str, settings: Sequence[str]) -> None:
        self.directory = directory
        self._moments, theirs = os.pipe()
        self._rest = b""
        self._told: deque[bytes] = deque()
        words = [sys.executable, "-m", "benchmarks.probe", str(theirs), "run", "--checkpoints", str(directory)]
        words += [word for one in (*NEVER_GIVES_UP, *settings) for word in ("--set", one)]
        words += ["--resume", resume, "--", *command]
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, pass_fds=(theirs,))
        os.close(theirs)

    def next(self, name: str) -> tuple[float, int]:
        """The next moment of that name: monotonic seconds, and the pid that it is about; those before it are forgotten."""
        while True:
            while self._told:
                nanoseconds, told, pid = self._told.popleft().decode("ascii").split()
                if told == name:
                    return int(nanoseconds) / 1e9, int(pid)
            self._hear()

    def _hear(self) -> None:
        poll = select.poll()
        poll.register(self._moments, select.POLLIN)
        data = os.read(self._moments, 1 << 16) if poll.poll(PATIENCE_SECONDS * 1000) else b""
        if not data:
            raise TimeoutError(f"the supervisor of {self.directory} has ended or stands still")
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._told.extend(lines)

    def cpu_seconds(self) -> float:
        """What all its threads have spent so far, in user and system mode."""
        clock = ctypes.c_int()
        if error := ctypes.CDLL(None).clock_getcpuclockid(self.process.pid, ctypes.byref(clock)):
            raise OSError(error, os.strerror(error))
        return time.clock_gettime(clock.value)

    def memory_bytes(self) -> int:
        """What it holds of the machine's memory now."""
        return memory_of(self.process.pid)

    def close(self) -> None:
        """Kill it, and with it its trainer."""
        self.process.kill()
        self.process.wait()
        os.close(self._moments)


@contextlib.contextmanager
def supervised(
    directory: Path, *command: str, resume: str = "never", settings: Sequence[str] = ()
) -> Iterator[Supervised]:
    """A supervisor of a command with settings such as `checkpoints.keep.last=3`, for as long as it is needed."""
    one = Supervised(directory, list(command), resume, settings)
    try:
        yield one
    finally:
        one.close()
