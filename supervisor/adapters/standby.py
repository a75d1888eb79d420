"""A process that was started in advance, has done the slow imports, and waits to become the next trainer of a Python command.

Until then it holds no GPU, and the kernel ends it first when memory runs out. What it becomes cannot tell the difference but by
its age, its command line in /proc, and modules that are there already. The child's part is `standby_child.py`.
"""

import json
import os
import re
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from supervisor.proc import Identity, memory_of, send_signal, stat_of

MODULES = ("numpy", "torch", "torch._dynamo")
"""What is slow to import, and part of nearly every training script. What is not installed is passed over."""

SEND_SECONDS = 1.0
_SAID_BYTES = 1 << 16  # as much as a pipe holds
_LINE_LETTERS = 200
_CHILD = Path(__file__).with_name("standby_child.py")
_INTERPRETER = re.compile(r"python(\d+(\.\d+)*)?")
_WITH_VALUE = "WX"
_PLAIN = "bBdEIOPqRsSuv"


def split(argv: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """A Python command as the interpreter with its flags, and what follows: a script, `-m` or `-c`, with arguments.

    None for any other command, and for what makes it something else: `-i`, `-x`, `-V`, `-`, and
    compiled code.
    """
    if not argv or _INTERPRETER.fullmatch(os.path.basename(argv[0])) is None:
        return None
    at = 1
    while at < len(argv):
        word = argv[at]
        if not word.startswith("-"):
            return None if word.endswith(".pyc") else (list(argv[:at]), list(argv[at:]))
        if word.startswith("--check-hash-based-pycs"):
            at += 1 if "=" in word else 2
            continue
        letters = word[1:]
        plain = letters[: len(letters) - len(letters.lstrip(_PLAIN))]
        rest = letters[len(plain) :]
        if rest and rest[0] in _WITH_VALUE:
            at += 1 if rest[1:] else 2
        elif rest and rest[0] in "mc":
            given = [rest[1:]] if rest[1:] else []
            flags = [f"-{plain}"] if plain else []
            words = [f"-{rest[0]}", *given, *argv[at + 1 :]]
            return ([*argv[:at], *flags], words) if len(words) > 1 else None
        elif rest or not plain:
            return None
        else:
            at += 1
    return None


class Process(Protocol):
    """A child of this process."""

    identity: Identity
    pidfd: int
    output_descriptor: int

    def poll_exit(self) -> object | None:
        """How it ended; None while it runs."""

    def close(self) -> None:
        """Close its descriptors."""


ChildT = TypeVar("ChildT", bound=Process)


class Standby(Generic[ChildT]):
    """One such process, started by `spawn` with an argv and the descriptors it inherits, for a command that `split` took apart.

    Raises OSError when it cannot be started.
    """

    def __init__(
        self, spawn: Callable[[list[str], tuple[int, ...]], ChildT], interpreter: Sequence[str], words: Sequence[str]
    ) -> None:
        self._channel, theirs = socket.socketpair()
        self._is_ready = False
        with theirs:
            argv = [*interpreter, str(_CHILD), str(theirs.fileno()), ",".join(MODULES), *words]
            try:
                self._child = spawn(argv, (theirs.fileno(),))
            except BaseException:
                self._channel.close()
                raise

    @property
    def pid(self) -> int:
        """Which process it is."""
        return self._child.identity.pid

    @property
    def memory_bytes(self) -> int:
        """What it holds of the machine's memory; 0 when it is gone."""
        return memory_of(self.pid)

    def is_alive(self) -> bool:
        """Whether it still waits, or is about to."""
        return self._child.poll_exit() is None

    def is_ready(self) -> bool:
        """Whether its imports are done, and nobody has stopped it since."""
        if not self._is_ready:
            try:
                self._is_ready = bool(self._channel.recv(64, socket.MSG_DONTWAIT))
            except OSError:
                pass  # nothing said yet, or it is gone
        stat = stat_of(self.pid) if self._is_ready and self.is_alive() else None
        return stat is not None and stat.state not in "Tt"

    def last_words(self) -> str:
        """The last line that it has said, and was not heard."""
        waiting = select.poll()
        waiting.register(self._child.output_descriptor, select.POLLIN)
        said = os.read(self._child.output_descriptor, _SAID_BYTES) if waiting.poll(0) else b""
        lines = said.decode("utf-8", "replace").split("\n")
        return next((line.strip()[:_LINE_LETTERS] for line in reversed(lines) if line.strip()), "it said nothing")

    def become(
        self, argv: Sequence[str], words: Sequence[str], *, env: Mapping[str, str], cwd: str, group: str | None
    ) -> ChildT:
        """Have it become a command of which `words` follow the flags; what is returned is as if it had just been started.

        Of the environment `env` it takes what is called `LASTGOOD_*`. `cwd` is absolute. `group` is the `cgroup.procs` of the
        control group that it enters. Raises OSError when it cannot be told.
        """
        told = {
            "argv": [*map(_told, argv)],
            "words": [*map(_told, words)],
            "env": {_told(name): _told(value) for name, value in env.items() if name.startswith("LASTGOOD_")},
            "cwd": _told(cwd),
            "group": group,
        }
        self._channel.settimeout(SEND_SECONDS)
        self._channel.sendall(json.dumps(told).encode("ascii") + b"\n")
        self._channel.close()
        return self._child

    def kill(self) -> None:
        """Have it end; `is_alive` says when it has, and then it is to be closed."""
        self._channel.close()
        send_signal(self._child.identity, signal.SIGKILL)

    def close(self, seconds: float = 0.0) -> None:
        """Wait for its end for no longer than that, and forget it."""
        waiting = select.poll()
        waiting.register(self._child.pidfd, select.POLLIN)
        waiting.poll(seconds * 1000)
        self._child.poll_exit()
        self._channel.close()
        self._child.close()


def _told(text: str) -> str:
    """Bytes as JSON can hold them: what they mean as text is each interpreter's own affair."""
    return os.fsencode(text).decode("latin-1")
