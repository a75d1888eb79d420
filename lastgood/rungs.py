"""The candidates of a checkpoint directory, newest first, and the newest that is good."""

import errno
import os
import stat
from collections.abc import Callable, Collection
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

from lastgood import choose, folders, naming
from lastgood.contract import QUARANTINE_DIR, RUN_FILE, SEAL_SUFFIX, STATE_DIR
from lastgood.judging import verify
from lastgood.ledger import Ledger, SealStamp, now_ns
from lastgood.regular import regular
from lastgood.seal import Identity
from lastgood.uncollected import Uncollected
from lastgood.verdict import Verdict

NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Why there is nothing behind a name: it has just gone, or is a link to nowhere. Any other error hides something."""


class Rung(NamedTuple):
    """One candidate: where it is, its step (None when nothing tells), its identity, and its verdict once judged.

    `linked` says that another name in the directory leads to the same file. `identity.size` is in bytes; `mtime_ns` is the time
    of modification in nanoseconds. `seal_inode` is that of the seal beside it, 0 without one. `is_plain`: it is
    one file and no link.
    """

    folder: str
    name: str
    step: int | None
    identity: Identity
    verdict: Verdict | None = None
    linked: bool = False
    seal_inode: int = 0
    is_plain: bool = True

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.folder, self.name)

    @property
    def where(self) -> str:
        """The same as text: ten thousand Paths would keep each name in memory for good."""
        return f"{self.folder}/{self.name}"

    @property
    def mtime_ns(self) -> int:
        """Time of modification, which breaks ties between equal steps."""
        return self.identity.mtime_ns


def scan(
    checkpoint_dir: str | os.PathLike[str], pattern: str | None = None, ledger: Ledger | None = None
) -> list[Rung]:
    """Every candidate, file or folder, newest first, judged only where the ledger remembers a verdict.

    Links are followed and each candidate is counted once.

    What vanishes while it is looked at is left out; what cannot be looked at now is not. Raises OSError when the directory
    itself cannot be read.
    """
    directory = os.fspath(checkpoint_dir)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with Uncollected():
            return choose.newest_first(_candidates(directory, _entries(descriptor), pattern, ledger))
    finally:
        os.close(descriptor)


def scan_named(
    checkpoint_dir: str | os.PathLike[str], names: Collection[str], pattern: str | None = None
) -> list[Rung] | None:
    """Those of `names` that are candidates and are there, newest first, as `scan` tells them, at a cost of these alone.

    None when only `scan` can tell: a link may lead to one, a file with several names may count under another, a snapshot may be a
    folder, and what cannot be looked at counts. Links that lead to one are not seen.

    Raises OSError when the directory cannot be read.
    """
    directory, step_of = os.fspath(checkpoint_dir), naming.rule_for(pattern)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    found: list[Rung] = []
    try:
        for name in names:
            try:
                status = _status_of(name, descriptor)
                seal = _status_of(name + SEAL_SUFFIX, descriptor)
            except OSError:
                return None
            if status is None:
                continue
            step = step_of(name)
            if stat.S_ISDIR(status.st_mode) and pattern is None:
                step = _step_of_folder(directory, name)
            if stat.S_ISLNK(status.st_mode) or (step is not False and _counts_otherwise(status)):
                return None
            if step is not False and stat.S_ISREG(status.st_mode):
                inode = 0 if seal is None else seal.st_ino
                found.append(Rung(directory, name, step, Identity.of(status), seal_inode=inode))
    finally:
        os.close(descriptor)
    return choose.newest_first(found)


def _counts_otherwise(status: os.stat_result) -> bool:
    """Whether a candidate is of several files, or has several names, under another of which it may count."""
    return stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink != 1)


def _status_of(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return None


def _candidates(
    directory: str, listed: tuple[list["os.DirEntry[str]"], dict[str, int]], pattern: str | None, ledger: Ledger | None
) -> Collection[Rung]:
    found: dict[tuple[int, int], Rung] = {}
    pointed_to: set[tuple[int, int]] = set()
    step_of = naming.rule_for(pattern)
    others, seals = listed
    while others:
        entry = others.pop()  # what it knows of its file is more than all that is kept of it
        name = entry.name
        try:
            is_plain = entry.is_file(follow_symlinks=False)
            is_folder = not is_plain and entry.is_dir()
        except OSError:
            is_plain = is_folder = False  # a link to itself, or through what is no folder, or the storage does not say
        step = _step_of_folder(directory, name) if is_folder and pattern is None else step_of(name)
        if step is False and (is_plain or not entry.is_symlink()):
            continue
        try:
            status = entry.stat()
        except OSError as error:
            if step is not False and error.errno not in NOT_THERE:
                found[-1, entry.inode()] = Rung(directory, name, step, Identity(entry.inode(), 0, 0, 0))
            continue
        key = (status.st_dev, status.st_ino)
        if step is False:  # another name, and what it points to has a use
            pointed_to.add(key)
            continue
        is_file = stat.S_ISREG(status.st_mode)
        identity = Identity.of(status) if is_file else _of_folder(f"{directory}/{name}", status)
        if identity is None:
            continue
        seal = seals.get(name, 0)
        verdict = None if ledger is None else ledger.get(name, identity, seal)
        if step is None and verdict is not None:
            step = verdict.step
        rung = Rung(directory, name, step, identity, verdict, False, seal, is_plain and is_file)
        other = found.get(key)
        if other is not None:
            rung = (rung if _tells_more(rung, other, entry.is_symlink()) else other)._replace(linked=True)
        found[key] = rung
    for key in pointed_to & found.keys():
        found[key] = found[key]._replace(linked=True)
    return found.values()


def _entries(directory: int) -> tuple[list["os.DirEntry[str]"], dict[str, int]]:
    """The entries that are no seals, and the inode of each seal by its snapshot's name."""
    others: list[os.DirEntry[str]] = []
    seals: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            name = entry.name
            if name[-len(SEAL_SUFFIX) :] == SEAL_SUFFIX:
                seals[name[: -len(SEAL_SUFFIX)]] = entry.inode()
            else:
                others.append(entry)
    others.sort(
        key=methodcaller("inode"), reverse=True
    )  # from the end on as the disk keeps them, and mostly as they were written
    return others, seals


def _step_of_folder(directory: str, name: str) -> int | bool | None:
    """Without a pattern, what is no snapshot by name and content is no candidate."""
    return naming.step_in_name(name) if folders.looks_like_one(f"{directory}/{name}") else False


def identity_of(path: str | os.PathLike[str]) -> Identity | None:
    """The identity of a snapshot as it is now; None when it is neither a file nor a folder. Raises OSError."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return folders.identity_of(os.fspath(path), status)
    return Identity.of(status) if stat.S_ISREG(status.st_mode) else None


def _of_folder(path: str, status: os.stat_result) -> Identity | None:
    """The identity of a folder, its own alone where it cannot be read; None for what is none."""
    if not stat.S_ISDIR(status.st_mode):
        return None
    try:
        return folders.identity_of(path, status)
    except OSError:
        return Identity.of(status)


def _tells_more(rung: Rung, other: Rung, is_link: bool) -> bool:
    """Of two names of one file, the one with a step, then the one that is no link, then the first in order."""
    return (rung.step is not None, not is_link, other.name) > (
        other.step is not None,
        not other.path.is_symlink(),
        rung.name,
    )


def judge(rung: Rung, ledger: Ledger | None = None, fresh: bool = False) -> Rung:
    """The rung with its verdict; from the ledger if it is remembered there and `fresh` is not asked for.

    A step that only the content tells is taken over.
    """
    path = rung.where
    verdict = None if fresh or ledger is None else ledger.get(rung.name, rung.identity, rung.seal_inode)
    if verdict is None:
        read_at, seal = now_ns(), SealStamp.beside(path)
        verdict = verify(path)
        if ledger is not None:
            ledger.put(path, rung.identity, verdict, read_at, seal)
    step = verdict.step if rung.step is None else rung.step
    return rung._replace(step=step, verdict=verdict)


def ladder(checkpoint_dir: str | os.PathLike[str], pattern: str | None = None) -> list[Rung]:
    """Every candidate of a directory, newest first, each judged. Raises OSError when the directory cannot be read."""
    with Uncollected():
        found = scan(checkpoint_dir, pattern, Ledger(checkpoint_dir))
        if all(rung.step is not None and rung.verdict is not None for rung in found):
            return found
    return choose.newest_first(judge(rung) if rung.verdict is None else rung for rung in found)


def down_to_first_proven(
    rungs: list[Rung],
    ledger: Ledger | None = None,
    fresh: bool = True,
    known: Callable[[Rung], Verdict | None] = lambda _: None,
) -> list[Rung]:
    """Judge from the newest down to the first proven rung; the rest stay unjudged. Steps known only inside are read first.

    What is `known` of a rung is its verdict without a look at its bytes.
    """
    rungs = choose.newest_first([judge(rung, ledger) if rung.step is None else rung for rung in rungs])
    judged: list[Rung] = []
    for index, rung in enumerate(rungs):
        verdict = known(rung)
        judged.append(judge(rung, ledger, fresh) if verdict is None else rung._replace(verdict=verdict))
        if (verdict := judged[-1].verdict) is not None and verdict.proven:
            return judged + rungs[index + 1 :]
    return judged


def latest_healthy(checkpoint_dir: str | os.PathLike[str], pattern: str | None = None) -> Path | None:
    """The newest snapshot that is healthy or intact, its bytes read now; None when there is none.

    Raises OSError when the directory cannot be read; a directory that does not exist has none.
    """
    try:
        rungs = scan(checkpoint_dir, pattern)
    except FileNotFoundError:
        return None
    chosen = choose.choose(down_to_first_proven(rungs))
    return chosen.path if chosen is not None and chosen.verdict is not None and chosen.verdict.proven else None


def ever_held_one(checkpoint_dir: str | os.PathLike[str], pattern: str | None = None) -> bool:
    """Whether the directory holds, or is known to have held, a snapshot. Raises OSError when it cannot be read."""
    try:
        if scan(checkpoint_dir, pattern):
            return True
    except FileNotFoundError:
        return False
    state = Path(checkpoint_dir) / STATE_DIR
    quarantine = state / QUARANTINE_DIR
    if quarantine.is_dir() and any(quarantine.iterdir()):
        return True
    return _high_water(state / RUN_FILE) is not None


def _high_water(run_file: Path) -> int | None:
    import json

    try:
        with open(run_file, "rb", opener=regular) as file:
            value = json.load(file).get("high_water")
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return value if isinstance(value, int) else None
