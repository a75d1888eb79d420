"""Writing where storage may stand still: done by a thread, waited for as long as that is worth, and then no longer."""

import threading
from collections import deque
from collections.abc import Callable

WAITING_MAX = 10_000
CLOSE_SECONDS = 2.0
LINGER_SECONDS = 2.0

Act = Callable[[], None]


class Patient:
    """Acts done in order. Whoever gives one waits for it, unless an earlier one has shown that this would take too long.

    There is a thread only while there is something to do, and for a moment after, since a new one costs more than a write.
    """

    def __init__(self, name: str, patience_seconds: float) -> None:
        self._name = name
        self._patience_seconds = patience_seconds
        self._waiting: deque[Act] = deque()
        self._given = self._done = 0
        self._works = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def do(self, act: Act, again: bool = False) -> bool:
        """Have it done; False when too many wait, and it never will be. `again`: wait for it whatever earlier ones have shown.

        Raises what this act, or an earlier one since, has raised.
        """
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                return False
            stands_still = self._done < self._given
            self._waiting.append(act)
            self._given += 1
            self._changed.notify_all()
            if not self._works and not self._begun():
                self._waiting.clear()
                self._done = self._given
                act()  # no thread is to be had: then it is done here and now
            elif again or not stands_still:
                self._until_done(self._patience_seconds)
            error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def _begun(self) -> bool:
        try:
            threading.Thread(target=self._work, name=f"lastgood-{self._name}", daemon=True).start()
        except RuntimeError:
            return False
        self._works = True
        return True

    def _until_done(self, seconds: float) -> None:
        given = self._given
        self._changed.wait_for(lambda: self._done >= given, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting, LINGER_SECONDS):
                    self._works = False
                    return
                act = self._waiting.popleft()
            error = _error_of(act)
            with self._changed:
                self._error = error or self._error
                self._done += 1
                self._changed.notify_all()

    def close(self) -> None:
        """Wait until all is done, unless that takes too long."""
        with self._changed:
            self._until_done(CLOSE_SECONDS)


def _error_of(act: Act) -> BaseException | None:
    """Do it; a bug in it is raised where the next one is given, not lost with the thread."""
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - raised again
        return error
    return None
