"""Open only what is a regular file."""

import errno
import os
import stat


def regular(path: str, flags: int) -> int:
    """An opener for `open`: a pipe or a device in a file's place neither holds up nor feeds whoever reads. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    number, text = (
        (errno.EISDIR, os.strerror(errno.EISDIR)) if stat.S_ISDIR(mode) else (errno.EINVAL, "Not a regular file")
    )
    raise OSError(number, text, path)
