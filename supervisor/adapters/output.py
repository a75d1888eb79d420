"""Drains the trainer's output, whatever happens to the log: a trainer whose pipe is full stands still.

One thread reads the pipe and does nothing that can block for long; another writes the log. A log that fails, vanishes or
hangs costs log lines, which are counted and marked, never the reading. Output stays bytes on its way to the log, and no
input makes memory grow. The folder of the log is not created here, and what a step means is decided elsewhere.
"""

import fcntl
import os
import re
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from supervisor.lines import CHUNK_BYTES_MAX, LineCutter, Loss, Step, StepFinder, Tail, line_end, visible

_LATE_BYTES_MAX = 4 * CHUNK_BYTES_MAX
_QUEUE_BYTES_MAX = 2 * CHUNK_BYTES_MAX
_QUEUE_PIECES_MAX = 4096
_LOG_PATIENCE_SECONDS = 1.0
_REOPEN_SECONDS = 1.0
_CLOSE_SECONDS = 2.0


class LogFile:
    """A log that is rotated, found again when it was moved or removed, and never raises: what it cannot take is lost."""

    def __init__(self, path: str | Path, bytes_max: int) -> None:
        """Append to `path`; at `bytes_max` it becomes `path.1`, of which there is one."""
        self.loss = Loss()
        self._path = os.fspath(path)
        self._bytes_max = max(1, bytes_max)
        self._descriptor = -1
        self._size_bytes = 0
        self._may_rotate = True
        self._look_due = 0.0

    def write(self, data: bytes) -> None:
        """Append; what the file does not take is dropped, and the file is opened anew within a second or so."""
        written = 0
        try:
            if self._is_open():
                self._tell_loss()
                while written < len(data):
                    written = self._append(data, written)
        except OSError:
            self.close()
        if written < len(data):
            self.loss.add(data[written:])

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError:
                pass  # a network filesystem reports old write errors here; the descriptor is closed all the same

    def _is_open(self) -> bool:
        """Whether there is a file to write to, looking at most once a second whether it is still the one at the path."""
        now_seconds = time.monotonic()
        if now_seconds >= self._look_due:
            self._look_due = now_seconds + _REOPEN_SECONDS
            if not self._is_in_place():
                self.close()
                self._open()
        return self._descriptor >= 0

    def _is_in_place(self) -> bool:
        if self._descriptor < 0:
            return False
        ours = os.fstat(self._descriptor)
        self._size_bytes = ours.st_size  # somebody may have truncated it
        try:
            return os.path.samestat(ours, os.stat(self._path))
        except OSError:
            return False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        self._descriptor = os.open(self._path, flags, 0o666)
        status = os.fstat(self._descriptor)
        self._size_bytes = status.st_size
        self._may_rotate = stat.S_ISREG(status.st_mode)  # a device or a pipe is not ours to rename

    def _tell_loss(self) -> None:
        mark, start = self.loss.mark(), 0
        while start < len(mark):
            start = self._append(mark, start)
        self.loss.told()

    def _append(self, data: bytes, start: int) -> int:
        """Write as much as this file may hold, or make room; returns where to go on."""
        stop = self._last_fitting(data, start) if self._may_rotate else len(data)
        if stop == start:
            self._rotate()
            return start
        count = os.write(self._descriptor, memoryview(data)[start:stop])
        self._size_bytes += count
        return start + count

    def _last_fitting(self, data: bytes, start: int) -> int:
        limit = start + max(0, self._bytes_max - self._size_bytes)
        if len(data) <= limit:
            return len(data)
        stop = line_end(data, start, limit)
        # A line that is longer than a whole file has to be torn.
        return limit if stop == start and self._size_bytes == 0 else stop

    def _rotate(self) -> None:
        self.close()
        try:
            os.replace(self._path, f"{self._path}.1")
        except FileNotFoundError:
            pass  # somebody removed it: room enough
        self._open()


class LogWriter(threading.Thread):
    """Writes the log in a thread of its own, since a full or hung disk can block a write for minutes."""

    def __init__(self, log: LogFile) -> None:
        """Own the log, which from now on is touched by this thread only."""
        super().__init__(name="trainer-log", daemon=True)
        self.loss = Loss()
        self._log = log
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._is_hung = False
        self._is_ended = False

    def put(self, data: bytes) -> None:
        """Hand over output; waits a little for a slow log, and drops at once while the log does not move at all."""
        with self._changed:
            has_room = self._changed.wait_for(self._has_room, 0.0 if self._is_hung else _LOG_PATIENCE_SECONDS)
            self._is_hung = not has_room
            if has_room:
                self._queue.append(self.loss.mark() + data)
                self._queue_bytes += len(self._queue[-1])
                self.loss.told()
                self._changed.notify_all()
            else:
                self.loss.add(data)

    def end(self) -> None:
        """Write what was handed over, then end."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def run(self) -> None:
        """Write until ended."""
        while batch := self._take():
            self._log.write(batch)
        self._log.close()

    def _has_room(self) -> bool:
        return self._queue_bytes < _QUEUE_BYTES_MAX and len(self._queue) < _QUEUE_PIECES_MAX

    def _take(self) -> bytes:
        """All that waits to be written; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_ended)
            batch = b"".join(self._queue)
            self._queue.clear()
            self._queue_bytes = 0
            self._changed.notify_all()
        return batch


class OutputDrain:
    """Reads a pipe to its end into a log, reports steps on the way and remembers the last lines."""

    def __init__(
        self,
        descriptor: int,
        log_path: str | Path,
        step_pattern: re.Pattern[bytes] | None,
        on_step: Callable[[int, float | None, int], None],
        *,
        log_bytes_max: int = 64 << 20,
        line_bytes_max: int = 16 << 10,
        tail_lines: int = 20,
    ) -> None:
        """Drain a duplicate of `descriptor` once started; the caller may close its own.

        `on_step(step, loss, count)` is called from the reading thread with the newest step of each chunk, and must only
        hand it on. `count` is the number of different steps among those looked at: all of them, except in a flood.
        """
        self.total_bytes = 0
        self._finder = StepFinder(step_pattern, line_bytes_max)
        self._on_step = on_step
        self._cutter = LineCutter(line_bytes_max)
        self._tail = Tail(tail_lines * (line_bytes_max + 64))
        self._tail_lines = tail_lines
        self._tail_lock = threading.Lock()
        self._log = LogFile(log_path, log_bytes_max)
        self._writer = LogWriter(self._log)
        self._late_bytes_left = _LATE_BYTES_MAX
        self._descriptor = os.dup(descriptor)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._descriptor, select.POLLIN)
        self._poller.register(self._wake, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="trainer-output", daemon=True)
        _enlarge(self._descriptor)

    def start(self) -> None:
        """Begin to read."""
        self._writer.start()
        self._thread.start()

    def wait(self, timeout_seconds: float) -> bool:
        """Whether within this time the output came to its end and the log was written."""
        deadline = time.monotonic() + timeout_seconds
        for thread in (self._thread, self._writer):
            thread.join(max(0.0, deadline - time.monotonic()))
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Whether output is still being read or written."""
        return self._thread.is_alive() or self._writer.is_alive()

    def close(self) -> None:
        """Read what is there at once, then end, even if somebody still holds the other end of the pipe."""
        if self._wake < 0:
            return
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is None:
            os.close(self._descriptor)
        elif not self.wait(_CLOSE_SECONDS):
            return  # the log hangs; both threads are daemons, and closing what they use would be worse
        os.close(self._wake)
        self._wake = -1

    @property
    def dropped_bytes(self) -> int:
        """How much output did not reach the log because of the log; cut lines do not count."""
        return self._log.loss.bytes + self._writer.loss.bytes

    @property
    def dropped_lines(self) -> int:
        """How many lines ended in what was dropped."""
        return self._log.loss.lines + self._writer.loss.lines

    def last_lines(self) -> list[str]:
        """The last lines that are not blank, each at most 500 characters, safe to print, log and encode."""
        with self._tail_lock:
            lines = self._tail.lines(self._tail_lines)
        return [visible(line) for line in lines]

    def _run(self) -> None:
        try:
            while chunk := self._next_chunk():
                self.total_bytes += len(chunk)
                self._report(self._finder.feed(chunk))
                self._keep(self._cutter.feed(chunk))
            self._report(self._finder.finish())
            self._keep(self._cutter.finish())
        finally:
            os.close(self._descriptor)
            self._writer.end()

    def _next_chunk(self) -> bytes:
        """The next output; nothing at its end, or when closing and there is nothing to read at once."""
        ready = {descriptor for descriptor, _ in self._poller.poll()}
        if self._wake in ready and (self._descriptor not in ready or self._late_bytes_left <= 0):
            return b""
        try:
            chunk = os.read(self._descriptor, CHUNK_BYTES_MAX)
        except OSError:
            return b""
        if self._wake in ready:
            self._late_bytes_left -= len(chunk)  # or a grandchild that never stops writing would keep us here
        return chunk

    def _report(self, step: Step | None) -> None:
        if step is not None:
            self._on_step(*step)

    def _keep(self, output: bytes) -> None:
        if output:
            with self._tail_lock:
                self._tail.add(output)
            self._writer.put(output)


def _enlarge(descriptor: int) -> None:
    """Give the trainer more room before it blocks, where the system lets us."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CHUNK_BYTES_MAX)
    except OSError:
        pass  # not a pipe, or the user's share of pipe memory is used up
