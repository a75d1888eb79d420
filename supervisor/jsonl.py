"""Files of JSON lines. A line is appended whole or not at all, and one that a power cut left half spoils no other."""

import errno
import os

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
