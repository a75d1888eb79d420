"""What is wanted of a run: wanted.json, as it was found at the start and as people change it meanwhile.

A pause outlives the supervisor, whatever ends it; a stop is over with the next start.
"""

import signal
from collections.abc import Callable
from typing import Any

from supervisor.adapters import statefile
from supervisor.core import events as e
from supervisor.patience import Act, Patient

STORAGE_SECONDS = 2.0  # how long it is waited for; the loop has more to do than to hear a wish

WISHES: dict[str, e.Event] = {
    "run": e.ResumeRequested(),
    "pause": e.PauseRequested(),
    "stop": e.StopRequested(signal.SIGTERM),
}


class Wishes:
    """One directory's. For the loop's thread: a wish is decided about here and now, in order with all else."""

    def __init__(
        self, directory: str, say: Callable[[str, dict[str, Any]], None], step: Callable[[e.Event], None]
    ) -> None:
        self._directory = directory
        self._storage = Patient("wish", STORAGE_SECONDS)
        self._say = say
        self._step = step
        self._waits = False  # a wish is there that could not be read
        self._held = False  # and no trainer starts before it is, for it may be a pause

    def begin(self) -> str | None:
        """What was wanted before this start. All but a pause is over; what storage does not tell may be one."""
        wanted = self._look()
        self._held = self._waits
        if self._held:
            return "pause"
        if wanted != "pause":
            self._go_on()
        return wanted

    def read(self) -> None:
        """Somebody has changed the wish and said so; once only, so that what cannot be read is asked for again."""
        wanted = self._look()
        if self._held and not self._waits:
            self._held = False
            if wanted != "pause":
                self._go_on()
                wanted = "run"
        if wanted is None:
            self._waits = True
        else:
            self._step(WISHES[wanted])

    def read_again(self) -> None:
        """At each rescan: read what could not be read before."""
        if self._waits:
            self.read()

    def _look(self) -> str | None:
        wanted: list[str | None] = []
        trouble = self._try(lambda: wanted.append(statefile.wanted_in(self._directory)))
        if trouble is not None:
            if not self._waits:
                self._say("wish.unreadable", {"reason": trouble})
            self._waits = True
            return None
        self._waits = False
        return wanted[0]

    def _go_on(self) -> None:
        trouble = self._try(lambda: statefile.settle_wanted(self._directory, "run"))
        if trouble is not None:
            self._say("memory.not_saved", {"reason": trouble})

    def _try(self, act: Act) -> str | None:
        """Do what storage may hold up; returns what is in the way, None when it is done."""
        told: list[str | None] = []

        def work() -> None:
            try:
                act()
            except OSError as error:
                told.append(f"{error.strerror or error}")
            else:
                told.append(None)

        self._storage.do(work)
        return told[0] if told else "the storage does not answer"
