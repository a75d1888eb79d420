"""Control groups: one of the trainer's own where some were delegated to us, and who counts the kernel's OOM kills.

What is born in a group (cgroup v2) stays in it, whatever session, parent or environment it gives itself, and is killed at one
stroke. Groups are made only where that is allowed: below a group that systemd marked as delegated, or, for anybody but root,
below one that this user may write and that is no service's. Without one all works as ever, by what /proc tells.
"""

import contextlib
import hashlib
import os
import time
from typing import Self

TRAINERS = "lastgood-trainer"
SUPERVISORS = "lastgood-supervisor"
_MARKS = ("user.delegate", "trusted.delegate")  # of newer and of older systemd
_MEMORY_FILES = (
    ("", "memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
"""Of cgroup v2, and of v1's controller: limit, what is taken, and what of that the kernel gives up when it is needed."""
_REMOVAL_SECONDS = 1.0  # what was just killed may still be on its way out


class TrainerGroup:
    """The trainer's own group, and beside it one that this process is in, so that none stands above another."""

    def __init__(self, base: str, directory: str) -> None:
        """Below a group that was delegated; the names follow from the checkpoint directory, whose lock makes them ours."""
        name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        self._base = base
        self._own = os.path.join(base, f"{SUPERVISORS}-{name}")
        self.folder = os.path.join(base, f"{TRAINERS}-{name}")

    @classmethod
    def made(cls, directory: str, is_service: bool) -> Self | None:
        """Make both groups and move this process; None where that is not possible. What lives in them is left alone."""
        base = delegated(_read("/proc/self/cgroup"), is_service)
        if base is None:
            return None
        group = cls(base, directory)
        try:
            os.makedirs(group.folder, exist_ok=True)
            os.makedirs(group._own, exist_ok=True)
            _write(os.path.join(group._own, "cgroup.procs"), "0")
        except OSError:
            group.leave()
            return None
        return group

    def entrance(self) -> str:
        """The file through which a process enters, of a group made anew if somebody removed it."""
        with contextlib.suppress(OSError):
            os.makedirs(self.folder, exist_ok=True)
        return os.path.join(self.folder, "cgroup.procs")

    def pids(self) -> set[int]:
        """All that live in it, and in groups below it."""
        return _pids(self.folder)

    def kill(self) -> None:
        """SIGKILL to all of them at one stroke, before any can fork. Before Linux 5.14 nothing happens."""
        if os.getpid() not in self.pids():
            with contextlib.suppress(OSError):
                _write(os.path.join(self.folder, "cgroup.kill"), "1")

    def leave(self) -> None:
        """Go back and remove both groups; one in which something will not die stays, for the next supervisor."""
        if os.getpid() in _pids(self._own):
            with contextlib.suppress(OSError):
                _write(os.path.join(self._base, "cgroup.procs"), "0")
        for folder in (self.folder, self._own):
            _remove(folder)


def delegated(cgroups: str, is_service: bool, mounts: str | None = None) -> str | None:
    """The folder of the group below which groups may be made for a process, given its `/proc/PID/cgroup`; or None.

    The mark may be on the group above: systemd puts a service into a subgroup if it is told to, and so does this software.
    But what is in a trainer's group stays in it.
    """
    folder = _folder_of(cgroups, "", mounts)
    if folder is None:
        return None
    name, above = os.path.basename(folder), os.path.dirname(folder)
    candidates = [folder] if name.startswith(TRAINERS) else [folder, above]
    marked = next((one for one in candidates if _is_writable(one) and _is_marked(one)), None)
    if marked is not None or is_service or os.geteuid() == 0:
        return marked
    ours = above if name.startswith(SUPERVISORS) else folder
    return ours if _is_writable(ours) else None


class OomCounter:
    """How many processes the kernel's OOM killer ends in the memory group of a trainer, from now on."""

    def __init__(self, group: TrainerGroup | None, cgroups: str | None = None, mounts: str | None = None) -> None:
        """Of a trainer about to be started in its own group, or where this process is; `cgroups` is `/proc/PID/cgroup`."""
        where = _read("/proc/self/cgroup") if cgroups is None else cgroups
        self._file = _counting_file(None if group is None else group.folder, where, mounts)
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._before = _oom_kills(self._file)

    def risen(self) -> int | None:
        """How many since then; None where nobody counts."""
        now = _oom_kills(self._file)
        return None if now is None or self._before is None else max(0, now - self._before)


def memory_left(cgroups: str | None = None, mounts: str | None = None) -> int | None:
    """Bytes that may still be taken in this process's memory groups, caches of files given up; None where nothing limits them."""
    where = _read("/proc/self/cgroup") if cgroups is None else cgroups
    left = []
    for controller, limit, taken, kinds in _MEMORY_FILES:
        folder = _folder_of(where, controller, mounts)
        while folder not in (None, "/"):  # a group of ours may have no memory controller, and one above it a limit
            allowed, used = (_read(os.path.join(folder, name)).strip() for name in (limit, taken))
            if allowed.isdigit() and used.isdigit():
                left.append(int(allowed) - int(used) + _cached(os.path.join(folder, "memory.stat"), kinds))
            folder = os.path.dirname(folder)
    return min(left, default=None)


def _cached(path: str, kinds: tuple[str, ...]) -> int:
    pairs = (line.split() for line in _read(path).splitlines())
    return sum(int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] in kinds)


def _counting_file(trainers: str | None, cgroups: str, mounts: str | None) -> str:
    """The file of the nearest group that accounts for memory: of v1 where that has the controller, else of v2."""
    old, new = (_folder_of(cgroups, controller, mounts) for controller in ("memory", ""))
    if old is not None:
        return os.path.join(old, "memory.oom_control")
    folder = trainers or new or "/"
    while folder != "/" and not os.path.exists(os.path.join(folder, "memory.events")):
        folder = os.path.dirname(folder)
    return os.path.join(folder, "memory.events")


def _oom_kills(path: str) -> int | None:
    counts = dict(line.split(" ", 1) for line in _read(path).splitlines() if " " in line)
    try:
        return int(counts["oom_kill"])
    except (KeyError, ValueError):
        return None


def _folder_of(cgroups: str, controller: str, mounts: str | None) -> str | None:
    """The folder of a process's group, of v2 or of a v1 controller; None when it cannot be seen from here."""
    path = _path_of(cgroups, controller)
    if path is None or path.startswith("/.."):  # outside of this process's namespace
        return None
    for root, point in _mounts(_read("/proc/self/mountinfo") if mounts is None else mounts, controller):
        inside = os.path.relpath(path, root)
        folder = os.path.normpath(os.path.join(point, inside))
        if inside.split(os.sep)[0] != os.pardir and os.path.isdir(folder):
            return folder
    return None


def _path_of(cgroups: str, controller: str) -> str | None:
    for line in cgroups.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") if controller else number == "0":
            return path
    return None


def _mounts(mountinfo: str, controller: str) -> list[tuple[str, str]]:
    """What of the hierarchy is mounted, and where."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = (part.split() for part in line.partition(" - "))
        if len(before) > 4 and len(after) > 2:
            is_it = after[0] == "cgroup" and controller in after[2].split(",") if controller else after[0] == "cgroup2"
            found += [(before[3], before[4])] * is_it
    return found


def _is_writable(folder: str) -> bool:
    """Whether groups can be made there and processes moved."""
    return os.access(folder, os.W_OK) and os.access(os.path.join(folder, "cgroup.procs"), os.W_OK)


def _is_marked(folder: str) -> bool:
    for name in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _pids(top: str) -> set[int]:
    """All processes of a group and those below it, but for those of another namespace, which have no number here."""
    found = " ".join(_read(os.path.join(folder, "cgroup.procs")) for folder, _, _ in os.walk(top))
    return {int(word) for word in found.split()} - {0}


def _remove(top: str) -> None:
    deadline = time.monotonic() + _REMOVAL_SECONDS
    for folder in [folder for folder, _, _ in os.walk(top, topdown=False)]:
        while not (_is_removed(folder) or _read(os.path.join(folder, "cgroup.procs")) or time.monotonic() >= deadline):
            time.sleep(0.01)


def _is_removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def _read(path: str) -> str:
    """What a file of the kernel says; nothing when it is not there or not ours to read."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""


def _write(path: str, word: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, word.encode("ascii"))
    finally:
        os.close(descriptor)
