"""Judge a snapshot, a file or a folder: read errors that pass are tried again, and nothing that is wrong with it raises."""

import errno
import os
import stat
import time

from lastgood import folders, naming
from lastgood.files import verify_open
from lastgood.regular import regular
from lastgood.verdict import Kind, Verdict

TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN})
"""Read errors that network and failing storage give for a moment; tried again before anything is said."""

RETRIES = 3
RETRY_SECONDS = 0.05  # doubles; a stale handle is gone at the next open, a dying disk is not worth a long wait


def verify(path: str | os.PathLike[str], deep: bool = False) -> Verdict:
    """The verdict about the snapshot at `path`. Never raises for what is wrong with the snapshot or its storage.

    `deep` also looks for NaN, and for infinities that the snapshot before it has not, in every float tensor, in a child
    process, so that the caller's memory stays flat: one with such is poisoned, and the reason names the tensor.
    """
    started = time.perf_counter()
    name = os.fspath(path)
    for attempt in range(RETRIES + 1):
        try:
            verdict = _verify_once(name)
            break
        except OSError as error:
            if error.errno not in TRANSIENT or attempt == RETRIES:
                verdict = _unreadable(name, error)
                break
            time.sleep(RETRY_SECONDS * 2**attempt)
        except MemoryError:
            verdict = _unreadable(name, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
            break
    if deep and verdict.usable:
        from lastgood.deep import look_into

        verdict = look_into(name, verdict)
    return verdict._replace(seconds=round(time.perf_counter() - started, 6))


def _unreadable(name: str, error: OSError) -> Verdict:
    why = {
        errno.EACCES: "permission denied; its bytes were not judged",
        errno.EPERM: "permission denied; its bytes were not judged",
        errno.ENOENT: "no such file",
        errno.ELOOP: "its links go round in a circle",
    }.get(error.errno or 0, f"{error.strerror or error}; its bytes were not judged")
    return Verdict(Kind.UNREADABLE, None, why, step=naming.step_in_name(os.path.basename(name)), errno=error.errno)


def _verify_once(name: str) -> Verdict:
    status = os.stat(name)
    if stat.S_ISDIR(status.st_mode):
        return folders.judge(name)
    if not stat.S_ISREG(status.st_mode):
        return Verdict(Kind.UNREADABLE, None, "it is neither a regular file nor a folder")
    with open(name, "rb", opener=regular) as file:
        return verify_open(name, file)
