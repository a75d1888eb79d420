"""Room on the checkpoint directory's filesystem, and what quarantine gives up when there is too little."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lastgood.contract import QUARANTINE_DIR, REASON_FILE, SEAL_SUFFIX, STATE_DIR
from lastgood.judging import verify
from lastgood.verdict import Kind

RESERVE_BYTES = 1 << 20  # for records, the trainer's output and run.json
RESERVE_INODES = 8  # a seal, and what the supervisor replaces
GROWTH = 1.05  # a snapshot is rarely just as large as the one before


@dataclass(frozen=True)
class Room:
    """What is free for this user and what is needed. `free_inodes` is None where files are not limited."""

    free_bytes: int
    free_inodes: int | None
    needed_bytes: int
    needed_inodes: int

    @property
    def is_enough(self) -> bool:
        """Whether the next save fits."""
        inodes = self.free_inodes is None or self.free_inodes >= self.needed_inodes
        return inodes and self.free_bytes >= self.needed_bytes


def room(path: str) -> tuple[int, int | None]:
    """Free bytes for this user, and free inodes, None where the filesystem has no limit of them. Raises OSError."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None


def room_for(path: str, size: int, files: int) -> Room:
    """The room in a directory beside what one more snapshot of that size, in so many files, takes. Raises OSError.

    It is no more for a trainer that overwrites its file: that is truncated first, and the copy on the shelf is the one more.
    """
    return Room(*room(path), int(size * GROWTH) + RESERVE_BYTES, files + RESERVE_INODES)


def files_of(path: str) -> int:
    """How many files and folders a snapshot is made of."""
    return 1 + sum(len(files) + len(folders) for _, folders, files in os.walk(path))


@dataclass(frozen=True)
class Trimmed:
    """A broken snapshot that was removed from quarantine: its name, the folder in which it was, and its size."""

    name: str
    path: str
    bytes: int


SUSPECTED = "suspected"
"""In the reason of what was set aside although its bytes are good: it may have to go back."""


def trim(checkpoint_dir: str, limit_bytes: int, is_enough: Callable[[], bool]) -> Iterator[Trimmed]:
    """Remove broken and superseded snapshots from quarantine, oldest first, until there is room or the rest fits the limit.

    What says why each was set aside stays, and so do snapshots that are not proven broken: one that was only suspected may have
    to go back. Can be cut anywhere, and goes on next time. Raises OSError.
    """
    base = os.path.join(checkpoint_dir, STATE_DIR, QUARANTINE_DIR)
    places = [os.path.join(base, one) for one in sorted(os.listdir(base))] if os.path.isdir(base) else []
    sizes = [(place, _size_of(place)) for place in places]
    left = sum(size for _, size in sizes)
    for place, size in sizes:
        if left <= limit_bytes or is_enough():
            return
        if (name := _useless_one(place)) is not None:
            for one in _held(place):
                _remove(os.path.join(place, one))
            left -= size
            yield Trimmed(name, place, size)


def _held(place: str) -> list[str]:
    """What lies in a folder of quarantine beside the reason: the snapshot first, then what belongs to it."""
    names = {name for name in os.listdir(place) if name != REASON_FILE}
    seals = {name + end for name in names for end in (SEAL_SUFFIX, ".json")}
    return sorted(names, key=lambda name: (name in seals, name))


def _useless_one(place: str) -> str | None:
    """The name of the snapshot there, if it is known to be of no more use; read again if nothing says why it is there."""
    name = next(iter(_held(place)), None)
    if name is None:
        return None
    verdict = verify(os.path.join(place, name))
    broken = {Kind.TRUNCATED, Kind.CORRUPT, Kind.INCOMPLETE}
    if verdict.kind in broken:
        return name
    reason = _reason(place)
    superseded = reason.startswith(f"{Kind.UNPROVEN}:") and SUSPECTED not in reason
    told = superseded or any(reason.startswith(f"{kind}:") for kind in broken)
    return name if verdict.kind is Kind.UNPROVEN and told else None


def _reason(place: str) -> str:
    """What was found when a snapshot was set aside; empty where that could not be written."""
    try:
        with open(os.path.join(place, REASON_FILE), encoding="utf-8") as file:
            return str(json.load(file)["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _size_of(place: str) -> int:
    """The bytes of all that lies there, but of the reason."""
    found = [(folder, name) for folder, _, names in os.walk(place) for name in names if name != REASON_FILE]
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, name in found)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
