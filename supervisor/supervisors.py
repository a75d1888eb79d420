"""Supervisors of this machine, as the kernel knows them: which process holds which directory's lock.

A number in a file may be of yesterday, and a command line may be anybody's. So a process counts as a directory's supervisor only
while it has that directory's lock file open, and the kernel says that it holds a lock by that very open file.
"""

import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lastgood.contract import STATE_DIR, SUPERVISOR_LOCK
from supervisor import proc

_ENDING = f"/{STATE_DIR}/{SUPERVISOR_LOCK}"


@dataclass(frozen=True)
class Supervisor:
    """A process that supervises. `directory` is None where it is somebody else's and we may not look; `unit` is systemd's."""

    identity: proc.Identity
    directory: str | None
    user: str
    unit: str | None


def supervisor_of(directory: str, told: int) -> proc.Identity | None:
    """The process that holds this directory's lock; None when it is not to be seen from here.

    `told` is the process id that the lock file names, which is looked at first.
    """
    path = os.path.join(directory, STATE_DIR, SUPERVISOR_LOCK)
    for pid in (told, *_candidates()):
        identity = proc.identity_of(pid) if pid else None
        if identity is not None and _holds(pid, path) and proc.identity_of(pid) == identity:
            return identity
    return None


def _holds(pid: int, path: str) -> bool:
    try:
        return any(os.path.samefile(opened, path) for opened in _locks(pid))
    except OSError:
        return False  # it ended, or is not ours to look into


def running() -> list[Supervisor]:
    """Every supervisor that can be seen, by process id; of other people's only that they are there."""
    found: list[Supervisor] = []
    for pid in _candidates():
        identity = proc.identity_of(pid)
        held: list[str | None]
        try:
            held = [directory for opened in _locks(pid) if (directory := _directory(opened)) is not None]
        except PermissionError:
            held = [None]
        except OSError:
            continue
        unit = unit_in(cgroups_of(pid))
        if identity is not None and held and proc.identity_of(pid) == identity:
            found.append(Supervisor(identity, held[0], _user_of(pid), unit))
    return sorted(found, key=lambda one: one.identity.pid)


def _candidates() -> list[int]:
    """Processes that were started as a supervisor is."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if is_command(_text(f"/proc/{pid}/cmdline").split("\0"))]


def is_command(words: Sequence[str]) -> bool:
    """Whether a command line is that of `lastgood run`, however it was called."""
    for index, word in enumerate(words[:8]):  # an interpreter has few flags
        if os.path.basename(word) == "lastgood" or (word == "supervisor" and index and words[index - 1] == "-m"):
            return words[index + 1 : index + 2] == ["run"]
    return False


def _locks(pid: int) -> Iterator[str]:
    """The open files of a process that are supervisor's locks, and locked, as paths in /proc. Raises OSError."""
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            is_lock = os.readlink(f"{folder}/{name}").endswith(_ENDING)
        except FileNotFoundError:
            continue  # closed meanwhile
        if is_lock and is_locked(_text(f"/proc/{pid}/fdinfo/{name}")):
            yield f"{folder}/{name}"


def is_locked(info: str) -> bool:
    """Whether the kernel says of an open file (`/proc/PID/fdinfo/N`) that it alone holds the lock."""
    return any(line.startswith("lock:") and " WRITE " in line for line in info.splitlines())


def _directory(opened: str) -> str | None:
    try:
        return os.readlink(opened).removesuffix(_ENDING)
    except FileNotFoundError:
        return None


def cgroups_of(pid: int) -> str:
    """What `/proc/PID/cgroup` says; nothing when the process is gone."""
    return _text(f"/proc/{pid}/cgroup")


def unit_in(cgroups: str) -> str | None:
    """The systemd service that a process belongs to, by its `/proc/PID/cgroup`; None in a session or a container."""
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or controllers == "name=systemd":
            units = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
            if units:
                return units[-1] if units[-1].endswith(".service") else None
    return None


def _user_of(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _text(path: str) -> str:
    """What a file in /proc says; nothing when the process is gone or not ours to read."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""
