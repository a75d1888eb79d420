"""What killed processes left: partials, as this software calls what is being written or removed, and others' temporary names."""

import os
import re

from lastgood.contract import SEAL_SUFFIX
from lastgood.naming import any_name, partial_of
from supervisor.proc import was_there

_DOUBT_SECONDS = 2.0  # by which the clock of a file server may be behind ours
_TEMPORARY = re.compile(
    r"(?i)^\.?(?:tmp[-_.].+|.+[-_.](?:tmp|temp|part|partial|swp|swx|incomplete)(?:[-_.]?\d*)?|.+-tmp-\d+)$"
)
_OF_A_COPY = re.compile(r"\.(?P<name>.+)\.[0-9A-Za-z]{6}")  # as rsync names what it is about to put in place


def partials(folder: str) -> dict[str, bool]:
    """The partials in a folder by name, and whether the writer of each is dead. Raises OSError.

    Dead is also a writer whose number somebody has who began later.
    """
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if partial_of(entry.name) is not None]
    return {entry.name: _is_abandoned(entry) for entry in found}


def temporary(folder: str) -> int:
    """How many files and folders have temporary names, whoever gave them; a save under way may be among them.

    Raises OSError.
    """
    return sum(map(_is_temporary, os.listdir(folder)))


def _is_temporary(name: str) -> bool:
    copy = _OF_A_COPY.fullmatch(name)
    known = partial_of(name) is not None or _TEMPORARY.match(name) is not None
    return known or (copy is not None and any_name(copy["name"]) is not False)


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
