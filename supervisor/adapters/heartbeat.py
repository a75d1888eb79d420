"""A file whose time of modification is a life sign: looked at once a second, in a thread of its own, since storage can hang.

Only a change counts: what the file's time was when the trainer was started says nothing about it, and whether that time is
before or after another clock's does not matter. A file that is not there is no sign.
"""

import os
import threading
from collections.abc import Callable

POLL_SECONDS = 1.0


class Heartbeat:
    """Calls `on_beat`, from a thread of its own, when the file at `path` was modified since the last look, until closed."""

    def __init__(self, path: str, on_beat: Callable[[], None], poll_seconds: float = POLL_SECONDS) -> None:
        self._path = path
        self._on_beat = on_beat
        self._poll_seconds = poll_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastgood-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to look. Raises RuntimeError when no thread can be had."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. The thread is not waited for: it may hang in its last look, and then says nothing any more."""
        self._over.set()

    def _run(self) -> None:
        last = _modified(self._path)
        while not self._over.wait(self._poll_seconds):
            now = _modified(self._path)
            if now not in (None, last) and not self._over.is_set():
                last = now
                self._on_beat()


def _modified(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except (OSError, ValueError):
        return None
