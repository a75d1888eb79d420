"""The candidates of one run in its directory."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from lastgood.contract import SEAL_SUFFIX
from lastgood.naming import partial_of, unfinished
from lastgood.publish import remove_if_there
from lastgood.rungs import Rung, scan, scan_named
from lastgood.seal import Identity, bound_seal_path
from supervisor.arrivals import content_of

YOUNG_NS = 2_000_000_000  # a directory that changed just now may change again without a later time
Stamp = tuple[int, int, int]
"""What changes when a name comes to a directory or goes, or another directory has its name."""


class Candidates:
    """`foreign` are another run's snapshots, by name and identity: they do not count. Each look raises OSError."""

    def __init__(self, checkpoint_dir: str, pattern: str | None, foreign: Mapping[str, Identity]) -> None:
        self._directory = checkpoint_dir
        self._pattern = pattern
        self._foreign = foreign
        self._stamp: Stamp | None = None
        self._plain = False  # whether all were files with one name each at the last look at all
        self.linked: frozenset[str] = frozenset()
        """Names to which others led at the last look at all."""

    def is_ours(self, rung: Rung) -> bool:
        """Whether a rung is not another run's."""
        other = self._foreign.get(rung.name)
        return other is None or (other.inode, other.size, other.mtime_ns) != content_of(rung.identity)

    def scan(self) -> list[Rung]:
        """All of them, newest first."""
        return [rung for rung in scan(self._directory, self._pattern) if self.is_ours(rung)]

    def among(self, names: Collection[str] | None) -> tuple[list[Rung], Collection[str] | None]:
        """Those of `names`, or all if that is None or only a look at all can tell; and which names were looked at."""
        found = None if names is None or not self._plain else self._named(names)
        if found is not None:
            return found, names
        rungs = self.scan()
        self.linked = frozenset(rung.name for rung in rungs if rung.linked)
        self._plain = not self.linked and not any(rung.is_folder for rung in rungs)
        return rungs, None

    def _named(self, names: Collection[str]) -> list[Rung] | None:
        found = scan_named(self._directory, names, self._pattern)
        return None if found is None else [rung for rung in found if self.is_ours(rung)]

    def find(self, name: str) -> Rung | None:
        """The one of that name, if it is there."""
        found = self._named((name,))
        return next((rung for rung in (self.scan() if found is None else found) if rung.name == name), None)

    def drop_bound_seal(self, name: str) -> None:
        """Remove our own seal of a snapshot that is gone; it is for a file that nobody has any more."""
        path = os.path.join(self._directory, name)
        try:
            if not os.path.lexists(path):
                remove_if_there(bound_seal_path(path))
        except OSError:
            pass  # it is dropped with the orphans when no trainer lives

    def came_or_went(self, known: Collection[str], notice: Callable[[str], None]) -> set[str]:
        """Names that may be candidates and are not `known`, and those known that are not there; none while no name changes.

        `notice` is told of each partial.
        """
        stamp = stamp_of(self._directory)
        if stamp is not None and stamp == self._stamp:
            return set()
        self._stamp = stamp
        came, there = set(), 0
        for name in names_in(self._directory):
            if name in known:
                there += 1
            elif partial_of(name) is not None:
                notice(name)
            elif not name.endswith(SEAL_SUFFIX) and not unfinished(name):
                came.add(name)
        return came if there == len(known) else came | set(known).difference(names_in(self._directory))


def stamp_of(directory: str) -> Stamp | None:
    """What is the same as long as no name comes or goes; None if that cannot be told. Raises OSError."""
    status = os.stat(directory)
    is_young = time.time_ns() - status.st_mtime_ns < YOUNG_NS
    return None if is_young else (status.st_dev, status.st_ino, status.st_mtime_ns)


def names_in(directory: str) -> Iterator[str]:
    """The names in a directory, of which ten thousand are not held at once. Raises OSError."""
    with os.scandir(directory) as entries:
        yield from (entry.name for entry in entries)
