"""Watches one directory and hints that something happened there. Hints shorten the wait; a look at everything is the truth.

Events get lost: the kernel's queue overflows, limits forbid a watch, network filesystems tell of local changes only, and a
watch stays with a directory that was removed even when a new one has its name. So nothing here is an error: `state` says in
words what is watched, and the owner calls `check` at each rescan, which finds a dead watch and sets a new one.

The directory itself is watched, not what is inside its folders.
"""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from lastgood.naming import partial_of, unfinished

Hint = Callable[[str | None], None]

_CLOSE_SECONDS = 5.0
_EVENTS: list[type[FileSystemEvent]] = [
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
]
_LIMITS = {
    errno.ENOSPC: "the limit of inotify watches is reached (fs.inotify.max_user_watches)",
    errno.EMFILE: "the limit of inotify instances (fs.inotify.max_user_instances) or of open files is reached",
}
_NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse", "9p", "lustre", "ceph", "afs", "beegfs", "gpfs", "virtiofs"}
)

# Watchdog reports its own races at close through logging, which would end up on the supervisor's stderr.
logging.getLogger("watchdog").addHandler(logging.NullHandler())


class Watcher:
    """Calls `hint(name)` when a name in the directory came, went or was written, and `hint(None)` when in doubt."""

    def __init__(self, directory: str | Path, hint: Hint, *, observer: Callable[[], BaseObserver] = Observer) -> None:
        """Begin to watch if that is possible, and never raise; `hint` is called from another thread and must only enqueue.

        Scan the directory after this, not before, so that nothing falls in between.
        """
        self.state = ""
        self.tells_all = False
        """Whether what happens there is hinted at, as far as anybody knows."""
        self._directory = os.fspath(directory)
        self._hint = hint
        self._make_observer = observer
        self._observer: BaseObserver | None = None
        self._watched: tuple[int, int] | None = None
        self._relay: _Relay | None = None
        self._arm()

    def check(self) -> bool:
        """Whether the watch had died or came back, so that events may be missing; sets a new one where there is none."""
        was_watching = self._observer is not None
        if was_watching and self._is_sound():
            return False
        self.close()
        self._arm()
        return was_watching or self._observer is not None

    def close(self) -> None:
        """Stop watching; leaves no thread."""
        observer, self._observer = self._observer, None
        self.state, self.tells_all = "polling: closed", False
        if observer is not None:
            _stop(observer)

    def _arm(self) -> None:
        try:
            # Read before the watch is set: if the directory is replaced in between, the next check sees it.
            self._watched = _identity(self._directory)
            self._observer = self._watch()
            filesystem = filesystem_of(self._directory)
            self.tells_all = filesystem.partition(".")[0] not in _NETWORK_FILESYSTEMS
            self.state = "inotify" if self.tells_all else f"polling: {filesystem.removesuffix('4')} delivers no events"
        except OSError as error:
            self.state = f"polling: {_LIMITS.get(error.errno or 0) or error.strerror or error}"
        except RuntimeError as error:
            self.state = f"polling: {error}"  # no thread could be started

    def _watch(self) -> BaseObserver:
        # A watch on a symbolic link would watch the link, and permission errors are hidden by watchdog: look first.
        path = os.path.realpath(self._directory)
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        observer = self._make_observer()
        self._relay = _Relay(path, self._hint)
        try:
            observer.schedule(self._relay, path, recursive=False, event_filter=_EVENTS)
            observer.start()
        except BaseException:
            _stop(observer)
            raise
        return observer

    def _is_sound(self) -> bool:
        """Whether the watch is on the directory that has the name now, and those who carry its events live."""
        observer, relay = self._observer, self._relay
        if observer is None or relay is None or relay.is_gone or not observer.is_alive():
            return False
        if not all(emitter.is_alive() for emitter in observer.emitters):
            return False
        try:
            return _identity(self._directory) == self._watched
        except OSError:
            return False


class _Relay(FileSystemEventHandler):
    """Turns events into hints."""

    def __init__(self, directory: str, hint: Hint) -> None:
        super().__init__()
        self.is_gone = False  # a new directory may get the old one's inode number, so comparing it is not enough
        self._directory = directory
        self._hint = hint

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Hint at the names that an event is about, but for those that others give to what is unfinished."""
        paths = [os.fsdecode(path) for path in (event.dest_path, event.src_path) if path]
        if self._directory in paths:
            self.is_gone = self.is_gone or isinstance(event, DirDeletedEvent)
            self._hint(None)
            return
        for name in map(os.path.basename, paths):
            if not unfinished(name) or partial_of(name) is not None:
                self._hint(name)


def filesystem_of(path: str | Path, mountinfo: str | Path = "/proc/self/mountinfo") -> str:
    """The type of the filesystem that holds a path, such as `ext4` or `fuse.sshfs`; empty when that cannot be told."""
    wanted = os.fsencode(os.path.realpath(path))
    best, kind = b"", b""
    try:
        lines = Path(mountinfo).read_bytes().splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, rest = line.partition(b" - ")
        point = _unescaped(mount.split(b" ")[4]) if mount.count(b" ") >= 4 else b""
        # At the same length the later one counts: it was mounted over the earlier.
        if len(point) >= len(best) and (wanted + b"/").startswith(point.rstrip(b"/") + b"/"):
            best, kind = point, rest.split(b" ")[0]
    return os.fsdecode(kind)


def _unescaped(point: bytes) -> bytes:
    for code, character in ((rb"\040", b" "), (rb"\011", b"\t"), (rb"\012", b"\n"), (rb"\134", b"\\")):
        point = point.replace(code, character)
    return point


def _identity(directory: str) -> tuple[int, int]:
    status = os.stat(directory)
    return status.st_dev, status.st_ino


def _stop(observer: BaseObserver) -> None:
    try:
        observer.stop()
    except OSError:
        pass  # the watch may be gone already
    if observer.is_alive():
        observer.join(_CLOSE_SECONDS)
