"""What killed processes left: partials, as this software calls what is being written or removed, and others' temporary names."""

import os
import re
from collections.abc import Collection, Iterable

from lastgood.contract import SEAL_SUFFIX
from lastgood.naming import any_name, partial_of
from lastgood.publish import is_there
from supervisor.proc import was_there

_DOUBT_SECONDS = 2.0  # by which the clock of a file server may be behind ours
_TEMPORARY = re.compile(
    r"(?i)^\.?(?:tmp[-_.].+|.+[-_.](?:tmp|temp|part|partial|swp|swx|incomplete)(?:[-_.]?\d*)?|.+-tmp-\d+)$"
)
_OF_A_COPY = re.compile(r"\.(?P<name>.+)\.[0-9A-Za-z]{6}")  # as rsync names what it is about to put in place


def partials(folder: str, names: Collection[str] | None = None) -> dict[str, bool]:
    """The partials in a folder, or those of `names`, and whether the writer of each is dead. Raises OSError.

    Dead is also a writer whose number somebody has who began later.
    """
    if names is None:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(".")]
        found = [os.path.join(folder, name) for name in names if partial_of(name) is not None]
    else:
        found = [path for path in (os.path.join(folder, name) for name in names) if is_there(path)]
    return {os.path.basename(path): _is_abandoned(path) for path in found}


def temporary(folder: str) -> int:
    """How many files and folders have temporary names, whoever gave them; a save under way may be among them.

    Raises OSError.
    """
    return sum(map(_is_temporary, os.listdir(folder)))


def _is_temporary(name: str) -> bool:
    copy = _OF_A_COPY.fullmatch(name)
    known = partial_of(name) is not None or _TEMPORARY.match(name) is not None
    return known or (copy is not None and any_name(copy["name"]) is not False)


def written(folder: str, names: Collection[str] | None = None) -> list[str]:
    """The partials in a folder, or those of `names`, whose writers live and are others than this process. Raises OSError."""
    found = partials(folder, names)
    return [name for name, is_abandoned in found.items() if not is_abandoned and _pid_in(name) != os.getpid()]


def writers(found: Iterable[str]) -> dict[str, frozenset[int]]:
    """The processes that write these partials, by the snapshot's name."""
    by_name: dict[str, frozenset[int]] = {}
    for partial in found:
        name = (partial_of(partial) or "").removesuffix(SEAL_SUFFIX)
        by_name[name] = by_name.get(name, frozenset()) | {_pid_in(partial)}
    return by_name


def _pid_in(partial: str) -> int:
    return int(partial.rsplit("-", 2)[1])


def _is_abandoned(path: str) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False  # its writer has just finished
    return not was_there(_pid_in(path), status.st_ctime + _DOUBT_SECONDS)
