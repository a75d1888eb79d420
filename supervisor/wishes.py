"""What is wanted of a run: wanted.json, as it was found at the start and as people change it meanwhile.

A pause outlives the supervisor, whatever ends it; a stop is over with the next start.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor.adapters import statefile
from supervisor.core import events as e
from supervisor.patience import Patient

STORAGE_SECONDS = 2.0  # how long it is waited for; the loop has more to do than to hear a wish

WISHES: dict[str, e.Event] = {
    "run": e.ResumeRequested(),
    "pause": e.PauseRequested(),
    "stop": e.StopRequested(signal.SIGTERM),
}


@dataclass
class _Look:
    """One look at the file; it may be over when nobody waits for it any more."""

    wanted: str | None = None
    trouble: str | None = "the storage does not answer"
    is_over: bool = False


class Wishes:
    """One directory's. For the loop's thread: a wish is decided about here and now, in order with all else."""

    def __init__(
        self, directory: str, say: Callable[[str, dict[str, Any]], None], step: Callable[[e.Event], None]
    ) -> None:
        self._directory = directory
        self._storage = Patient("wish", STORAGE_SECONDS)
        self._say = say
        self._step = step
        self._look = _Look(is_over=True)  # the newest
        self._waits = False  # a wish is there that could not be read
        self._held = False  # and no trainer starts before it is, for it may be a pause

    def begin(self) -> str | None:
        """What was wanted before this start. All but a pause is over; what storage does not tell may be one."""
        wanted = self._asked()
        self._held = self._waits
        if self._held:
            return "pause"
        if wanted != "pause":
            self._go_on()
        return wanted

    def read(self) -> None:
        """Somebody has changed the wish and said so; once only, so that what cannot be read is asked for again."""
        self._heed(self._asked())

    def read_again(self) -> None:
        """At each rescan: read what could not be read before, or hear what was not told in time."""
        if self._waits:
            self._heed(self._asked() if self._look.is_over and self._look.trouble else self._told())

    def _heed(self, wanted: str | None) -> None:
        if self._held and not self._waits:
            self._held = False
            if wanted != "pause":
                self._go_on()
                wanted = "run"
        if wanted is None:
            self._waits = True
        else:
            self._step(WISHES[wanted])

    def _asked(self) -> str | None:
        look = self._look = _Look()

        def work() -> None:
            try:
                look.wanted, look.trouble = statefile.wanted_in(self._directory), None
            except OSError as error:
                look.trouble = f"{error.strerror or error}"
            look.is_over = True

        self._storage.do(work)
        return self._told()

    def _told(self) -> str | None:
        """What the newest look has found, if it is over."""
        look = self._look
        if look.trouble is None:
            self._waits, self._look = False, _Look(is_over=True)
            return look.wanted
        if not self._waits:
            self._say("wish.unreadable", {"reason": look.trouble})
        self._waits = True
        return None

    def _go_on(self) -> None:
        told: list[str | None] = []

        def work() -> None:
            try:
                statefile.settle_wanted(self._directory, "run")
                told.append(None)
            except OSError as error:
                told.append(f"{error.strerror or error}")

        self._storage.do(work)
        trouble = told[0] if told else "the storage does not answer"
        if trouble is not None:
            self._say("memory.not_saved", {"reason": trouble})
