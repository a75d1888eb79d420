"""The lock of a checkpoint directory's one writer: a kernel lock, gone with its holder."""

import fcntl
import io
import os
import weakref
from pathlib import Path

from lastgood.contract import STATE_DIR, WRITER_LOCK

_LOCKS: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_release_all)


class WriterLock:
    """One process that saves and prunes in a checkpoint directory: a kernel lock, closed in forked children."""

    def __init__(self, checkpoint_dir: Path) -> None:
        self._path = checkpoint_dir / STATE_DIR / WRITER_LOCK
        self._file: io.FileIO | None = None
        _LOCKS.add(self)

    def hold(self) -> None:
        """Take the lock, or make sure that the one held is still the one on disk. Raises RuntimeError naming the holder."""
        if self._file is not None and self._still_there(self._file):
            return
        self.release()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = io.FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.read(64).decode("ascii", "replace").strip() or "another process"
            file.close()
            raise RuntimeError(
                f"{self._path.parent.parent} is being written by process {holder}; one process saves at a time"
            ) from None
        except OSError:
            file.close()
            raise
        self._file = file
        try:
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        except OSError:
            pass  # the disk is full; the lock holds all the same, and only its holder's number is not told

    def _still_there(self, file: io.FileIO) -> bool:
        try:
            return os.stat(self._path).st_ino == os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give the lock back; without one this does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
