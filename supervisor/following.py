"""Files of lines that grow: each line is read once, whatever the file's size, with little memory. Reads only."""

import os
from collections.abc import Iterator
from contextlib import ExitStack

from lastgood.regular import regular

PIECE_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 20  # a longer line is none of ours, and is passed over


_File = tuple[int, os.stat_result]
"""A descriptor, and what it leads to."""


class Following:
    """Goes on from where it was. `generation` counts up when another file stands in its place, or none.

    `older` is what the file is called once it was turned over: its lines come before those of the file that stands there then.
    """

    def __init__(self, path: str, older: str | None = None) -> None:
        self._paths = (path,) if older is None else (older, path)
        self._file: int | None = None  # its inode
        self._offset = 0
        self._rest = b""
        self._skips = False  # the rest of a line that is too long
        self._size = 0
        self.generation = 0

    def pieces(self, bytes_max: int) -> Iterator[list[bytes]]:
        """The whole lines that were not read yet, without their ends, from about so many bytes; none where it cannot be read."""
        with ExitStack() as stack:
            files = self._ahead([one for path in self._paths if (one := _opened(path, stack)) is not None])
            left = bytes_max
            for number, (descriptor, status) in enumerate(files):
                if number:
                    self._go_to(status.st_ino)
                self._size = sum(later.st_size for _, later in files[number:])
                try:
                    while left > 0 and (piece := os.pread(descriptor, PIECE_BYTES, self._offset)):
                        left -= len(piece)
                        self._offset += len(piece)
                        yield self._lines(piece)
                except OSError:
                    self._forget(None)
                    return
                if left <= 0:
                    return

    def _ahead(self, files: list[_File]) -> list[_File]:
        """From the file that was read last on; from the first one when that is not there any more, or was cut."""
        for number, (_, status) in enumerate(files):
            if status.st_ino == self._file and status.st_size >= self._offset:
                return files[number:]
        self._forget(files[0][1].st_ino if files else None)
        return files

    @property
    def read(self) -> float:
        """The share of what there is to read that was read, 1 when all."""
        return min(1.0, self._offset / self._size) if self._size else 1.0

    def _go_to(self, file: int | None) -> None:
        self._file, self._offset, self._rest, self._skips, self._size = file, 0, b"", False, 0

    def _forget(self, file: int | None) -> None:
        if self._file is not None:
            self.generation += 1
        self._go_to(file)

    def _lines(self, piece: bytes) -> list[bytes]:
        first, *others = piece.split(b"\n")
        if not others:
            self._hold(first)
            return []
        whole = [] if self._skips else [self._rest + first]
        self._rest, self._skips = b"", False
        self._hold(others.pop())
        return whole + others

    def _hold(self, part: bytes) -> None:
        """Keep the beginning of a line until its end comes."""
        self._rest += part
        if len(self._rest) > LINE_BYTES_MAX:
            self._rest, self._skips = b"", True


def _opened(path: str, stack: ExitStack) -> _File | None:
    try:
        descriptor = regular(path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        return descriptor, os.fstat(descriptor)
    except OSError:
        return None
