"""The runtime's hands on the next trainer, started in advance: when there is to be one, and whether it is the right one.

It costs the memory of its imports, so there is one only once the present trainer has progressed, and none where memory is short.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from supervisor.adapters import cgroup
from supervisor.adapters.process import Child
from supervisor.adapters.standby import Standby, split
from supervisor.settings import Settings

LOOK_SECONDS = 1.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 10.0, 600.0  # until one that died is replaced; twice as long each time
ENOUGH_BYTES = 2 << 30  # of memory for one to be started: imports for a GPU take up to one
SHORT_BYTES = 512 << 20  # of memory, and one that waits is given up


def is_wanted(settings: Settings) -> bool:
    """Whether a next trainer is to be started in advance at all: as a rule only the bundled one, which does not notice."""
    return settings.trainer.standby == "on" or (settings.trainer.standby == "auto" and settings.bundled)


Command = Callable[[], tuple[list[str], dict[str, str]]]
"""Tells argv and environment."""


@dataclass(frozen=True)
class Kind:
    """What a process must have been started with to become a command: all but its arguments and this software's own variables."""

    interpreter: tuple[str, ...]
    program: str
    cwd: str
    env: tuple[tuple[str, str], ...]


def kind_of(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[Kind, list[str]] | None:
    """For a command, with the words that it is sent; None where it is no Python command."""
    taken = split(argv)
    if taken is None:
        return None
    ours = sorted((name, value) for name, value in env.items() if not name.startswith("LASTGOOD_"))
    return Kind(tuple(taken[0]), taken[1][0], cwd, tuple(ours)), taken[1]


def _available_bytes() -> int:
    """Memory that can be had without taking it from anybody, of the machine and in this process's control groups."""
    import psutil  # only now: it takes memory, and most runs have no use for it

    left = cgroup.memory_left()
    available = int(psutil.virtual_memory().available)
    return available if left is None else min(available, left)


def _spawned(cwd: str, env: Mapping[str, str], argv: list[str], keep: tuple[int, ...]) -> Child:
    return Child.spawn(argv, cwd=cwd, env=env, keep=keep)


class StandingBy:
    """At most one process that waits. For the loop's thread."""

    def __init__(self) -> None:
        self._waiting: Standby[Child] | None = None
        self._kind: Kind | None = None
        self._look_at = 0.0
        self._retry_seconds = RETRY_SECONDS_MIN

    def look(self, command: Command, cwd: str) -> None:
        """Have one for this command, unless the last has just died or memory is short; called whenever the loop comes round."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if self._waiting is None:
            if _available_bytes() >= ENOUGH_BYTES:
                self._start(*command(), cwd)
        elif not self._waiting.is_alive():
            self.end()
            self._look_at = now + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)
        elif _available_bytes() < SHORT_BYTES:
            self.end()

    def _start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        found = kind_of(argv, env, cwd)
        if found is None:
            return
        self._kind, words = found
        try:
            self._waiting = Standby(partial(_spawned, cwd, env), self._kind.interpreter, words)
        except OSError:
            pass  # tried again at the next look

    def take(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, group: str | None) -> Child | None:
        """Have it become this command; None when there is none that is ready and of the right kind."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        found = kind_of(argv, env, cwd)
        if found is not None and found[0] == self._kind and waiting.is_ready():
            try:
                child = waiting.become(argv, found[1], env=env, group=group)
            except OSError:
                pass  # it has just died
            else:
                self._retry_seconds = RETRY_SECONDS_MIN
                return child
        waiting.end()
        return None

    @property
    def pids(self) -> tuple[int, ...]:
        """Who waits: no trainer of the run, and nothing that one has left."""
        return () if self._waiting is None else (self._waiting.pid,)

    def told(self) -> dict[str, Any] | None:
        """What status.json says of it."""
        if self._waiting is None:
            return None
        ready = self._waiting.is_ready()
        return {"pid": self._waiting.pid, "ready": ready, "memory_bytes": self._waiting.memory_bytes}

    def end(self) -> None:
        """Have none."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.end()
