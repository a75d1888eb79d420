"""Supervisors of this machine, as the kernel knows them: which process holds which directory's lock.

A number in a file may be of yesterday, and a command line may be anybody's. So a process counts as a directory's supervisor only
while it has that directory's lock file open and the kernel says that it is locked by that very open file.
"""

import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lastgood.contract import STATE_DIR, SUPERVISOR_LOCK
from supervisor import proc

_LOCK_ENDING = os.path.join("", STATE_DIR, SUPERVISOR_LOCK)
_LOCK_ENDING = f"/{STATE_DIR}/{SUPERVISOR_LOCK}"
_GONE = " (deleted)"


@dataclass(frozen=True)
class Supervisor:
    """A process that supervises. `directory` is None when it belongs to somebody into whose processes we may not look."""

    identity: proc.Identity
    directory: str | None
    user: str
    unit: str | None


def supervisor_of(directory: str, told: int) -> proc.Identity | None:
    """The process that holds this directory's lock, `told` being the one that the lock file names; None when it is not to be seen."""
    path = os.path.join(directory, STATE_DIR, SUPERVISOR_LOCK)
    candidates = [told, *(pid for pid in _pids_of_supervisors() if pid != told)]
    return next((found for pid in candidates if pid and (found := _proven(pid, path)) is not None), None)


def _proven(pid: int, path: str) -> proc.Identity | None:
    """The identity of a process that holds the lock `path`: the same before and after that was looked at."""
    identity = proc.identity_of(pid)
    if identity is None or not any(os.path.exists(path) and _is_file(fd, path) for fd in _locks(pid)):
        return None
    return identity if proc.identity_of(pid) == identity else None


def running() -> list[Supervisor]:
    """Every supervisor that can be seen, by process id; of other people's only that they are there."""
    found = []
    for pid in _pids_of_supervisors():
        identity = proc.identity_of(pid)
        try:
            directories = [directory for fd in _locks(pid, hidden=True) if (directory := _directory(fd)) is not None]
            user, cgroups = _user(pid), _text(f"/proc/{pid}/cgroup")
        except PermissionError:
            directories, user, cgroups = [None], _user(pid), _text(f"/proc/{pid}/cgroup")
        except OSError:
            continue
        if identity is not None and directories and proc.identity_of(pid) == identity:
            found.append(Supervisor(identity, directories[0], user, unit_in(cgroups)))
    return sorted(found, key=lambda one: one.identity.pid)
