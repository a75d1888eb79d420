"""Keeping the lock of a checkpoint directory: somebody may remove its file, and another supervisor then take the directory."""

import os
from collections.abc import Callable

from supervisor.adapters import statefile
from supervisor.errors import AlreadySupervisedError, UsageError
from supervisor.mailbox import Act, Mailbox


def device_of(directory: str) -> int | None:
    """Which filesystem a directory is on; None when it is not there."""
    try:
        return os.stat(directory).st_dev
    except OSError:
        return None


class Holding:
    """`lock` is the descriptor that holds the directory; the caller closes the last one. `retaken` and `lost` are called in the
    loop's thread: the file was gone and is there again, or another supervisor has it, who is named.
    """

    def __init__(self, directory: str, lock: int, mailbox: Mailbox, retaken: Act, lost: Callable[[str], None]) -> None:
        self.lock = lock
        self._directory = directory
        self._mailbox = mailbox
        self._retaken = retaken
        self._lost = lost
        self._is_lost = False
        self._device = device_of(directory)

    def is_here(self) -> bool:
        """Whether the directory is there, and on the filesystem that it was on. From any thread."""
        return self._device is not None and device_of(self._directory) == self._device

    def look(self) -> None:
        """Take the lock anew when its file was removed. For the judging thread, at each rescan and before each start."""
        if self._is_lost or statefile.still_locked(self._directory, self.lock):
            return
        if not self.is_here():
            return  # moved or not mounted; nothing is begun in its place
        try:
            statefile.prepare(self._directory)
            before, self.lock = self.lock, statefile.lock(self._directory)
        except AlreadySupervisedError as error:
            self._is_lost, reason = True, str(error)
            self._mailbox.hand(lambda: self._lost(reason))
        except (UsageError, OSError):
            pass  # the directory is away or cannot be written; tried again at the next rescan
        else:
            os.close(before)
            self._mailbox.hand(self._retaken)
