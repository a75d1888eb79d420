"""What goes on in a checkpoint directory before a snapshot is judged: saves under way, and what was seen to arrive."""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lastgood.seal import Identity
from supervisor.core.events import SavingChanged
from supervisor.leftovers import writers, written
from supervisor.writing import writers_in_place

Say = Callable[[str, dict[str, Any]], None]
SEARCHES_APART_SECONDS = 1.0  # all of /proc is read each time,
SEARCH_SHARE_MAX = 0.01  # for which on a machine with many processes a longer time goes by
NOTICED_MAX = 1000  # partials: of more, as while nobody looks, the whole directory tells
Content = tuple[int, int, int]
"""What changes when the bytes of a file do."""


def content_of(identity: Identity) -> Content:
    """What tells bytes from others. ctime also moves for a new link or mode, which is no arrival."""
    return (identity.inode, identity.size, identity.mtime_ns)


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
    """Saves under way in one directory, by the partials of living processes, and rivals in them. For the judging thread."""

    def __init__(
        self,
        folder: str,
        post: Callable[[SavingChanged], None],
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._search_at = 0.0
        self._post = post
        self._say = say
        self._partials: set[str] = set()  # as of the last look
        self._noticed: deque[str] = deque(maxlen=NOTICED_MAX)  # since then
        self._saving = 0  # the incarnation of which a save was told, 0 while none is
        self._rivals: set[frozenset[int]] = set()  # of which was told that they write the same

    def notice(self, partial: str) -> None:
        """Something happened to a partial of that name. From any thread."""
        self._noticed.append(partial)

    def are_written(self, incarnation: int, whole: bool = True) -> bool:
        """Whether somebody writes a snapshot now; that is told at once, and two who write the same once. Raises OSError.

        Without a look at the whole directory, those partials count that were there at the last look or noticed since.
        """
        whole = whole or len(self._noticed) == NOTICED_MAX
        while self._noticed:
            self._partials.add(self._noticed.popleft())
        self._partials = set(written(self._folder, None if whole else self._partials))
        found = writers(self._partials)
        self._tell_rivals(found)
        if found:
            self.tell(incarnation, saving=True)
        return bool(found)

    def in_place(self, names: Collection[str]) -> None:
        """Tell of two who write the same of these files, which have not settled; looked for now and then. Raises OSError."""
        began = self._clock()
        paths = [] if began < self._search_at else [os.path.join(self._folder, name) for name in names]
        files = [path for path in paths if os.path.isfile(path)]
        if files:
            found = writers_in_place(files)
            took = self._clock() - began
            self._search_at = began + took + max(SEARCHES_APART_SECONDS, took / SEARCH_SHARE_MAX)
            self._tell_rivals({os.path.basename(path): pids for path, pids in found.items()})

    def _tell_rivals(self, found: Mapping[str, frozenset[int]]) -> None:
        for name, pids in found.items():
            if len(pids) > 1 and pids not in self._rivals:
                self._rivals.add(pids)
                self._say("snapshot.two_writers", {"name": name, "pids": sorted(pids)})

    def tell(self, incarnation: int, saving: bool) -> None:
        """Tell whether a save of that incarnation is under way, unless that is known."""
        if saving != (self._saving == incarnation):
            self._saving = incarnation if saving else 0
            self._post(SavingChanged(incarnation, saving))
