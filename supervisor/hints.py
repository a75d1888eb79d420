"""What a watcher hints at: when to look at a directory next, and at what."""

import time
from collections.abc import Callable
from enum import IntEnum

from lastgood.contract import SEAL_SUFFIX
from lastgood.naming import partial_of, rule_for
from supervisor.mailbox import Mailbox

LOOKS_APART_SECONDS = 0.1  # a trainer that writes its log into the directory must not keep a core busy
ALL_SECONDS = 60.0
NEVER = float("inf")


class Depth(IntEnum):
    """How much of a directory is looked at."""

    HINTED = 0
    """Files that something is said to have happened to, and those left open the last time."""
    LISTED = 1
    """And which names came or went."""
    ALL = 2
    """Every file, which also tells of what was written in place."""


class Hints:
    """For the loop's thread, but for `hear`. `notice` is called with the names of partials, in the watcher's thread."""

    def __init__(self, pattern: str | None, mailbox: Mailbox, notice: Callable[[str], None]) -> None:
        self.look_at = 0.0
        """When to look next, in monotonic seconds."""
        self.looked_at = 0.0
        self.all_seconds = ALL_SECONDS
        """From one look at every file to the next: an event may have been lost, or a file written over that stays open."""
        self._depth = Depth.ALL
        self._all_at = 0.0  # when the next look at all that is there is due
        self._names: set[str] = set()
        self._is_candidate = rule_for(pattern)
        self._mailbox = mailbox
        self._notice = notice

    def hear(self, name: str | None) -> None:
        """Something happened to that name, or nobody knows to which. From any thread."""
        if name is None:
            self._mailbox.hand(self._doubt)
        elif partial_of(name) is not None:
            self._notice(name)
        elif self._is_candidate(name.removesuffix(SEAL_SUFFIX)) is not False:
            self._mailbox.hand(lambda: self._heard(name))

    def _doubt(self) -> None:
        self.deepen(Depth.ALL)
        self.look_by(self.looked_at + LOOKS_APART_SECONDS)

    def _heard(self, name: str) -> None:
        self._names.add(name.removesuffix(SEAL_SUFFIX))
        # A seal is there a moment before its snapshot, and a look at that alone would put off the one that counts.
        since = time.monotonic() if name.endswith(SEAL_SUFFIX) else self.looked_at
        self.look_by(since + LOOKS_APART_SECONDS)

    def look_by(self, when: float) -> None:
        """Look then, unless it is to be sooner."""
        self.look_at = min(self.look_at, when)

    def deepen(self, depth: Depth) -> None:
        """Look so deep at least the next time."""
        self._depth = max(self._depth, depth)

    def rescan(self, now: float) -> None:
        """Look now, whatever was heard."""
        self.look_at = 0.0
        self.deepen(Depth.ALL if now >= self._all_at else Depth.LISTED)

    def take(self, now: float) -> tuple[frozenset[str], Depth]:
        """What to look at now: these names, and how deep."""
        names, depth = frozenset(self._names), self._depth
        self._names, self._depth, self.looked_at = set(), Depth.HINTED, now
        if depth is Depth.ALL:
            self._all_at = now + self.all_seconds
        return names, depth
