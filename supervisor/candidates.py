"""The candidates of one run in its directory."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from lastgood.contract import SEAL_SUFFIX
from lastgood.naming import partial_of, rule_for, unfinished
from lastgood.publish import remove_if_there
from lastgood.rungs import Rung, scan, scan_named
from lastgood.seal import Identity, bound_seal_path
from supervisor.arrivals import content_of

NEWEST = 50  # that are looked at when names are: a file that is written over and still open tells nobody
BACKLOG_SECONDS = 0.5  # in which snapshots of before the start are judged, until others have their turn
YOUNG_NS = 2_000_000_000  # a directory that changed just now may change again without a later time
Stamp = tuple[int, int, int]
"""What changes when a name comes to a directory or goes, or another directory has its name."""


class Candidates:
    """`foreign` are another run's snapshots, by name and identity: they do not count. Each look raises OSError."""

    def __init__(self, checkpoint_dir: str, pattern: str | None, foreign: Mapping[str, Identity]) -> None:
        self._directory = checkpoint_dir
        self._pattern = pattern
        self._step_of = rule_for(pattern)
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
        self._plain = not self.linked and all(rung.is_plain for rung in rungs)
        return rungs, None

    def _named(self, names: Collection[str]) -> list[Rung] | None:
        found = scan_named(self._directory, names, self._pattern)
        return None if found is None else [rung for rung in found if self.is_ours(rung)]

    def find(self, name: str) -> Rung | None:
        """The one of that name, if it is there."""
        found = self._named((name,)) if self._plain else None
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
        """Names that may be candidates and are not `known`, and those known that are not there; none if nothing came or went.

        `notice` is told of each partial.
        """
        stamp = stamp_of(self._directory)
        if stamp is not None and stamp == self._stamp:
            return set()
        came, there, has_folder = set(), 0, False
        for entry in entries_of(self._directory):
            if entry.name in known:
                there += 1
            elif partial_of(entry.name) is not None:
                notice(entry.name)
            elif self._may_be_one(entry):
                came.add(entry.name)
                has_folder = has_folder or entry.is_dir(follow_symlinks=False)
        self._stamp = None if has_folder else stamp  # what comes to a folder does not show out here
        if there < len(known):
            came.update(set(known).difference(entry.name for entry in entries_of(self._directory)))
        return came

    def _may_be_one(self, entry: "os.DirEntry[str]") -> bool:
        """Whether it may be a candidate, or lead to one: a link by any name, a folder by its name without a look into it."""
        if entry.is_symlink() or (self._pattern is None and entry.is_dir(follow_symlinks=False)):
            return not unfinished(entry.name)
        return not entry.name.endswith(SEAL_SUFFIX) and self._step_of(entry.name) is not False


def stamp_of(directory: str) -> Stamp | None:
    """What is the same as long as no name comes or goes; None if that cannot be told. Raises OSError."""
    status = os.stat(directory)
    is_young = time.time_ns() - status.st_mtime_ns < YOUNG_NS
    return None if is_young else (status.st_dev, status.st_ino, status.st_mtime_ns)


def entries_of(directory: str) -> Iterator["os.DirEntry[str]"]:
    """What is in a directory, of which ten thousand are not held at once. Raises OSError."""
    with os.scandir(directory) as entries:
        yield from entries
