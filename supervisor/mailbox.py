"""How other threads and signal handlers reach the loop: they hand it something to do, and wake it."""

import os
import queue
import threading
import time
from collections.abc import Callable

CLOSE_SECONDS = 15.0  # longer than a sweep; hashing a large file on storage that hangs must not hold up our own end

Act = Callable[[], None]


class Mailbox:
    """Acts handed over from anywhere, run by the loop's thread one at a time."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Act] = queue.SimpleQueue()
        self._closing = threading.RLock()  # a signal handler may hand something over while its own thread does
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while something waits; -1 once closed."""

    def hand(self, act: Act) -> None:
        """Hand over an act, from any thread or signal handler; after the mailbox was closed, nobody does it any more."""
        with self._closing:
            if self.descriptor >= 0:  # a closed descriptor's number may be another file's by now
                self._queue.put(act)
                os.eventfd_write(self.descriptor, 1)

    def run_all(self, wanted: Callable[[], bool]) -> None:
        """Run what waits now, as long as it is wanted. What comes meanwhile waits for the next call, and says so."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass  # something else woke the loop
        for _ in range(self._queue.qsize()):
            if not wanted():
                return
            self._queue.get_nowait()()

    def close(self) -> None:
        """Close the descriptor; what is handed over from now on is dropped."""
        with self._closing:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)


class Worker:
    """One thread for long work, in order. A bug in it is raised in the loop, not lost with the thread."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._queue: queue.SimpleQueue[tuple[Act, bool] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"lastgood-{name}", daemon=True)
        self._thread.start()

    def submit(self, work: Act, must: bool = False) -> None:
        """Have work done after what was submitted before; what must be done is not dropped by closing."""
        self._queue.put((work, must))

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            work, must = one
            if must or not self._closed:
                self._guarded(work)

    def _guarded(self, work: Act) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the loop's thread
            self._mailbox.hand(_raiser(error))

    def close(self, until: float | None = None) -> None:
        """Finish what is under way and what must be done, unless that takes too long, and drop the rest.

        `until`, in monotonic seconds, is for those who close several, which all go on working meanwhile.
        """
        self._closed = True
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS if until is None else max(0.0, until - time.monotonic()))


def _raiser(error: BaseException) -> Act:
    def act() -> None:
        raise error

    return act
