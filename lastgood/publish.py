"""Make a snapshot visible all at once, already sealed; and take one away so that a cut at any point does no harm.

Order of a publication: partial written through a hashing file, flushed and fsynced; seal in place; data renamed; folder
fsynced. A reader sees no snapshot, or a whole one with its seal. When a name is overwritten, the new seal also accepts the
old digest until the rename is durable, and is durable itself before it.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO, cast

from lastgood.hashing import HashingFile, file_sha256
from lastgood.naming import partial_name, partial_of
from lastgood.regular import regular
from lastgood.seal import (
    MAX_SEAL_BYTES,
    Identity,
    Seal,
    bound_seal_path,
    bound_seal_text,
    parse_seal,
    seal_path,
    seal_text,
)

BEGIN_BYTES = 32 << 20  # a stretch that is worth a system call, and that the disk has not fallen behind by
MODE = 0o666  # the umask takes its share, as for any file a program makes


class MaybeCommittedError(OSError):
    """The snapshot was renamed into place, then making that durable failed: it may or may not survive a power cut."""


@dataclass(frozen=True)
class Published:
    """A publication that went through: where, the SHA-256 of the intended bytes, and their number."""

    path: str
    sha256: str
    bytes: int


def publish(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> Published:
    """Publish what `write` writes to the file it is given, under `path`, sealed.

    Whatever goes wrong before the rename, by error or by signal, leaves what was there before and no partial, and the
    system's own OSError is passed on (for a full disk with the bytes needed and free). Raises MaybeCommittedError when it
    goes wrong after the rename.
    """
    target = os.path.abspath(path)
    folder, name = os.path.split(target)
    partial = os.path.join(folder, partial_name(name))
    old_seal = _seal_if_there(seal_path(target))
    sealed = False
    try:
        digest, size = _write_partial(partial, write)
        text = seal_text(digest, name, _replaced(target, old_seal, name))
        sealed = True
        write_durably(seal_path(target), text.encode("utf-8", "surrogateescape"))
        if text.startswith("#"):
            fsync_folder(folder)  # a power cut must not keep the new bytes under the old seal
        os.replace(partial, target)
    except BaseException:
        _withdraw(partial, target, old_seal, sealed)
        raise
    _settle(folder, name, digest, had_replaced=text.startswith("#"))
    return Published(target, digest, size)


def _write_partial(partial: str, write: Callable[[BinaryIO], object]) -> tuple[str, int]:
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    with os.fdopen(descriptor, "wb", buffering=0) as raw:
        file = HashingFile(cast(BinaryIO, _Whole(raw)))
        try:
            write(cast(BinaryIO, file))
            file.finish()
            os.fsync(descriptor)
        except BaseException as error:
            cause = error if isinstance(error, OSError) else file.error
            if cause is None:
                raise
            raise _explained(cause, partial, file.size) from error
        finally:
            file.close()
    return file.sha256, file.size


class _Whole:
    """An unbuffered file whose write takes everything: the system may take less at a time.

    The system is asked now and then to begin bringing it to the disk, so that the fsync at the end has little left to do.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._written = self._begun = 0

    def write(self, view: memoryview) -> int:
        done = 0
        while done < view.nbytes:
            done += self._raw.write(view[done:]) or 0
        self._written += done
        if self._written - self._begun >= BEGIN_BYTES:
            _begin_writeback(self._raw.fileno(), self._begun, self._written - self._begun)
            self._begun = self._written
        return done


def _begin_writeback(descriptor: int, start: int, count: int) -> None:
    """Hint that these bytes are to reach the disk soon; whether they did, only fsync tells. Elsewhere than on Linux, nothing."""
    begin = _sync_file_range()
    if begin is not None:
        begin(descriptor, start, count, 2)  # SYNC_FILE_RANGE_WRITE


@cache
def _sync_file_range() -> Callable[[int, int, int, int], object] | None:
    """The system's call of that name, if it has one: looked up once."""
    found = None
    if sys.platform == "linux":
        import ctypes

        found = getattr(ctypes.CDLL(None), "sync_file_range", None)
        if found is not None:
            found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


def _explained(error: BaseException, partial: str, written: int) -> BaseException:
    """The system's own error; for a full disk with what was written and what is free. Ctrl-C is Ctrl-C."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    try:
        free = f"{shutil.disk_usage(os.path.dirname(partial)).free:,}"
    except OSError:
        free = "an unknown number of"
    text = f"{os.strerror(error.errno)}: {written:,} bytes were written and more were needed, {free} bytes are free"
    return OSError(error.errno, text, partial)


def _replaced(target: str, old_seal: bytes | None, name: str) -> tuple[str, ...]:
    """Digests that the bytes now under `target` may have, which its next seal must accept until the rename is durable.

    Bytes without a usable seal are read for it: a seal of other bytes beside them would condemn them.
    """
    if not is_there(target):
        return ()
    seal = None if old_seal is None else parse_seal(old_seal, name)
    if isinstance(seal, Seal):
        return (seal.sha256, *seal.replaced)
    try:
        return (file_sha256(target),)
    except FileNotFoundError:
        return ()  # a link to nowhere


def _withdraw(partial: str, target: str, old_seal: bytes | None, sealed: bool) -> None:
    """Put back what was there before a failed publication. A failure here is harmless and must not hide the first one."""
    if sealed and not os.path.lexists(partial):
        return  # a signal came right after the rename: the snapshot is in place, and its seal must stay with it
    try:
        if sealed and old_seal is None:
            remove_if_there(seal_path(target))
        elif sealed and old_seal is not None:
            write_durably(seal_path(target), old_seal)
    except OSError:
        pass  # the seal in place accepts the old bytes too
    try:
        remove_if_there(partial)
    except OSError:
        pass  # a partial is never a candidate, and the next writer sweeps it


def _settle(folder: str, name: str, digest: str, had_replaced: bool) -> None:
    """Make the rename durable, then let the seal accept the new bytes alone."""
    try:
        fsync_folder(folder)
        if had_replaced:
            write_durably(
                seal_path(os.path.join(folder, name)), seal_text(digest, name).encode("utf-8", "surrogateescape")
            )
            fsync_folder(folder)
    except OSError as error:
        raise MaybeCommittedError(
            error.errno,
            f"{name} is in place, but making that durable failed: {error.strerror}",
            os.path.join(folder, name),
        ) from error


def write_durably(path: str, content: bytes) -> None:
    """Replace a small file's content atomically: partial, fsync, rename. The folder is not synced. Raises OSError."""
    _replace(path, content, os.fsync)


def write_at_once(path: str, content: bytes) -> None:
    """The same without waiting for the disk: a reader sees old or new, and after a power cut perhaps neither. Raises OSError."""
    _replace(path, content, lambda _: None)


def _replace(path: str, content: bytes, sync: Callable[[int], None]) -> None:
    folder, name = os.path.split(os.path.abspath(path))
    partial = os.path.join(folder, partial_name(name))
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            sync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, path)
    except BaseException:
        try:
            remove_if_there(partial)
        except OSError:
            pass  # the first error is the one to tell
        raise


def write_bound_seal(snapshot: str | os.PathLike[str], digest: str, identity: Identity) -> None:
    """Seal somebody else's snapshot, in `.lastgood`, for exactly this identity. Raises OSError."""
    path = bound_seal_path(snapshot)
    make_inner_folder(os.path.dirname(path))
    write_durably(path, bound_seal_text(digest, identity).encode("ascii"))


def make_inner_folder(folder: str) -> None:
    """Make a folder and the one that it is in, where they are not there yet, and nothing above.

    So a folder in `.lastgood` brings back no checkpoint directory that was moved away or removed. Raises OSError:
    FileNotFoundError then.
    """
    for one in (os.path.dirname(folder), folder):
        try:
            os.mkdir(one)
        except FileExistsError:
            if not os.path.isdir(one):
                raise


def fsync_folder(folder: str) -> None:
    """Make renames in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: str | os.PathLike[str]) -> None:
    """Take a snapshot and its seal away. Cut at any point, it is gone or whole, and `sweep` finishes it. Raises OSError."""
    target = os.path.abspath(path)
    folder, name = os.path.split(target)
    partial = os.path.join(folder, partial_name(name))
    os.replace(target, partial)
    remove_if_there(seal_path(target))
    try:
        fsync_folder(folder)  # else a power cut may leave the seal alone, which no sweep would know for ours
    except OSError:
        pass  # the space is wanted back all the same
    _remove_whole(partial)


def sweep(folder: str | os.PathLike[str], left: Callable[[str, OSError], object] | None = None) -> list[str]:
    """Remove what interrupted publications and removals of this library left behind; returns the names removed.

    What cannot be removed stays, as no candidate; `left` is told its name and why. Raises OSError when the folder cannot be read.
    Only for the holder of the folder's writer lock: another writer's partial is not distinguishable from a dead one's.
    """
    base = os.path.abspath(folder)
    gone = []
    for name in sorted(os.listdir(base)):
        final = partial_of(name)
        if final is None:
            continue
        try:
            if not is_there(os.path.join(base, final)):
                remove_if_there(seal_path(os.path.join(base, final)))
            _remove_whole(os.path.join(base, name))
            gone.append(name)
        except OSError as error:
            if left is not None:
                left(name, error)
    return gone


def _remove_whole(path: str) -> None:
    """Unlink a file, or a folder with all that is in it; what is already gone is as wished. Raises OSError."""
    try:
        remove_if_there(path)
    except IsADirectoryError:
        shutil.rmtree(path)


def remove_if_there(path: str) -> None:
    """Unlink; a file that is already gone is as wished. Raises OSError for anything else."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # already as wished


def is_there(path: str) -> bool:
    """Whether a name is taken. Raises OSError when that cannot be found out, which is not the same as no."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def _seal_if_there(path: str) -> bytes | None:
    """The content of a seal file, None without one. Raises OSError, also for what is too large to be one: that is left alone."""
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(MAX_SEAL_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_SEAL_BYTES:
        raise OSError(errno.EFBIG, "Too large to be a seal", path)
    return content
