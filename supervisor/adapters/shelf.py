"""The shelf: sealed copies of a file that its trainer overwrites in place, and how one of them gets back there.

A link would be no copy: who overwrites in place truncates the file under all its names. A copy shares its blocks where
the filesystem can do that (reflink), and counts only once it was read back and is what was judged. It is made under a partial's
name, synced, sealed and renamed, so that a cut at any point leaves the old state or the new one, and a partial that the
next start takes away. One supervisor at a time, and one of its threads, works here.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from lastgood import publish
from lastgood.contract import SEAL_SUFFIX
from lastgood.hashing import file_sha256
from lastgood.keep import LEAST_KEPT, Keep, expendable
from lastgood.naming import partial_name, snapshot_name
from lastgood.publish import MODE, fsync_folder, make_inner_folder, remove_if_there, write_bound_seal, write_durably
from lastgood.regular import regular
from lastgood.rungs import Rung, judge
from lastgood.seal import Identity, Seal, read_seal, seal_path, seal_text
from lastgood.verdict import Kind, Proof, Verdict
from supervisor.core.events import RungFact
from supervisor.shelved import places_of, scan_shelf, shelved_name

SPARE_BYTES = 64 << 20  # left free for the trainer's own logs, and for a file that grows a little
PIECE_BYTES = 64 << 20
FICLONE = 0x40049409  # shares the blocks of one file with another; fcntl of this Python does not name it


@dataclass(frozen=True)
class Copied:
    """A copy that was made: how, `reflink` or `copy`, and its size."""

    how: str
    bytes: int


class Shelf:
    """The copies of one checkpoint directory. `is_ours` tells those of this run; `removed` is told of each that was given up."""

    def __init__(
        self,
        checkpoint_dir: str,
        name: str,
        keep: Keep,
        is_ours: Callable[[Rung], bool] = lambda _: True,
        removed: Callable[[Rung], object] = lambda _: None,
    ) -> None:
        self._directory = checkpoint_dir
        self._keep = keep
        self._is_ours = is_ours
        self._removed = removed
        self._in_place, self._folder = places_of(checkpoint_dir, name)
        self._known: dict[str, tuple[Identity, Verdict]] = {}

    def tidy(self) -> None:
        """Take away what an interrupted copy or removal left. Raises OSError."""
        if not os.path.isdir(self._folder):
            return
        publish.sweep(self._folder)
        names = set(os.listdir(self._folder))
        for name in names:
            if name.endswith(SEAL_SUFFIX) and name.removesuffix(SEAL_SUFFIX) not in names:
                remove_if_there(os.path.join(self._folder, name))

    def keep_copy(self, rung: RungFact) -> Copied | None:
        """Keep a copy of the file in place, which was judged to be `rung`.

        Returns None when there is a good one, and when the file was overwritten since: then its next arrival is the one to keep.
        Raises OSError when there cannot be one, for want of space too.
        """
        verdict = rung.verdict
        assert verdict is not None
        assert verdict.sha256 is not None
        if rung.step is None:
            raise OSError(errno.EINVAL, "it does not tell its step")
        target = os.path.join(self._folder, snapshot_name(rung.step))
        if _holds(target, verdict.sha256):
            return None
        self._make_folder()
        self._make_room(verdict.bytes)
        with _partial_of(target) as partial:
            how = self._copied(rung, partial)
            if how is None or file_sha256(partial) != verdict.sha256:
                return None
            _put_in_place(partial, target, verdict.sha256)
        healthy = verdict._replace(kind=Kind.HEALTHY, proof=Proof.SEAL, reason="it was read back and sealed")
        self._known[shelved_name(rung.step)] = (Identity.of(os.stat(target)), healthy)
        return Copied(how, verdict.bytes)

    def _copied(self, rung: RungFact, partial: str) -> str | None:
        """How the file in place was copied; None when it is no longer what was judged. Raises OSError."""
        try:
            with open(self._in_place, "rb", opener=regular) as source:
                return _copy(source, partial, lambda: _is_as_judged(self._in_place, source, rung))
        except FileNotFoundError:
            return None

    def prune(self) -> None:
        """Give up what retention gives up. Raises OSError."""
        self._remove(self._expendable(self._keep))

    def put_back(self, rung: RungFact) -> Copied:
        """Make the copy that was judged to be `rung` the file in place again, where nothing is now. Raises OSError.

        Its digest is kept in our own folder: a seal beside it would condemn what the trainer writes over it.
        """
        assert rung.verdict is not None
        digest = rung.verdict.sha256
        with open(os.path.join(self._directory, rung.name), "rb", opener=regular) as source:
            size = os.fstat(source.fileno()).st_size
            _check_space(self._directory, size)
            with _partial_of(self._in_place) as partial:
                how = _copy(source, partial, lambda: True)
                if how is None or file_sha256(partial) != digest:
                    raise OSError(errno.EIO, "the copy is not what was judged")
                if os.path.lexists(self._in_place):
                    raise FileExistsError(errno.EEXIST, "somebody else has put a file there", self._in_place)
                os.rename(partial, self._in_place)
        fsync_folder(self._directory)
        write_bound_seal(self._in_place, digest, Identity.of(os.stat(self._in_place)))
        return Copied(how, size)

    def same_as(self, digest: str) -> list[Rung]:
        """The copies of one snapshot, by what their seals say. Raises OSError."""
        return [rung for rung in self._ours() if _sealed_digest(os.fspath(rung.path), rung.identity) == digest]

    def _make_folder(self) -> None:
        if not os.path.isdir(self._folder):
            make_inner_folder(self._folder)
            fsync_folder(os.path.dirname(self._folder))

    def _ours(self) -> list[Rung]:
        return [rung for rung in scan_shelf(self._directory) if self._is_ours(rung)]

    def _make_room(self, size: int) -> None:
        """Give up copies, down to the fewest, if that makes the room that is missing. Raises OSError when there is too little."""
        missing = size + SPARE_BYTES - _free_bytes(self._folder)
        if missing > 0:
            spare = self._expendable(Keep(LEAST_KEPT, self._keep.every, self._keep.best))
            if sum(rung.identity.size for rung in spare) >= missing:
                self._remove(spare)
        _check_space(self._folder, size)

    def _expendable(self, keep: Keep) -> list[Rung]:
        rungs = self._ours()
        if len(rungs) <= keep.last:
            return []
        return expendable([self._judged(rung) for rung in rungs], keep)

    def _judged(self, rung: Rung) -> Rung:
        """The rung with its verdict: of an unchanged copy the one that it had before."""
        known = self._known.get(rung.name)
        if known is not None and known[0] == rung.identity:
            return rung._replace(verdict=known[1])
        judged = judge(rung)
        if judged.verdict is not None:
            self._known[rung.name] = (rung.identity, judged.verdict)
        return judged

    def _remove(self, rungs: Iterable[Rung]) -> None:
        for rung in rungs:
            publish.remove(rung.path)
            self._known.pop(rung.name, None)
            self._removed(rung)


def _holds(target: str, digest: str) -> bool:
    """Whether a copy is there, sealed, and has these bytes."""
    try:
        sealed = _sealed_digest(target, Identity.of(os.stat(target)))
        return sealed == digest and file_sha256(target) == digest
    except OSError:
        return False


def _sealed_digest(path: str, identity: Identity) -> str | None:
    seal = read_seal(path, identity)
    return seal.sha256 if isinstance(seal, Seal) else None


def _is_as_judged(path: str, file: BinaryIO, rung: RungFact) -> bool:
    """Whether an open file is still what has the name, and is as it was when it was judged."""
    assert rung.verdict is not None
    try:
        now, there = os.fstat(file.fileno()), os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(now, there) and (now.st_size, now.st_mtime_ns) == (rung.verdict.bytes, rung.mtime_ns)


@contextmanager
def _partial_of(target: str) -> Iterator[str]:
    """A name beside `target` for what is being written; whatever has it at the end goes."""
    folder, name = os.path.split(target)
    partial = os.path.join(folder, partial_name(name))
    try:
        yield partial
    finally:
        try:
            remove_if_there(partial)
        except OSError:
            pass  # it is no candidate, and the next start takes it away


def _copy(source: BinaryIO, partial: str, is_as_it_was: Callable[[], bool]) -> str | None:
    """Copy a file, times included, down to the disk; returns how, or None once it is not as it was. Raises OSError."""
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        how = "reflink" if _shares_blocks(source, descriptor) else "copy"
        done = 0
        while is_as_it_was():
            if how == "reflink" or not (count := os.sendfile(descriptor, source.fileno(), done, PIECE_BYTES)):
                break
            done += count
        else:
            return None
        status = os.fstat(source.fileno())
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return how


def _shares_blocks(source: BinaryIO, descriptor: int) -> bool:
    """Have an empty file share the blocks of another, if the filesystem can; what it says else is no matter."""
    try:
        fcntl.ioctl(descriptor, FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _put_in_place(partial: str, target: str, digest: str) -> None:
    """Seal and rename. A copy that is replaced has its digest in the seal until the rename is durable. Raises OSError."""
    folder, name = os.path.split(target)
    old = _sealed_digest(target, Identity.of(os.stat(target))) if os.path.lexists(target) else None
    replaced = () if old is None else (old,)
    write_durably(seal_path(target), seal_text(digest, name, replaced).encode("utf-8", "surrogateescape"))
    fsync_folder(folder)
    os.rename(partial, target)
    fsync_folder(folder)
    if replaced:
        write_durably(seal_path(target), seal_text(digest, name).encode("utf-8", "surrogateescape"))


def _free_bytes(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _check_space(folder: str, size: int) -> None:
    """Raises OSError when a copy of `size` bytes would leave no room. A reflink needs it too, once the trainer writes again."""
    free = _free_bytes(folder)
    if free < size + SPARE_BYTES:
        text = f"{os.strerror(errno.ENOSPC)}: {size + SPARE_BYTES:,} bytes are needed and {free:,} are free"
        raise OSError(errno.ENOSPC, text, folder)
