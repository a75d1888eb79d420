"""Who has a file open for writing now: asked of the kernel, and read from /proc.

What cannot be read there, such as another user's process, writes nothing.

Nothing but names and numbers in /proc is looked at: what others have open may be on storage that does not answer.
"""

import ctypes
import fcntl
import os
import platform
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lastgood.folders import members
from supervisor.proc import pids

_KCMP_NUMBERS = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "ppc64le": 354, "s390x": 343}
"""Of the system call that compares what two processes hold; libc has no function for it."""
_KCMP_FILE = 0


@dataclass(frozen=True)
class _Holder:
    """A process and the descriptor by which it may write a file."""

    pid: int
    descriptor: int


def writers_in_place(paths: Iterable[str]) -> dict[str, frozenset[int]]:
    """The living processes, other than this one, that opened a file of that name to write it: path to process ids.

    Those that share one opening of it, as children do that inherited it, count as one of them. Where the kernel does not
    tell that, all count as one. Raises OSError.
    """
    wanted = {os.path.realpath(path): path for path in paths}
    inodes = {real: os.stat(real).st_ino for real in wanted if os.path.isfile(real)}
    found: dict[str, list[_Holder]] = {path: [] for path in wanted.values()}
    for pid in pids():
        for real, descriptor in _open_for_writing(pid, inodes) if pid != os.getpid() else ():
            found[wanted[real]].append(_Holder(pid, descriptor))
    return {path: _apart(holders) for path, holders in found.items()}


def is_being_written(path: str) -> bool:
    """Whether anybody seen in /proc has a file, or any file in a folder, open for writing; no, where that cannot be told."""
    try:
        files = [os.path.join(path, one.path) for one in members(path)] if os.path.isdir(path) else [path]
        doubtful = list(filter(_may_be_open, files))
        return bool(doubtful) and any(writers_in_place(doubtful).values())
    except OSError:
        return False


def _may_be_open(path: str) -> bool:
    """False only if the kernel says that nobody has it open for writing, in which it need not be looked for.

    It gives no lease to read a file to be told of writers while there is one, and on network filesystems for other reasons too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.fcntl(
            descriptor, fcntl.F_SETSIG, signal.SIGURG
        )  # who opens it now tells by a signal, and by this one nothing
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _open_for_writing(pid: int, inodes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The wanted files that a process may write to, with its descriptor of each."""
    for number in _entries(f"/proc/{pid}/fd"):
        try:
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            told = _fdinfo(f"/proc/{pid}/fdinfo/{number}") if name in inodes else {}
        except OSError:
            continue  # it was closed since
        # Old kernels tell no inode; where one is told, the same name in another container is another file.
        if told and int(told.get("ino", inodes[name])) == inodes[name] and _may_write(told):
            yield name, int(number)


def _may_write(told: dict[str, str]) -> bool:
    return int(told["flags"], 8) & os.O_ACCMODE != os.O_RDONLY


def _fdinfo(path: str) -> dict[str, str]:
    with open(path, encoding="ascii") as file:
        return dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)


def _apart(holders: list[_Holder]) -> frozenset[int]:
    """One process of each opening."""
    alone: list[_Holder] = []
    for holder in holders:
        if not any(_share(holder, other) for other in alone):
            alone.append(holder)
    return frozenset(holder.pid for holder in alone)


def _share(one: _Holder, other: _Holder) -> bool:
    """Whether two processes hold the same opening of a file; also where the kernel does not say."""
    number = _KCMP_NUMBERS.get(platform.machine())
    if number is None:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    words = (number, one.pid, other.pid, _KCMP_FILE, one.descriptor, other.descriptor)
    return int(libc.syscall(*map(ctypes.c_long, words))) <= 0


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it ended, or is not ours to look into
