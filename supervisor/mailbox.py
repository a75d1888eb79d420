"""How other threads and signal handlers reach the loop: they hand it something to do, and wake it."""

import os
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

Act = Callable[[], None]


class Mailbox:
    """Acts handed over from anywhere, run by the loop's thread one at a time."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Act] = queue.SimpleQueue()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while something waits."""

    def hand(self, act: Act) -> None:
        """Hand over an act, from any thread or signal handler."""
        self._queue.put(act)
        os.eventfd_write(self.descriptor, 1)

    def run_all(self, wanted: Callable[[], bool]) -> None:
        """Run what waits, as long as it is wanted."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass  # something else woke the loop
        while wanted():
            try:
                self._queue.get_nowait()()
            except queue.Empty:
                return

    def close(self) -> None:
        """Close the descriptor; nothing may be handed over any more."""
        os.close(self.descriptor)


class Worker:
    """One thread for long work, in order. A bug in it is raised in the loop, not lost with the thread."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._pool = ThreadPoolExecutor(1, f"lastgood-{name}")

    def submit(self, work: Act) -> None:
        """Have work done after what was submitted before."""
        self._pool.submit(self._guarded, work)

    def _guarded(self, work: Act) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the loop's thread
            self._mailbox.hand(_raiser(error))

    def close(self) -> None:
        """Finish what is under way, drop what is not."""
        self._pool.shutdown(cancel_futures=True)


def _raiser(error: BaseException) -> Act:
    def act() -> None:
        raise error

    return act
