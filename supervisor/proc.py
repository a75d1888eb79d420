"""Facts about processes, read from /proc, and the two acts that need them: a signal that cannot miss, and reaping.

A process is known by its pid and the clock tick at which it started, because pids are reused. Everything here tolerates
a process that disappears between two reads: it is then simply not there. Nothing here decides anything.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

_GONE_STATES = frozenset({"Z", "X", "x"})


@dataclass(frozen=True)
class Identity:
    """One process and no other: its pid and its start in clock ticks since boot, so that a reused pid is not it."""

    pid: int
    start_ticks: int


class Stat(NamedTuple):
    """What `/proc/PID/stat` says about a process, as far as it matters here."""

    pid: int
    state: str
    parent: int
    session: int
    threads: int
    start_ticks: int

    @property
    def identity(self) -> Identity:
        """Which process this is."""
        return Identity(self.pid, self.start_ticks)

    @property
    def is_alive(self) -> bool:
        """Whether it can still act: a zombie cannot, unless only its first thread has ended and others run on."""
        return self.state not in _GONE_STATES or self.threads > 1


def parse_stat(content: bytes) -> Stat:
    """Read a `stat` line; the name in it may hold spaces and parentheses, so count from the last `)`."""
    head, _, tail = content.rpartition(b")")
    fields = tail.split()
    return Stat(
        pid=int(head.split(b" ", 1)[0]),
        state=fields[0].decode("ascii", "replace"),
        parent=int(fields[1]),
        session=int(fields[3]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def stat_of(pid: int) -> Stat | None:
    """What is known about the process that has this pid now; None when there is none."""
    content = _read(f"/proc/{pid}/stat")
    try:
        return parse_stat(content)
    except (ValueError, IndexError):
        # Nothing, or half a line: the process ended while it was read.
        return None


def snapshot() -> dict[int, Stat]:
    """Every process that can be seen, zombies too, in one pass over /proc."""
    found = (stat_of(pid) for pid in pids())
    return {stat.pid: stat for stat in found if stat is not None}


def identity_of(pid: int) -> Identity | None:
    """The identity of the process that has this pid now; None when there is none."""
    stat = stat_of(pid)
    return stat.identity if stat else None


def is_alive(identity: Identity) -> bool:
    """Whether that very process still runs; a zombie does not, nor does another process with the same pid."""
    stat = stat_of(identity.pid)
    return stat is not None and stat.identity == identity and stat.is_alive


def boot_id() -> str:
    """Which boot of the machine this is; empty where the kernel does not say."""
    return _read("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def was_there(pid: int, at: float) -> bool:
    """Whether the process that has this pid now lives and began before a time in unix seconds."""
    stat = stat_of(pid)
    if stat is None or not stat.is_alive:
        return False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age <= at


def holds_variable(pid: int, name: str, value: str) -> bool | None:
    """Whether the process was started with exactly `name=value` in its environment; unreadable counts as no.

    None for one that is just about to run another program: for a millisecond or two the kernel shows nothing of it.
    """
    entry = b"\0%b=%b\0" % (os.fsencode(name), os.fsencode(value))
    content = _read(f"/proc/{pid}/environ")
    if not content and _read(f"/proc/{pid}/cmdline"):
        content = _read(f"/proc/{pid}/environ")  # it is done, or there is none
    elif not content and program_of(pid):
        return None
    return entry in b"\0%b\0" % content


def memory_of(pid: int) -> int:
    """Bytes of the machine's memory that a process holds; 0 when there is none."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def program_of(pid: int) -> str:
    """The file name of the program that a process runs; empty when that cannot be told."""
    try:
        target = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""
    return os.path.basename(target.removesuffix(" (deleted)"))


def send_signal(identity: Identity, number: int) -> bool:
    """Send a signal to that very process, never to another that has its pid; False when it was not sent."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    except OSError:
        # Out of descriptors, say. A kill must be possible even so: check, then kill by pid, with a tiny gap in between.
        return identity_of(identity.pid) == identity and _went(lambda: os.kill(identity.pid, number))
    try:
        # Read after opening: if the pid names our process now, the descriptor opened before can name no other.
        same = identity_of(identity.pid) == identity
        return same and _went(lambda: signal.pidfd_send_signal(descriptor, number))
    finally:
        os.close(descriptor)


def _went(send: Callable[[], None]) -> bool:
    try:
        send()
    except OSError:
        return False
    return True


def reap_orphans(keep: Collection[int]) -> list[int]:
    """Collect our dead children except those in `keep`, whose exit status somebody else waits for; returns their pids."""
    if not _any_child_is_dead():
        return []
    this = os.getpid()
    dead = [s.pid for s in snapshot().values() if s.parent == this and s.state == "Z" and s.pid not in keep]
    return [pid for pid in dead if _reaped(pid)]


def _any_child_is_dead() -> bool:
    """Whether any child waits to be collected, asked without collecting it."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def pids() -> Iterator[int]:
    """Every process that can be seen, by number."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _read(path: str) -> bytes:
    """All bytes of a file in /proc; nothing when the process is gone or not ours to read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""
