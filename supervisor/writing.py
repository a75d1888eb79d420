"""Who has a file open for writing now, read from /proc. What cannot be read, such as another user's process, writes nothing."""

import os
from collections.abc import Iterable, Iterator

from supervisor.proc import pids, snapshot

_DELETED = " (deleted)"


def writers_in_place(paths: Iterable[str]) -> dict[str, frozenset[int]]:
    """The living processes, other than this one, that write each file: path to process ids; none for a file that is gone.

    Those that only inherited a file from one that writes it count once, as do those that share one position in it.
    """
    wanted = {path: inode for path in paths if (inode := _inode(path)) is not None}
    names = {os.path.basename(path) for path in wanted}
    found: dict[str, dict[int, int]] = {path: {} for path in wanted}
    for pid in pids():
        for path, position in _open_for_writing(pid, names, wanted) if pid != os.getpid() else ():
            found[path][pid] = position
    parents = {pid: stat.parent for pid, stat in snapshot().items()} if any(found.values()) else {}
    return {path: _apart(holders, parents) for path, holders in found.items()}


def _open_for_writing(pid: int, names: set[str], wanted: dict[str, tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """The wanted files that a process may write to, with its position in each."""
    folder = f"/proc/{pid}/fd"
    for number in _entries(folder):
        link = f"{folder}/{number}"
        try:
            if os.path.basename(os.readlink(link)).removesuffix(_DELETED) not in names:
                continue  # looked at no further: what is open elsewhere may be on storage that does not answer
            inode = _inode(link)
            position, flags = _fdinfo(f"/proc/{pid}/fdinfo/{number}")
        except (OSError, ValueError, KeyError):
            continue  # it was closed since
        if flags & os.O_ACCMODE != os.O_RDONLY:
            yield from ((path, position) for path, its in wanted.items() if its == inode)


def _fdinfo(path: str) -> tuple[int, int]:
    """Position in the file and flags of an open file."""
    with open(path, encoding="ascii") as file:
        told = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    return int(told["pos"]), int(told["flags"], 8)


def _apart(holders: dict[int, int], parents: dict[int, int]) -> frozenset[int]:
    heads = {pid: position for pid, position in holders.items() if not _inherited(pid, holders, parents)}
    return frozenset({position: pid for pid, position in sorted(heads.items(), reverse=True)}.values())


def _inherited(pid: int, holders: dict[int, int], parents: dict[int, int]) -> bool:
    """Whether an ancestor of it holds the file too."""
    seen: set[int] = set()  # a snapshot that was taken while processes moved may hold a circle
    while (pid := parents.get(pid, 0)) and pid not in seen:
        if pid in holders:
            return True
        seen.add(pid)
    return False


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it ended, or is not ours to look into


def _inode(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
