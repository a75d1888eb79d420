"""What goes on in a checkpoint directory before a snapshot is judged: saves under way, and what was seen to arrive."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor.core.events import SavingChanged
from supervisor.leftovers import writers

Say = Callable[[str, dict[str, Any]], None]
Content = tuple[int, int, int]
"""What changes when the bytes of a file do."""


@dataclass
class Unsettled:
    """A file that may still be written: its content's identity, and since when (monotonic seconds) it has been still."""

    content: Content
    still_since: float


def _to_nobody(_name: str, _step: int | None) -> None:
    """Nobody wants to know."""


class Arrivals:
    """Snapshots that were seen and have not been judged yet. Each is told once, however often it is seen until then."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.tell: Callable[[str, int | None], None] = _to_nobody
        """Called with name and step when one is seen for the first time; for whoever wants to know."""

    def seen(self, name: str, step: int | None) -> None:
        """It is there, and has content that nobody has judged."""
        if name not in self.waiting:
            self.waiting.add(name)
            self.tell(name, step)

    def judged(self, name: str) -> None:
        """Whatever it holds next is another arrival."""
        self.waiting.discard(name)

    def keep(self, present: set[str]) -> None:
        """Forget those that are gone."""
        self.waiting &= present


class Saves:
    """Saves under way in one directory, by the partials of living processes. For the judging thread."""

    def __init__(self, folder: str, post: Callable[[SavingChanged], None], say: Say) -> None:
        self._folder = folder
        self._post = post
        self._say = say
        self._saving = 0  # the incarnation of which a save was told, 0 while none is
        self._rivals: set[frozenset[int]] = set()  # of which was told that they write the same

    def are_written(self, incarnation: int) -> bool:
        """Whether somebody writes a snapshot now; that is told at once, and two who write the same once. Raises OSError."""
        found = writers(self._folder)
        for name, pids in found.items():
            if len(pids) > 1 and pids not in self._rivals:
                self._rivals.add(pids)
                self._say("snapshot.two_writers", {"name": name, "pids": sorted(pids)})
        if found:
            self.tell(incarnation, saving=True)
        return bool(found)

    def tell(self, incarnation: int, saving: bool) -> None:
        """Tell whether a save of that incarnation is under way, unless that is known."""
        if saving != (self._saving == incarnation):
            self._saving = incarnation if saving else 0
            self._post(SavingChanged(incarnation, saving))
