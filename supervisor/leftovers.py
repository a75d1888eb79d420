"""Partials that killed processes left: names that this software gives to what is being written or removed."""

import os

from lastgood.contract import SEAL_SUFFIX
from lastgood.naming import left_over, partial_of
from supervisor.proc import was_there

_DOUBT_SECONDS = 2.0  # by which the clock of a file server may be behind ours


def partials(folder: str) -> dict[str, bool]:
    """The partials in a folder by name, and whether the writer of each is dead. Raises OSError.

    Dead is also a writer whose number somebody has who began later.
    """
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if partial_of(entry.name) is not None]
    return {entry.name: _is_abandoned(entry) for entry in found}


def temporary(folder: str) -> int:
    """How many files and folders have names of what is not whole, whoever gave them; a save under way may be among them.

    Raises OSError.
    """
    return sum(map(left_over, os.listdir(folder)))


def writers(folder: str) -> dict[str, frozenset[int]]:
    """The living processes, other than this one, that have partials in a folder, by the snapshot's name. Raises OSError."""
    found: dict[str, frozenset[int]] = {}
    for partial, is_abandoned in partials(folder).items():
        name, pid = (partial_of(partial) or "").removesuffix(SEAL_SUFFIX), _pid_in(partial)
        if not is_abandoned and pid != os.getpid():
            found[name] = found.get(name, frozenset()) | {pid}
    return found


def _pid_in(partial: str) -> int:
    return int(partial.rsplit("-", 2)[1])


def _is_abandoned(entry: "os.DirEntry[str]") -> bool:
    pid = _pid_in(entry.name)
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False  # its writer has just finished
    return not was_there(pid, status.st_ctime + _DOUBT_SECONDS)
