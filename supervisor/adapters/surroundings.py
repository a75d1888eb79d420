"""Facts about this machine and one of its folders, read or tried. Nothing here judges them, and nothing stays behind."""

import contextlib
import fcntl
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata

import psutil

from lastgood.naming import partial_name
from lastgood.publish import fsync_folder

_FICLONE = 0x40049409  # linux/fs.h


@dataclass
class Tried:
    """What came of doing in a folder what a save does: what the system said of each act that failed."""

    problems: dict[str, str] = field(default_factory=dict)
    reflink: bool | None = None
    offset_seconds: float | None = None
    """By how much the time of a file just written is ahead of the clock."""


def try_folder(folder: str) -> Tried:
    """Write, fsync, rename, lock and clone small files there, and remove them."""
    tried = Tried()
    first, second = (os.path.join(folder, partial_name(name)) for name in ("doctor", "doctor-2"))
    try:
        with _told(tried, "write"), open(first, "xb") as file:
            file.write(b"x" * 4096)
            with _told(tried, "fsync"):
                file.flush()
                os.fsync(file.fileno())
            tried.offset_seconds = os.fstat(file.fileno()).st_mtime - time.time()
        if "write" not in tried.problems:
            _try_second(tried, folder, first, second)
    finally:
        for path in (first, second):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return tried


def _try_second(tried: Tried, folder: str, first: str, second: str) -> None:
    with _told(tried, "write"), open(second, "xb") as copy, open(first, "rb") as file:
        tried.reflink = _done(lambda: fcntl.ioctl(copy.fileno(), _FICLONE, file.fileno()))
    with _told(tried, "lock"), open(first, "rb+") as one, open(first, "rb+") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _done(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)):
            tried.problems["lock"] = "two got it at a time"
    with _told(tried, "rename"):
        os.rename(first, second)
    with _told(tried, "fsync-folder"):
        fsync_folder(folder)


@contextlib.contextmanager
def _told(tried: Tried, act: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        tried.problems[act] = error.strerror or str(error)


def _done(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def mount_of(path: str) -> tuple[str, str]:
    """Type and options of the filesystem that holds a path; empty when they cannot be told."""
    wanted = os.path.join(os.path.realpath(path), "")
    best, found = "", ("", "")
    try:
        mounts = psutil.disk_partitions(all=True)
    except (OSError, RuntimeError):
        return found
    for mount in mounts:
        point = os.path.join(mount.mountpoint, "")
        if wanted.startswith(point) and len(point) >= len(best):  # of two on one point, the later hides the earlier
            best, found = point, (mount.fstype, mount.opts)
    return found


def inotify_limit(name: str, folder: str = "/proc/sys/fs/inotify") -> int | None:
    """One of inotify's limits for this user; None when it cannot be read."""
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def has_pidfd() -> bool:
    """Whether a process can be held by a descriptor here."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def open_files_limit() -> int | None:
    """How many files a process may have open; None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def version_of(distribution: str) -> str | None:
    """The version of a distribution that is installed for this Python, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
