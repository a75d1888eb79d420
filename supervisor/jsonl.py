"""Files of JSON lines. A line is appended whole or not at all, and one that a power cut left half spoils no other."""

import errno
import os
import stat

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
_FLAGS |= os.O_NONBLOCK  # a pipe in the file's place must not hold up its only writer


def append_line(path: str, line: bytes) -> None:
    """Append one line, given without its end, to a file that has no other writer now. Raises OSError."""
    descriptor = os.open(path, _FLAGS, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        cut_short = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if cut_short else b"") + line + b"\n"
        if os.write(descriptor, data) < len(data):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)


def older(path: str) -> str:
    """Where the lines go that a file had when it was turned over; they come before its own."""
    return f"{path}.1"


def turn_over(path: str, bytes_max: int) -> None:
    """Begin the file anew once it has so many bytes, and keep what it had in the place of what was kept there before.

    One rename: killed at any point, each line is in one of the two. Raises OSError, with everything as it was.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode) and status.st_size >= bytes_max:
        os.rename(path, older(path))
