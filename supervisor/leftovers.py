"""Partials that killed processes left: names that this software gives to what is being written or removed."""

import os

from lastgood.naming import partial_of
from supervisor.proc import was_there

_DOUBT_SECONDS = 2.0  # by which the clock of a file server may be behind ours


def partials(folder: str) -> dict[str, bool]:
    """The partials in a folder by name, and whether the writer of each is dead. Raises OSError.

    Dead is also a writer whose number somebody has who began later.
    """
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if partial_of(entry.name) is not None]
    return {entry.name: _is_abandoned(entry) for entry in found}


def _is_abandoned(entry: "os.DirEntry[str]") -> bool:
    pid = int(entry.name.rsplit("-", 2)[1])
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False  # its writer has just finished
    return not was_there(pid, status.st_ctime + _DOUBT_SECONDS)
