"""Files of lines that grow: each line is read once, whatever the file's size, with little memory. Reads only."""

import os
from collections.abc import Iterator

from lastgood.regular import regular

PIECE_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 20  # a longer line is none of ours, and is passed over


class Following:
    """Goes on from where it was. `generation` counts up when another file stands in its place, or none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None  # its inode
        self._offset = 0
        self._rest = b""
        self._skips = False  # the rest of a line that is too long
        self._size = 0
        self.generation = 0

    def pieces(self, bytes_max: int) -> Iterator[list[bytes]]:
        """The whole lines that were not read yet, without their ends, from about so many bytes; none where it cannot be read."""
        try:
            with open(self._path, "rb", opener=regular, buffering=0) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._offset:
                    self._forget(status.st_ino)
                self._size, limit = status.st_size, self._offset + bytes_max
                while self._offset < limit and (piece := os.pread(file.fileno(), PIECE_BYTES, self._offset)):
                    self._offset += len(piece)
                    yield self._lines(piece)
        except OSError:
            self._forget(None)

    @property
    def read(self) -> float:
        """The share of the file that was read, 1 when all."""
        return min(1.0, self._offset / self._size) if self._size else 1.0

    def _forget(self, file: int | None) -> None:
        if self._file is not None:
            self.generation += 1
        self._file, self._offset, self._rest, self._skips, self._size = file, 0, b"", False, 0

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
