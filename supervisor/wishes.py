"""What is wanted of a run: wanted.json, as it was found at the start and as people change it meanwhile.

A pause outlives the supervisor, whatever ends it; a stop is over with the next start.
"""

import signal
from collections.abc import Callable
from typing import Any

from supervisor.adapters import statefile
from supervisor.core import events as e

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
        try:
            wanted = statefile.wanted_in(self._directory)
        except OSError as error:
            if not self._waits:
                self._say("wish.unreadable", {"reason": f"{error.strerror or error}"})
            self._waits = True
            return None
        self._waits = False
        return wanted

    def _go_on(self) -> None:
        try:
            statefile.settle_wanted(self._directory, "run")
        except OSError as error:
            self._say("memory.not_saved", {"reason": f"{error.strerror or error}"})
