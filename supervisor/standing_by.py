"""The runtime's hands on the next trainer, started in advance: when there is to be one, and whether it is the right one.

It costs the memory of its imports, so there is one only once the present trainer has progressed, and none where memory is short.
"""

import os
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
END_SECONDS = 2.0  # at the very end
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


def kind_of(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple[Kind | None, list[str]]:
    """For a command, with the words that it is sent; None where it is no Python command."""
    taken = split(argv)
    if taken is None:
        return None, []
    ours = sorted((name, value) for name, value in env.items() if not name.startswith("LASTGOOD_"))
    return Kind(tuple(taken[0]), taken[1][0], cwd, tuple(ours)), taken[1]


def _available_bytes() -> int:
    """Memory that can be had without taking it from anybody, of the machine and in this process's control groups."""
    import psutil  # only now: it takes memory, and most runs have no use for it

    left = cgroup.memory_left()
    available = int(psutil.virtual_memory().available)
    return available if left is None else min(available, left)


def _too_little(wanted: int) -> str:
    return f"less than {wanted >> 20:,} MiB of memory is left"


def _spawned(cwd: str, env: Mapping[str, str], argv: list[str], keep: tuple[int, ...]) -> Child:
    return Child.spawn(argv, cwd=cwd, env=env, keep=keep)


class StandingBy:
    """At most one process that waits. For the loop's thread, but for `pids`."""

    def __init__(self) -> None:
        self._waiting: Standby[Child] | None = None
        self._leaving: list[Standby[Child]] = []
        self._kind: Kind | None = None
        self._look_at = 0.0
        self._retry_seconds = RETRY_SECONDS_MIN
        self.missing: str | None = None
        """Why there is none, where one is wanted and it is time for it."""
        self.lost: Callable[[], None] = _nobody_minds
        """Called when one that waited is found dead: what killed it may have been meant for nobody else."""

    @property
    def due(self) -> float:
        """When it wants to be looked at, in monotonic seconds."""
        return float("inf") if self._waiting is None else self._look_at

    def look(self, command: Command, cwd: str, start: bool) -> None:
        """Keep the one there is for as long as it is of use, and `start` one where there is none; called whenever the loop comes
        round. One that dies is replaced after a while, and none is kept or started where memory is short.
        """
        now = time.monotonic()
        if now < self._look_at or (self._waiting is None and not start):
            return
        self._look_at = now + LOOK_SECONDS
        self._bury()
        if self._waiting is None:
            is_enough = _available_bytes() >= ENOUGH_BYTES
            self.missing = self._start(*command(), cwd) if is_enough else _too_little(ENOUGH_BYTES)
        elif not self._waiting.is_alive():
            why = f"the last one ended: {self._waiting.last_words()}; another is started {self._retry_seconds:.0f} s later"
            self.end(why)
            self._look_at = now + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)
        elif _available_bytes() < SHORT_BYTES:
            self.end(_too_little(SHORT_BYTES))
        elif kind_of(*command(), cwd)[:1] != (self._kind,):
            self.end()

    def _start(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> str | None:
        """Try; returns why it was in vain."""
        self._kind, words = kind_of(argv, env, cwd)
        if self._kind is None:
            return f"{argv[0]!r}, with these flags, is no Python command that can be started in advance"
        try:
            self._waiting = Standby(partial(_spawned, cwd, env), self._kind.interpreter, words)
        except OSError as error:
            return f"it cannot be started: {error.strerror or error}"  # tried again at the next look
        return None

    def take(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, group: str | None) -> Child | None:
        """Have it become this command; None when there is none that is ready and of the right kind."""
        waiting = self._waiting
        if waiting is None:
            return None
        kind, words = kind_of(argv, env, cwd)
        if kind == self._kind and waiting.is_ready():
            try:
                child = waiting.become(argv, words, env=env, cwd=os.path.abspath(cwd), group=group)
            except OSError:
                pass  # it has just died
            else:
                self._waiting, self._retry_seconds = None, RETRY_SECONDS_MIN
                return child
        self.end()
        return None

    @property
    def pids(self) -> tuple[int, ...]:
        """Who waits or is about to end: no trainer of the run, and nothing that one has left. For any thread."""
        waiting = self._waiting
        return tuple(one.pid for one in ([] if waiting is None else [waiting]) + self._leaving)

    def told(self) -> dict[str, Any] | None:
        """What status.json says of it."""
        if self._waiting is None:
            return None
        ready = self._waiting.is_ready()
        return {"pid": self._waiting.pid, "ready": ready, "memory_bytes": self._waiting.memory_bytes}

    def end(self, why: str | None = None) -> None:
        """Have none. One that storage holds ends when it can, and nobody waits for that."""
        self.missing = why
        waiting = self._waiting
        if waiting is not None:
            if not waiting.is_alive():
                self.lost()
            waiting.kill()
            self._leaving = [*self._leaving, waiting]
            self._waiting = None
        self._bury()

    def _bury(self) -> None:
        for one in self._leaving:
            if not one.is_alive():
                one.close()
                self._leaving = [other for other in self._leaving if other is not one]

    def close(self) -> None:
        """Have none any more."""
        self.end()
        for one in self._leaving:
            one.close(END_SECONDS)


def _nobody_minds() -> None:
    """As long as nobody wants to know."""
