"""What the loop reads about a trainer from small files in the directory: its notes, and the faults announced against it.

Storage that does not answer holds up the loop for a moment at most: once, and again at each death, of which it must know.
"""

import math
import time

from supervisor import faults, launch
from supervisor.adapters.notes import Note, Notes
from supervisor.patience import Patient
from supervisor.proc import Identity

READ_SECONDS = 2.0
LOOKS_APART_SECONDS = 1.0


class SmallFiles:
    """One directory's. Methods are for the loop's thread, `begin` for any."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._notes = Notes(launch.notes_file(directory))
        self._noted: list[Note] = []
        self.reads = False
        """Whether a look at the notes is under way that was not answered in time."""
        self._asked_at = -math.inf
        self._storage = Patient("notes", READ_SECONDS)

    def begin(self, incarnation: int) -> None:
        """What is noted from now on is of this incarnation, which has not been started; waits for the storage."""
        self._notes.begin(incarnation)

    def noted(self, all_of_it: bool = False, may_wait: bool = False) -> list[Note]:
        """What the trainer has noted since this was last asked. What is not told in time comes with a later one.

        `all_of_it` waits for that even if the storage has not answered before; what `may_wait` is looked for once a second.
        """
        lately = may_wait and time.monotonic() < self._asked_at + LOOKS_APART_SECONDS
        if all_of_it or not (self.reads or lately):
            self._asked_at = time.monotonic()
            self.reads = True
            self._storage.do(self._read, again=all_of_it)
        count = len(self._noted)  # more may be coming
        noted, self._noted[:count] = self._noted[:count], []
        return noted

    def _read(self) -> None:
        self._noted.extend(self._notes.take())
        self.reads = False

    def fault_against(self, target: Identity) -> faults.Fault | None:
        """The fault that was announced against a process; none when that is not told in time."""
        found: list[faults.Fault | None] = []
        self._storage.do(lambda: found.append(faults.aimed_at(self._directory, target)), again=True)
        return found[0] if found else None
